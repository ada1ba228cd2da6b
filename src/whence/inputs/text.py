"""Text: a string, or a pair of strings, to tokens, and tokens back to the user's own characters."""

from __future__ import annotations

import contextlib
import inspect
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, ModelError, WhenceWarning
from ..results.input_origin import Span, TextOrigin
from ..results.word_segmentation import words
from .choices import join_choices, with_choices
from .sample import Sample
from .token_output import can_generate, decoder_start_token, is_masked_lm, predicts_tokens

UNSET = 1_000_000  # a tokenizer without a limit has a huge one


class TextReader:
    """A reader of texts, by a HuggingFace tokenizer or anything that is called like one.

    Args:
        tokenizer: called with a string (or two); returns ``input_ids`` and, if it can, ``offset_mapping``.
        model: for its limit of positions.
        truncate: truncate a text that is too long, with a warning; otherwise raise an error.
        limit: how many tokens are read, if that is less than the model takes.

    Attributes:
        limit: how many tokens the model takes; ``None`` if there is no limit.
        vocabulary_size: how many tokens the model knows; ``None`` where it is not known.
        is_masked_lm: whether the model fills in masked tokens, and does not generate.
        fills_masks: whether it may fill in masked tokens: it is a masked language model, or it has a logit for each
            token and does not declare whether it generates.
        decoder_start: the token by which the decoder of an encoder-decoder begins.
    """

    kind = "text"

    def __init__(self, tokenizer: Any, model: nn.Module, truncate: bool = True, limit: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.truncate = truncate
        limits = [most for most in (token_limit(tokenizer, model), limit) if most is not None]
        self.limit = min(limits, default=None)
        self.molecule = bool(getattr(tokenizer, "molecules", False))
        self.arguments = _argument_names(model)
        self.is_masked_lm = is_masked_lm(model, tokenizer)
        self.fills_masks = self.is_masked_lm or (can_generate(model) is None and predicts_tokens(model, tokenizer))
        self.decoder_start = decoder_start_token(model)
        self.vocabulary_size = _vocabulary_size(model)
        self._check_vocabulary()

    def read(self, raw: Any) -> Sample:
        """Read a string, or a pair of strings; truncate it to what the model takes.

        A text with its choices, ``(text, [choice, ...])`` or ``{"text": ..., "choices": [...]}``, is read as one sample
        for a multiple-choice model.
        """
        question = with_choices(raw)
        if question is not None:
            text, choices = question
            return join_choices([self.read((text, choice)) for choice in choices])
        texts = _texts(raw)
        full = self.encode(texts)
        used = full
        if self.limit is not None and len(full["input_ids"]) > self.limit:
            self._over_limit(len(full["input_ids"]))
            used = self.encode(texts, self.limit)
        return self._sample(texts, used, full)

    def read_whole(self, raw: Any) -> Sample:
        """Read a string, or a pair of strings, also if it is longer than the model takes."""
        texts = _texts(raw)
        full = self.encode(texts)
        return self._sample(texts, full, full)

    def _sample(self, texts: tuple[str, ...], used: Mapping[str, Any], full: Mapping[str, Any]) -> Sample:
        """Return the sample of a text, encoded as it is used and in full."""
        origin = self.origin(texts, used, full)
        tensors: dict[str, Tensor] = {
            n: torch.tensor([used[n]]) for n in ("input_ids", "attention_mask", "token_type_ids") if n in used
        }
        tensors.setdefault("attention_mask", torch.ones_like(tensors["input_ids"]))
        if self.arguments is not None:
            tensors = {n: t for n, t in tensors.items() if n in self.arguments or n == "input_ids"}
        pads = self._pads(tensors)
        position = self._mask_position(tensors["input_ids"]) if self.fills_masks else None
        if self.decoder_start is not None:  # the prediction is the first token that an encoder-decoder would generate
            tensors["decoder_input_ids"] = torch.tensor([[self.decoder_start]])
            position = 0
        self._check_ids(tensors["input_ids"])
        alone = getattr(self.tokenizer, "pad_token_id", None) is None
        return Sample(tensors, {"text": origin}, pads, position, alone)

    def _pads(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the padding values by argument; empty where the model does not expect padding on the right."""
        pad = getattr(self.tokenizer, "pad_token_id", None)
        if pad is None or "attention_mask" not in tensors:
            return {}
        if getattr(self.tokenizer, "padding_side", "right") != "right":
            return {}
        kinds = getattr(self.tokenizer, "pad_token_type_id", 0)
        values = {"input_ids": pad, "attention_mask": 0, "token_type_ids": kinds}
        return {name: values[name] for name in tensors}

    def _mask_position(self, ids: Tensor) -> int | None:
        mask = getattr(self.tokenizer, "mask_token_id", None)
        found = (ids[0] == mask).nonzero().flatten().tolist() if mask is not None else []
        return int(found[0]) if found else None

    def encode(self, texts: tuple[str, ...], most: int | None = None, special: bool = True) -> dict[str, Any]:
        """Tokenize a text, or a pair: return lists by name, ``tokens`` and ``parts`` among them.

        Args:
            texts: the text, or both.
            most: tokens, if there is a limit; the rest is truncated.
            special: whether the tokenizer adds its special tokens.
        """
        options: dict[str, Any] = {"return_special_tokens_mask": True, "return_attention_mask": True}
        if not special:
            options["add_special_tokens"] = False
        if getattr(self.tokenizer, "is_fast", False):
            options["return_offsets_mapping"] = True
        cut = {"truncation": True, "max_length": most} if most is not None else {}
        try:
            with _without_length_warning(self.tokenizer):
                encoding = self.tokenizer(*texts, **cut, **options)
        except (UnicodeError, TypeError) as error:
            raise InputError(
                f"The tokenizer cannot read this text ({error}). Remove what is no Unicode text (lone surrogates), "
                "for example with text.encode('utf-8', 'replace').decode()."
            ) from error
        out = {name: list(encoding[name]) for name in encoding}
        ids = out["input_ids"]
        if not ids:
            raise InputError("The tokenizer made no token of this text: there is nothing to explain.")
        tokens = getattr(self.tokenizer, "convert_ids_to_tokens", None)
        out["tokens"] = [str(t) for t in tokens(ids)] if tokens else list(out.get("tokens", map(str, ids)))
        out["parts"] = _parts(encoding, out, len(texts))
        return out

    def origin(self, texts: tuple[str, ...], used: Mapping[str, Any], full: Mapping[str, Any]) -> TextOrigin:
        """Return where each token is in the user's strings, and which characters were truncated."""
        spans = self.spans(texts, used)
        unread: list[Span] = []
        if full is not used:
            every = self.spans(texts, full)
            for part, text in enumerate(texts):
                mine, all_of = ([s for s in x if s is not None and s.part == part] for x in (spans, every))
                if len(mine) < len(all_of) and getattr(self.tokenizer, "truncation_side", "right") == "right":
                    unread.append(Span(max((s.end for s in mine), default=0), len(text), part))
                elif len(mine) < len(all_of):
                    unread.append(Span(0, min((s.start for s in mine), default=len(text)), part))
        return TextOrigin(texts, tuple(used["tokens"]), tuple(spans), tuple(unread), self.molecule)

    def spans(self, texts: tuple[str, ...], encoding: Mapping[str, Any]) -> list[Span | None]:
        """Return where each token is in the user's strings; ``None`` for special tokens."""
        parts = encoding["parts"]
        offsets = encoding.get("offset_mapping")
        if offsets is None:
            return _find_spans(texts, encoding["tokens"], parts, getattr(self.tokenizer, "unk_token", "[UNK]"))
        return [
            None if part is None else Span(int(a), int(b), part) for (a, b), part in zip(offsets, parts, strict=True)
        ]

    def _over_limit(self, length: int) -> None:
        said = f"The text has {length} tokens and the model takes {self.limit}"
        if not self.truncate:
            raise InputError(f"{said}. Shorten it, or allow that the rest is left unread (truncate=True, --truncate).")
        warnings.warn(f"{said}: the rest was not read.", WhenceWarning, stacklevel=2)

    def _check_vocabulary(self) -> None:
        """Raise an error if the tokenizer has far fewer tokens than the model: it is another model's."""
        size = self.vocabulary_size
        if size is not None and hasattr(self.tokenizer, "__len__") and len(self.tokenizer) < size // 2:
            raise self._mismatch()

    def _check_ids(self, ids: Tensor) -> None:
        if self.vocabulary_size is not None and int(ids.max()) >= self.vocabulary_size:
            raise self._mismatch()

    def _mismatch(self) -> ModelError:
        count = len(self.tokenizer) if hasattr(self.tokenizer, "__len__") else "more"
        return ModelError(
            f"The tokenizer knows {count} tokens and the model {self.vocabulary_size}, so the tokenizer seems to be "
            "another model's, and the explanation would be of something that the user did not write. Give the model's "
            "own tokenizer (Explainer(model, processor=tokenizer))."
        )


def _vocabulary_size(model: nn.Module) -> int | None:
    """Return the size of a model's vocabulary; ``None`` where it is not known."""
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)  # type: ignore[operator]  # not every module
    except (AttributeError, NotImplementedError):  # no HuggingFace model, or one of several submodels
        text = getattr(getattr(model, "config", None), "text_config", None)
        return getattr(text, "vocab_size", None)


def _argument_names(model: nn.Module) -> set[str] | None:
    """Return the names of the arguments of a model's forward; ``None`` if it takes any keyword."""
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()) and "input_ids" not in parameters:
        return None
    return set(parameters)


