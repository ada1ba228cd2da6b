"""Generated text: for every token that a language model wrote, what it came from in the prompt and in what it wrote.

One forward over the whole sequence, and the backwards of many tokens at once (see :mod:`whence.together`): a token's
target is its logit at the position before it, as in teacher forcing, so that nothing is run once per token.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError, ModelError, TargetError
from .explain import explain
from .explanation import Explanation, Explanations, Looking
from .inputs.text import TextReader
from .origin import Span, TextOrigin
from .result import Result
from .table import Table
from .tables import token_names
from .target import At, every
from .view import Card
from .views import view

Messages = Sequence[Mapping[str, str]]


class Generation(Looking, Sequence[Explanation]):
    """What each token of a generated text came from: ``g[i]`` is the explanation of the i-th token written.

    Attributes:
        explanations: one for each token written; its scores are of all tokens before it.

    Example:
        >>> g = explainer.generate("The capital of Italy is", max_new_tokens=4)
        >>> g.text
        >>> g.save("why.html")
    """

    def __init__(self, explanations: Sequence[Explanation]) -> None:
        self.explanations = Explanations(explanations)
        if not explanations:
            raise InputError("There is no generated token to explain.")

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, index: Any) -> Any:
        return self.explanations[index]

    def results(self) -> list[Result]:
        """An explanation of each token."""
        return list(self.explanations)

    def _origin(self, name: str) -> TextOrigin:
        origin = self.explanations[0].origins[0][name]
        assert isinstance(origin, TextOrigin)
        return origin

    @property
    def written(self) -> TextOrigin:
        """The text that holds what was written, with its tokens: of a decoder alone, the prompt before it."""
        return self._origin("decoder" if "decoder" in self.explanations[0].streams else "text")

    @property
    def prompt(self) -> str:
        """What the model was given: with a chat template, as the template wrote it."""
        return self._origin("encoder" if "encoder" in self.explanations[0].streams else "text").texts[0]

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.written.texts[-1]

    @property
    def tokens(self) -> list[str]:
        """The tokens written, as they read."""
        return [e.target_names[0] for e in self.explanations]

    @property
    def streams(self) -> dict[str, Tensor]:
        """Per stream of tokens, ``[written, tokens]``: what each token written drew from each."""
        return {n: torch.cat([e.streams[n] for e in self.explanations]) for n in self.explanations[0].streams}

    @property
    def matrix(self) -> Tensor:
        """``[written, tokens]``: a row for each token written, a column for each token of the main stream."""
        return torch.cat([e.scores for e in self.explanations])

    def table(self, stream: str | None = None) -> Table:
        """What each token written drew from each token of a stream (the main one, if none is named)."""
        scores = self.streams[stream or next(iter(self.explanations[0].streams))]
        names = token_names(self.explanations[0], scores.shape[1], stream)
        values = scores.detach().double().cpu().numpy()
        title = f"What each token written came from, {self.explanations[0].method}"
        return Table(title, values, tuple(self.tokens), names, "written", "came from")

    def show(self) -> None:
        """Print it: what each token written drew on most."""
        self.table().show()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def drawn(self, ending: str) -> bytes:
        """What a picture or page of it holds: the table; in a page, the text as each token written saw it besides."""
        from .render.figure import KINDS
        from .render.grid import draw, label, section
        from .render.html import page

        if ending[1:] in KINDS:
            return draw(self.table(), ending[1:])
        if ending != ".html":
            return super().drawn(ending)
        shown = [Card(label(name), (view(e),)) for name, e in zip(self.tokens, self.explanations, strict=True)]
        tables = [section(self.table(name), links=True) for name in self.explanations[0].streams]
        intro = ["Each row is a token that the model wrote; each column one that it had read by then."]
        return page(shown, "What the text came from", intro, tables).encode()

    def span(self, start: int = 0, stop: int | None = None) -> Explanation:
        """The relevance of several tokens written, as one target: the sum of their logits.

        For methods that are linear in what they explain (one backward of gradients) this is the sum of their rows;
        :func:`whence.span` is the target for all others.

        Args:
            start, stop: which tokens written, as in a slice.
        """
        chosen = self.explanations[start:stop]
        if not chosen:
            raise TargetError(f"There is no token from {start} to {stop}: {len(self)} were written.")
        if chosen[0].ledger is None:
            raise TargetError(
                f"Of '{chosen[0].method}' explanations of tokens do not add up to that of a span. Explain the span "
                "itself: target=whence.span(start, tokens); or use conservative-lrp, attn-lrp or gradient-x-input."
            )
        total = functools.reduce(operator.add, reversed(chosen))
        named = "".join(e.target_names[0] for e in chosen)
        return replace(
            total, logits=total.value, target=None, target_names=(named,), prediction=None, prediction_names=()
        )


@dataclass
class Written:
    """A text as a model was given it and went on with it.

    Attributes:
        inputs: the model's arguments for the whole of it.
        origins: the text of each stream.
        ids: the tokens written.
        first: the position whose answer is the first of them.
        special: ``[tokens]``, those of the first stream that neither the user nor the model wrote (a chat template's).
    """

    inputs: dict[str, Tensor]
    origins: dict[str, TextOrigin]
    ids: list[int]
    first: int
    special: list[bool]


def generate(
    model: nn.Module,
    reader: TextReader,
    prompt: str | Messages,
    continuation: str | None,
    method: str,
    max_new_tokens: int,
    sampling: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Generation:
    """Let a model write (or take what it is said to have written), and explain every token. See ``Explainer``."""
    text, own = templated(reader.tokenizer, prompt)
    written = write(model, reader, text, own, continuation, max_new_tokens, sampling)
    targets = [At(written.first + i, token) for i, token in enumerate(written.ids)]
    found = explain(model, written.inputs, method, target=every(targets), **options)
    return Generation([_attached(e, written, i, reader.tokenizer) for i, e in enumerate(found)])


def templated(tokenizer: Any, prompt: str | Messages) -> tuple[str, list[tuple[int, int]] | None]:
    """A prompt as one string; of messages, by the tokenizer's chat template, with the spans that the user wrote."""
    if isinstance(prompt, str):
        return prompt, None
    try:
        text = str(tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True))
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"The tokenizer has no chat template that takes these messages ({str(error).splitlines()[0]}). Give the "
            "prompt as one string, or messages as a list of {'role': ..., 'content': ...}."
        ) from error
    own, at = [], 0
    for message in prompt:
        start = text.find(message["content"].strip(), at)
        if start >= 0:
            at = start + len(message["content"].strip())
            own.append((start, at))
    return text, own


