"""Sentence encoders: a pair of texts, and the model's own similarity of the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, ModelError
from ..results.input_origin import Span, TextOrigin
from .sample import Sample
from .text import TextReader

OTHER = "other_"  # before the names of the second text's arguments
SECOND = "text 2"  # the stream of the second text

SIMILARITIES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda a, b: nn.functional.cosine_similarity(a, b, dim=-1),
    "dot": lambda a, b: (a * b).sum(-1),
    "euclidean": lambda a, b: -(a - b).square().sum(-1).sqrt(),
    "manhattan": lambda a, b: -(a - b).abs().sum(-1),
}


class SentencePair(nn.Module):
    """The similarity of two texts, each read by the same sentence encoder.

    Args:
        encoder: takes a dict of tensors and returns one with ``sentence_embedding``, as SentenceTransformer does.
        similarity: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"manhattan"``; of the last two the negative distance.
        dimensions: how many of the embedding's dimensions are compared; ``None``: all.
    """

    def __init__(self, encoder: nn.Module, similarity: str = "cosine", dimensions: int | None = None) -> None:
        super().__init__()
        if similarity not in SIMILARITIES:
            raise ModelError(f"The model's similarity is '{similarity}'; expected one of {', '.join(SIMILARITIES)}.")
        self.encoder = encoder
        self.similarity = similarity
        self.dimensions = dimensions

    @property
    def name(self) -> str:
        """The name of the similarity, as explanations show it."""
        return f"{self.similarity} similarity"

    def forward(self, **given: Tensor) -> Any:
        """Return the similarity, ``[batch, 1]``; of one text alone, what the encoder returns."""
        first = {name: t for name, t in given.items() if not name.startswith(OTHER)}
        second = {name.removeprefix(OTHER): t for name, t in given.items() if name.startswith(OTHER)}
        if not second:
            return self.encoder(first)
        vectors = [self.encoder(own)["sentence_embedding"][..., : self.dimensions] for own in (first, second)]
        return SIMILARITIES[self.similarity](*vectors)[:, None]


class SentencePairReader:
    """A reader of two texts for a sentence encoder, or of one for a target function of its embedding.

    Args:
        tokenizer: the encoder's tokenizer.
        pair: the similarity of two texts.
        truncate: truncate a text that is too long, with a warning; otherwise raise an error.
        limit: how many tokens the encoder takes; ``None``: as its tokenizer and its table of positions say.
        prompt: what is put before every text.
        lower: whether texts are read in lower case.
    """

    kind = "text"

    def __init__(
        self,
        tokenizer: Any,
        pair: SentencePair,
        truncate: bool = True,
        limit: int | None = None,
        prompt: str = "",
        lower: bool = False,
    ) -> None:
        transformer = next((m for m in pair.encoder.modules() if hasattr(m, "get_input_embeddings")), None)
        if transformer is None or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise ModelError(
                "This sentence encoder has no Transformer with a HuggingFace tokenizer, so its texts cannot be read. "
                "Give whence.explain the tensors that its first module takes."
            )
        self.tokenizer = tokenizer
        self.text = TextReader(tokenizer, transformer, truncate, limit)
        self.prompt = prompt
        self.lower = lower

    def read(self, raw: Any) -> Sample:
        """Read a pair of texts; or one text, of which only tensors for the encoder are made."""
        texts = (raw,) if isinstance(raw, str) else tuple(raw) if isinstance(raw, tuple | list) else ()
        if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
            raise InputError(f"A sentence encoder compares a pair of texts, (text, text); this is {_described(raw)}.")
        samples = [self._read(text) for text in texts]
        first = samples[0]
        tensors, origins = dict(first.tensors), dict(first.origins)
        for second in samples[1:]:  # its length is part of the batch's shape: no padding, whose mask has another name
            tensors |= {OTHER + name: t for name, t in second.tensors.items()}
            origins[SECOND] = second.origins["text"]
        return Sample(tensors, origins, first.pads, alone=first.alone)

    def _read(self, text: str) -> Sample:
        """Read one text behind the prompt, of which no token is the user's."""
        if not text.strip():
            raise InputError("The text is empty: there is nothing to explain.")
        sample = self.text.read(self.prompt + (_lowered(text) if self.lower else text))
        origin = sample.origins["text"]
        assert isinstance(origin, TextOrigin)
        size = len(self.prompt)
        moved = replace(
            origin,
            texts=(text,),
            spans=tuple(None if s is None or s.end <= size else _moved(s, size) for s in origin.spans),
            unread=tuple(_moved(s, size) for s in origin.unread),
        )
        return replace(sample, origins={"text": moved}, position=None)


def _moved(span: Span, size: int) -> Span:
    return Span(max(span.start - size, 0), max(span.end - size, 0), span.part)


def _lowered(text: str) -> str:
    """Return a text in lower case, character by character, so that every character stays at its place."""
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _described(raw: Any) -> str:
    return f"a {type(raw).__name__} of {len(raw)}" if isinstance(raw, tuple | list) else type(raw).__name__


def joined(one: Any, first: TextOrigin, second: TextOrigin) -> tuple[TextOrigin, Tensor]:
    """Return the origin and the scores of two texts, in two streams of an explanation, as of one stream."""
    spans = (*first.spans, *(None if s is None else s._replace(part=1) for s in second.spans))
    unread = (*first.unread, *(s._replace(part=1) for s in second.unread))
    origin = TextOrigin((*first.texts, *second.texts), (*first.tokens, *second.tokens), spans, unread)
    return origin, torch.cat([one.streams["text"], one.streams[SECOND]], 1)
