"""Text: a string, or a pair of strings, to tokens; tokens back to the user's own characters."""

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
from .sample import Sample
from .token_output import answers_in_tokens, can_write, fills, first_step

UNSET = 1_000_000  # a tokenizer that knows no limit gives a huge one


class TextReader:
    """Reads text with a HuggingFace tokenizer, or anything that is called like one.

    Args:
        tokenizer: called with a string (or two); returns ``input_ids`` and, if it can, ``offset_mapping``.
        model: for its limit of positions.
        truncate: read the beginning of a text that is too long, and say so; otherwise refuse it.

    Attributes:
        fills: whether the model guesses tokens, and does not write.
        guesses: whether it may: it has a score for each token, and does not say that it writes.
        start: the token by which an encoder-decoder begins to write.
    """

    kind = "text"

    def __init__(self, tokenizer: Any, model: nn.Module, truncate: bool = True) -> None:
        self.tokenizer = tokenizer
        self.truncate = truncate
        self.limit = limit(tokenizer, model)
        self.molecule = bool(getattr(tokenizer, "molecules", False))
        self.takes = _arguments(model)
        self.fills = fills(model, tokenizer)
        self.guesses = self.fills or (can_write(model) is None and answers_in_tokens(model, tokenizer))
        self.start = first_step(model)
        self._check_vocabulary(model)

    def read(self, raw: Any) -> Sample:
        """A string, or a pair of strings."""
        texts = _texts(raw)
        full = self.encode(texts)
        used = full
        if self.limit is not None and len(full["input_ids"]) > self.limit:
            self._over_limit(len(full["input_ids"]))
            used = self.encode(texts, self.limit)
        origin = self.origin(texts, used, full)
        tensors: dict[str, Tensor] = {
            n: torch.tensor([used[n]]) for n in ("input_ids", "attention_mask", "token_type_ids") if n in used
        }
        tensors.setdefault("attention_mask", torch.ones_like(tensors["input_ids"]))
        tensors = {n: t for n, t in tensors.items() if self.takes is None or n in self.takes or n == "input_ids"}
        pads = self._pads(tensors)
        position = self._mask_position(tensors["input_ids"]) if self.guesses else None
        if self.start is not None:  # the first token that an encoder-decoder would write
            tensors["decoder_input_ids"], position = torch.tensor([[self.start]]), 0
        self._check_ids(tensors["input_ids"])
        return Sample(
            tensors, {"text": origin}, pads, position, alone=getattr(self.tokenizer, "pad_token_id", None) is None
        )

    def _pads(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """What fills shorter samples; nothing where padding on the right is not what the model expects."""
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
        """What the tokenizer makes of a text, or a pair: lists by name, ``tokens`` and ``parts`` among them.

        Args:
            texts: the text, or both.
            most: tokens, if there is a limit; the rest is cut off.
            special: whether the tokenizer adds its special tokens.
        """
        options: dict[str, Any] = {"return_special_tokens_mask": True, "return_attention_mask": True}
        if not special:
            options["add_special_tokens"] = False
        if getattr(self.tokenizer, "is_fast", False):
            options["return_offsets_mapping"] = True
        cut = {"truncation": True, "max_length": most} if most is not None else {}
        try:
            with _quiet(self.tokenizer):
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
        """Where each token stands in the user's strings, and what was left unread."""
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
        """Where each token stands in the user's strings; ``None`` for those that the user did not write."""
        parts = encoding["parts"]
        offsets = encoding.get("offset_mapping")
        if offsets is None:
            return _find(texts, encoding["tokens"], parts, getattr(self.tokenizer, "unk_token", "[UNK]"))
        return [
            None if part is None else Span(int(a), int(b), part) for (a, b), part in zip(offsets, parts, strict=True)
        ]

    def _over_limit(self, length: int) -> None:
        said = f"The text has {length} tokens and the model takes {self.limit}"
        if not self.truncate:
            raise InputError(f"{said}. Shorten it, or allow that the rest is left unread (truncate=True, --truncate).")
        warnings.warn(f"{said}: the rest was not read.", WhenceWarning, stacklevel=2)

    def _check_vocabulary(self, model: nn.Module) -> None:
        """A tokenizer that knows far fewer tokens than the model is another model's."""
        self.known = _vocabulary(model)
        if self.known is not None and hasattr(self.tokenizer, "__len__") and len(self.tokenizer) < self.known // 2:
            raise self._stranger()

    def _check_ids(self, ids: Tensor) -> None:
        if self.known is not None and int(ids.max()) >= self.known:
            raise self._stranger()

    def _stranger(self) -> ModelError:
        count = len(self.tokenizer) if hasattr(self.tokenizer, "__len__") else "more"
        return ModelError(
            f"The tokenizer knows {count} tokens and the model {self.known}: they do not belong together, and the "
            "explanation would be of something that the user did not write. Give the model's own tokenizer "
            "(Explainer(model, processor=tokenizer))."
        )


def _vocabulary(model: nn.Module) -> int | None:
    """How many tokens a model knows, if it says."""
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)  # type: ignore[operator]  # not every module
    except (AttributeError, NotImplementedError):  # no HuggingFace model, or one of several parts
        text = getattr(getattr(model, "config", None), "text_config", None)
        return getattr(text, "vocab_size", None)