def token_limit(tokenizer: Any, model: nn.Module) -> int | None:
    """Return how many tokens fit, by the tokenizer and the model's table of positions; ``None`` without a limit."""
    longest = getattr(tokenizer, "model_max_length", None)
    limits = [int(longest)] if isinstance(longest, int) and longest < UNSET else []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rsplit(".", 1)[-1] in (
            "position_embeddings",
            "wpe",
            "embed_positions",
        ):
            reserved = int(getattr(module, "offset", 0))  # rows that are not used (BART, OPT)
            reserved = reserved or (0 if module.padding_idx is None else module.padding_idx + 1)
            limits.append(module.num_embeddings - reserved)
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not limits and isinstance(most, int) and most > 0:
        limits.append(most)
    virtual = getattr(getattr(model, "active_peft_config", None), "num_virtual_tokens", 0) or 0  # of a tuned prompt
    return min(limits) - virtual if limits else None


def _texts(raw: Any) -> tuple[str, ...]:
    texts = tuple(raw) if isinstance(raw, tuple | list) else (raw,)
    if not 1 <= len(texts) <= 2 or not all(isinstance(t, str) for t in texts):
        raise InputError(f"A text is a string, or a pair of strings; this is {type(raw).__name__}.")
    for text in texts:
        if not text.strip():
            raise InputError("The text is empty: there is nothing to explain.")
    return texts


