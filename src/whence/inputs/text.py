"""Text: a string, or a pair of strings, to tokens; tokens back to the user's own characters."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, ModelError, WhenceWarning
from ..origin import Span, TextOrigin
from .sample import Sample

UNSET = 1_000_000  # a tokenizer that knows no limit gives a huge one


class TextReader:
    """Reads text with a HuggingFace tokenizer, or anything that is called like one.

    Args:
        tokenizer: called with a string (or two); returns ``input_ids`` and, if it can, ``offset_mapping``.
        model: for its limit of positions.
        truncate: read the beginning of a text that is too long, and say so; otherwise refuse it.
    """

    kind = "text"

    def __init__(self, tokenizer: Any, model: nn.Module, truncate: bool = True) -> None:
        self.tokenizer = tokenizer
        self.truncate = truncate
        self.limit = limit(tokenizer, model)
        self.molecule = bool(getattr(tokenizer, "molecules", False))
        self.takes = _arguments(model)
        writes = type(model).__name__.endswith("ForConditionalGeneration")
        self.start = getattr(getattr(model, "config", None), "decoder_start_token_id", None) if writes else None
        self._check_vocabulary(model)

    def read(self, raw: Any) -> Sample:
        """A string, or a pair of strings."""
        texts = _texts(raw)
        full = self._encode(texts, None)
        used = full
        if self.limit is not None and len(full["input_ids"]) > self.limit:
            self._over_limit(len(full["input_ids"]))
            used = self._encode(texts, self.limit)
        origin = self.origin(texts, used, full)
        tensors: dict[str, Tensor] = {
            n: torch.tensor([used[n]]) for n in ("input_ids", "attention_mask", "token_type_ids") if n in used
        }
        tensors.setdefault("attention_mask", torch.ones_like(tensors["input_ids"]))
        tensors = {n: t for n, t in tensors.items() if self.takes is None or n in self.takes or n == "input_ids"}
        pads = self._pads(tensors)
        position = self._mask_position(tensors["input_ids"])
        if self.start is not None:  # the first token that an encoder-decoder would write
            tensors["decoder_input_ids"], position = torch.tensor([[self.start]]), 0
        return Sample(tensors, {"text": origin}, pads, position)

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

    def _encode(self, texts: tuple[str, ...], most: int | None) -> dict[str, Any]:
        options: dict[str, Any] = {"return_special_tokens_mask": True, "return_attention_mask": True}
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
        spans = self._spans(texts, used)
        unread: list[Span] = []
        if full is not used:
            every = self._spans(texts, full)
            for part, text in enumerate(texts):
                mine, all_of = ([s for s in x if s is not None and s.part == part] for x in (spans, every))
                if len(mine) < len(all_of) and getattr(self.tokenizer, "truncation_side", "right") == "right":
                    unread.append(Span(max((s.end for s in mine), default=0), len(text), part))
                elif len(mine) < len(all_of):
                    unread.append(Span(0, min((s.start for s in mine), default=len(text)), part))
        return TextOrigin(texts, tuple(used["tokens"]), tuple(spans), tuple(unread), self.molecule)

    def _spans(self, texts: tuple[str, ...], encoding: Mapping[str, Any]) -> list[Span | None]:
        parts = encoding["parts"]
        offsets = encoding.get("offset_mapping")
        if offsets is None:
            return _find(texts, encoding["tokens"], parts)
        return [
            None if part is None else Span(int(a), int(b), part) for (a, b), part in zip(offsets, parts, strict=True)
        ]

    def _over_limit(self, length: int) -> None:
        said = f"The text has {length} tokens and the model takes {self.limit}"
        if not self.truncate:
            raise InputError(f"{said}. Shorten it, or allow that the rest is left unread (truncate=True, --truncate).")
        warnings.warn(f"{said}: the rest was not read.", WhenceWarning, stacklevel=2)

    def _check_vocabulary(self, model: nn.Module) -> None:
        known = getattr(getattr(model, "config", None), "vocab_size", None)
        size = len(self.tokenizer) if hasattr(self.tokenizer, "__len__") else None
        if not isinstance(known, int) or size is None:
            return
        if size < known // 2:
            raise ModelError(
                f"The tokenizer knows {size} tokens and the model {known}: they do not belong together, and the "
                "explanation would be of something that the user did not write. Give the model's own tokenizer "
                "(Explainer(model, processor=tokenizer))."
            )


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
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            limits.append(module.num_embeddings - reserved)
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not limits and isinstance(most, int) and most > 0:
        limits.append(most)
    return min(limits, default=None)


def _texts(raw: Any) -> tuple[str, ...]:
    texts = (raw,) if isinstance(raw, str) else tuple(raw)
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


def _find(texts: tuple[str, ...], tokens: list[str], parts: list[int | None]) -> list[Span | None]:
    """The place of each token of a tokenizer that does not say, by reading along."""
    at = [0] * len(texts)
    lowered = [t.lower() for t in texts]
    lowered = [low if len(low) == len(t) else t for low, t in zip(lowered, texts, strict=True)]
    spans: list[Span | None] = []
    for token, part in zip(tokens, parts, strict=True):
        if part is None:
            spans.append(None)
            continue
        text = texts[part]
        bare = token.removeprefix("##").removesuffix("</w>").removesuffix("@@").strip("▁Ġ ")
        start = text.find(bare, at[part]) if bare else at[part]
        start = lowered[part].find(bare.lower(), at[part]) if start < 0 else start
        if start < 0 or text[at[part] : start].strip():  # unknown: it stands for the next word that is left
            start = at[part] + len(text[at[part] :]) - len(text[at[part] :].lstrip())
            end = start + len(text[start:].split(maxsplit=1)[0]) if text[start:].strip() else start
        else:
            end = start + len(bare)
        spans.append(Span(start, end, part))
        at[part] = end
    return spans


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