def write(
    model: nn.Module,
    reader: TextReader,
    text: str,
    own: list[tuple[int, int]] | None,
    continuation: str | None,
    most: int,
    sampling: Mapping[str, Any],
) -> Written:
    """The prompt and what follows it, as the model reads both."""
    tokenizer, config = reader.tokenizer, getattr(model, "config", None)
    encoded = reader.encode((text,), special=own is None)  # a template writes its own special tokens
    spans = reader.spans((text,), encoded)
    device = next(model.parameters()).device
    given = {"input_ids": torch.tensor([encoded["input_ids"]], device=device)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    both = bool(getattr(config, "is_encoder_decoder", False))
    if continuation is not None:
        ids = _continued(reader, text, encoded["input_ids"], continuation, both)
    else:
        ids = _generated(model, given, most, sampling, both)
    if not ids:
        raise InputError("The model wrote nothing: its first token ends the text. Give a continuation to explain.")
    special = [own is not None and not _within(span, own) for span in spans]
    if both:
        start = getattr(config, "decoder_start_token_id", None)
        inputs = given | {"decoder_input_ids": torch.tensor([[start, *ids[:-1]]], device=device)}
        wrote, places = decoded(tokenizer, [], ids)
        tokens = tuple(map(str, tokenizer.convert_ids_to_tokens([start, *ids[:-1]])))
        shifted = (None, *(Span(a, b) for a, b in places[:-1]))
        origins = {
            "encoder": TextOrigin((text,), tuple(encoded["tokens"]), tuple(spans)),
            "decoder": TextOrigin((wrote,), tokens, shifted),
        }
        return Written(inputs, origins, ids, 0, special)
    whole = torch.tensor([[*encoded["input_ids"], *ids]], device=device)
    if reader.limit is not None and whole.shape[1] > reader.limit:
        raise InputError(
            f"Prompt and continuation have {whole.shape[1]} tokens and the model takes {reader.limit}: shorten one."
        )
    wrote, places = decoded(tokenizer, encoded["input_ids"], ids)
    tokens = (*encoded["tokens"], *map(str, tokenizer.convert_ids_to_tokens(ids)))
    origin = TextOrigin((text, wrote), tokens, (*spans, *(Span(a, b, 1) for a, b in places)))
    inputs = {"input_ids": whole, "attention_mask": torch.ones_like(whole)}
    return Written(inputs, {"text": origin}, ids, len(spans) - 1, [*special, *[False] * len(ids)])


def _generated(model: Any, given: dict[str, Tensor], most: int, sampling: Mapping[str, Any], both: bool) -> list[int]:
    if not hasattr(model, "generate"):
        raise ModelError(
            f"{type(model).__name__} cannot write by itself (it has no `generate`): give the continuation."
        )
    training = model.training
    with torch.no_grad():
        try:
            out = model.eval().generate(**given, **{"max_new_tokens": most, "do_sample": False} | dict(sampling))
        except (ValueError, TypeError, RuntimeError) as error:
            raise ModelError(f"The model could not write: {str(error).splitlines()[0]}") from error
        finally:
            model.train(training)
    return [int(i) for i in out[0, 1 if both else given["input_ids"].shape[1] :]]


def _continued(reader: TextReader, text: str, ids: list[int], continuation: str, both: bool) -> list[int]:
    """The tokens of a continuation: as they stand in the whole text, where the prompt's are the same there."""
    if both:
        return list(reader.encode((continuation,))["input_ids"])
    whole = list(reader.encode((text + continuation,))["input_ids"])
    if whole[: len(ids)] == list(ids):
        return whole[len(ids) :]
    return list(reader.encode((continuation,), special=False)["input_ids"])


def decoded(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """What tokens say after others, and where in it each stands; parts of one character stand at its end."""
    start = len(tokenizer.decode(list(before)))
    so_far = [tokenizer.decode([*before, *ids[:n]])[start:] for n in range(len(ids) + 1)]
    whole = so_far[-1]
    ends = [_common(whole, text) for text in so_far]
    return whole, [(min(a, b), b) for a, b in itertools.pairwise(ends)]


def _common(one: str, other: str) -> int:
    """How long two texts are the same."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _within(span: Span | None, own: list[tuple[int, int]]) -> bool:
    return span is not None and any(span.start < b and a < span.end for a, b in own)


def _attached(e: Explanation, written: Written, i: int, tokenizer: Any) -> Explanation:
    """The explanation of the i-th token, with the text; what comes after it is no part of its input."""
    special, last = e.special.clone(), written.first + i
    if "decoder" not in e.streams:
        special[:, last + 1 :] = True
    marks = torch.tensor(written.special, device=special.device)
    special[:, : len(marks)] |= marks
    said = None if e.prediction is None else str(tokenizer.decode([int(e.prediction[0])]))
    return replace(
        e,
        special=special,
        origins=(dict(written.origins),),
        target_names=(str(tokenizer.decode([written.ids[i]])),),
        prediction_names=() if said is None else (said,),
    )