def _parts(encoding: Any, out: Mapping[str, Any], count: int) -> list[int | None]:
    """Return which of the user's strings each token belongs to; ``None`` for special tokens."""
    if hasattr(encoding, "sequence_ids"):
        try:
            return list(encoding.sequence_ids(0))
        except ValueError:  # a tokenizer written in Python has no sequence ids
            pass
    special = out.get("special_tokens_mask", [0] * len(out["input_ids"]))
    if count == 1:
        return [None if s else 0 for s in special]
    parts: list[int | None] = []
    part = 0
    for i, s in enumerate(special):
        if s and parts and parts[-1] is not None and part + 1 < count and 0 in special[i:]:
            part += 1  # the separator between the two
        parts.append(None if s else part)
    return parts


def _find_spans(
    texts: tuple[str, ...], tokens: list[str], parts: list[int | None], unknown: str | None
) -> list[Span | None]:
    """Find the characters of each token by searching the text, for a tokenizer without an offset mapping."""
    spans: list[Span | None] = [None] * len(tokens)
    for part, text in enumerate(texts):
        letters = [(c, i) for i, char in enumerate(text) for c in _plain(char)]
        mine = [i for i, p in enumerate(parts) if p == part]
        at = 0
        waiting: list[int] = []  # unknown tokens: they cover the characters between known ones
        for i in mine:
            bare = [] if tokens[i] == unknown else [c for char in _bare(tokens[i]) for c in _plain(char)]
            start = _search(letters, bare, at) if bare else -1
            if start < 0:
                waiting.append(i)
                continue
            end = start + len(bare)
            spans[i] = Span(letters[start][1], letters[end - 1][1] + 1, part)
            _place_unknown(waiting, text, letters[at][1], letters[start][1], part, spans)
            waiting, at = [], end
        _place_unknown(waiting, text, letters[at][1] if at < len(letters) else len(text), len(text), part, spans)
    return spans


def _plain(char: str) -> str:
    """Return a character without case and accents; empty for accents, spaces and control characters."""
    kept = (c for c in unicodedata.normalize("NFD", char.lower()) if unicodedata.category(c) not in ("Mn", "Cc", "Cf"))
    return "".join(c for c in kept if not c.isspace())


def _bare(token: str) -> str:
    """Return a token without the marks by which tokenizers join and separate words."""
    return token.removeprefix("##").removesuffix("</w>").removesuffix("@@").strip("\u2581\u0120 ")


def _search(letters: list[tuple[str, int]], bare: list[str], start: int) -> int:
    """Return where a token's letters occur next, or -1."""
    size = len(bare)
    for at in range(start, len(letters) - size + 1):
        if all(letters[at + k][0] == bare[k] for k in range(size)):
            return at
    return -1


def _place_unknown(waiting: list[int], text: str, low: int, high: int, part: int, spans: list[Span | None]) -> None:
    """Give each unknown token a word between two known tokens; the last gets all that are left."""
    between = [(a + low, b + low) for a, b in words(text[low:high])]
    for k, i in enumerate(waiting):
        if not between:
            spans[i] = Span(high, high, part)
        elif k + 1 == len(waiting):
            spans[i] = Span(between[min(k, len(between) - 1)][0], between[-1][1], part)
        else:
            a, b = between[min(k, len(between) - 1)]
            spans[i] = Span(a, b, part)


@contextlib.contextmanager
def _without_length_warning(tokenizer: Any) -> Iterator[None]:
    """Silence a tokenizer's warning on length, because ours says more; restore it afterwards."""
    before = getattr(tokenizer, "deprecation_warnings", None)
    if not isinstance(before, dict):
        yield
        return
    tokenizer.deprecation_warnings = {**before, "sequence-length-is-longer-than-the-specified-maximum": True}
    try:
        yield
    finally:
        tokenizer.deprecation_warnings = before