def _arguments(model: nn.Module) -> set[str] | None:
    """What a model's forward takes; ``None`` if it takes anything."""
    parameters = inspect.signature(model.forward).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()) and "input_ids" not in parameters:
        return None
    return set(parameters)


def limit(tokenizer: Any, model: nn.Module) -> int | None:
    """How many tokens fit: what the tokenizer says, or the model's table of positions."""
    said = getattr(tokenizer, "model_max_length", None)
    limits = [int(said)] if isinstance(said, int) and said < UNSET else []
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
    return min(limits, default=None)


def _texts(raw: Any) -> tuple[str, ...]:
    texts = tuple(raw) if isinstance(raw, tuple | list) else (raw,)
    if not 1 <= len(texts) <= 2 or not all(isinstance(t, str) for t in texts):
        raise InputError(f"A text is a string, or a pair of strings; this is {type(raw).__name__}.")
    for text in texts:
        if not text.strip():
            raise InputError("The text is empty: there is nothing to explain.")
    return texts


def _parts(encoding: Any, out: Mapping[str, Any], count: int) -> list[int | None]:
    """Which of the user's strings each token is of; ``None`` for tokens that the user did not write."""
    if hasattr(encoding, "sequence_ids"):
        try:
            return list(encoding.sequence_ids(0))
        except ValueError:  # a tokenizer written in Python does not know
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


def _find(texts: tuple[str, ...], tokens: list[str], parts: list[int | None], unknown: str | None) -> list[Span | None]:
    """The place of each token of a tokenizer that does not say, by reading along."""
    spans: list[Span | None] = [None] * len(tokens)
    for part, text in enumerate(texts):
        letters = [(c, i) for i, char in enumerate(text) for c in _plain(char)]
        mine = [i for i, p in enumerate(parts) if p == part]
        at = 0
        waiting: list[int] = []  # unknown tokens: they stand for what is left out between known ones
        for i in mine:
            bare = [] if tokens[i] == unknown else [c for char in _bare(tokens[i]) for c in _plain(char)]
            start = _search(letters, bare, at) if bare else -1
            if start < 0:
                waiting.append(i)
                continue
            end = start + len(bare)
            spans[i] = Span(letters[start][1], letters[end - 1][1] + 1, part)
            _share_out(waiting, text, letters[at][1], letters[start][1], part, spans)
            waiting, at = [], end
        _share_out(waiting, text, letters[at][1] if at < len(letters) else len(text), len(text), part, spans)
    return spans


def _plain(char: str) -> str:
    """A character without case and accents; nothing for accents, spaces and controls."""
    kept = (c for c in unicodedata.normalize("NFD", char.lower()) if unicodedata.category(c) not in ("Mn", "Cc", "Cf"))
    return "".join(c for c in kept if not c.isspace())


def _bare(token: str) -> str:
    """A token without the marks by which tokenizers join and separate."""
    return token.removeprefix("##").removesuffix("</w>").removesuffix("@@").strip("\u2581\u0120 ")


def _search(letters: list[tuple[str, int]], bare: list[str], start: int) -> int:
    """Where a token's letters stand next, or -1."""
    size = len(bare)
    for at in range(start, len(letters) - size + 1):
        if all(letters[at + k][0] == bare[k] for k in range(size)):
            return at
    return -1


def _share_out(waiting: list[int], text: str, low: int, high: int, part: int, spans: list[Span | None]) -> None:
    """Unknown tokens get the words between two known ones, the last of them what is left."""
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
def _quiet(tokenizer: Any) -> Iterator[None]:
    """Silence a tokenizer's own remark on length: ours says more."""
    before = getattr(tokenizer, "deprecation_warnings", None)
    if not isinstance(before, dict):
        yield
        return
    tokenizer.deprecation_warnings = {**before, "sequence-length-is-longer-than-the-specified-maximum": True}
    try:
        yield
    finally:
        tokenizer.deprecation_warnings = before
