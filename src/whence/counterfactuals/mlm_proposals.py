"""Replacement words proposed by a masked language model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, WhenceWarning
from ..evaluation.case import Floats
from ..explainer.explainer import Explainer
from ..inputs.sample import Sample, batches
from ..results.input_origin import TextOrigin
from ..results.word_segmentation import Word, words
from .budgeted_inference import logits_of
from .edits import Change, texts, was_read

WORDS = 10  # proposed for each place
INSPECTED = 100  # likeliest tokens, some of which are not whole words


class WordProposer:
    """A masked language model that proposes replacements for words of a text.

    Args:
        model: an explainer with a tokenizer, or a directory or id on the hub.
    """

    def __init__(self, model: Explainer | str | Path) -> None:
        self.explainer = model if isinstance(model, Explainer) else Explainer.from_pretrained(model)
        self.tokenizer = getattr(self.explainer.reader, "tokenizer", None)
        self.mask = getattr(self.tokenizer, "mask_token", None)
        if not getattr(self.explainer.reader, "is_masked_lm", False) or self.mask is None:
            raise InputError(
                f"{type(self.explainer.model).__name__} fills in no masked words, so it cannot propose others: give a "
                "masked language model whose tokenizer has a mask token."
            )

    def propose(self, origin: TextOrigin, places: list[Word], batch_size: int) -> list[list[tuple[str, float]]]:
        """Return replacements for each of some words of a text, with their log-probabilities, the likeliest first.

        Each word is masked alone, all others unchanged. A word that the model truncates has no replacements.
        """
        masked = [self._masked(origin, place) for place in places]
        found: list[list[tuple[str, float]]] = [[] for _ in places]
        known = {i: sample for i, sample in enumerate(masked) if sample is not None}
        at = list(known)
        for some in batches(list(known.values()), batch_size):
            chosen = [at[k] for k in some]
            for i, logits in zip(chosen, logits_of(self.explainer, [known[i] for i in chosen]), strict=True):
                found[i] = self._words(known[i], logits, places[i].text)
        return found

    def _masked(self, origin: TextOrigin, place: Word) -> Sample | None:
        """Return the text with one word masked, and the position of the mask; ``None`` if it is truncated."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # truncated words have no proposals
            sample = self.explainer.read(texts(origin, [Change(place, self.mask)]))
        read = sample.origins["text"]
        assert isinstance(read, TextOrigin)
        ids = sample.tensors["input_ids"][0].tolist()
        mask: Any = self.tokenizer.mask_token_id  # type: ignore[union-attr]  # checked when it was made
        start = place.start - was_read(origin, place.part)[0]
        here = [
            i for i, span in enumerate(read.spans)
            if ids[i] == mask and span is not None and span.part == place.part and span.end > start
        ]  # fmt: skip
        return replace(sample, position=here[0]) if here else None

    def _words(self, sample: Sample, logits: Floats, old: str) -> list[tuple[str, float]]:
        """Return the likeliest tokens that are whole words and differ from the masked one."""
        shifted = logits - logits.max()
        logs = shifted - np.log(np.exp(shifted).sum())
        ids = sample.tensors["input_ids"][0].tolist()
        at = sample.position
        assert at is not None
        around = self._count(ids[:at] + ids[at + 1 :])
        out: dict[str, float] = {}
        for token in np.argsort(-logits, kind="stable")[:INSPECTED].tolist():
            new = _cased(str(self._decode([token])).strip(), old)
            whole = new.isalnum() and self._count([*ids[:at], token, *ids[at + 1 :]]) == around + 1
            if whole and new.casefold() != old.casefold():
                out.setdefault(new, float(logs[token]))
            if len(out) == WORDS:
                break
        return list(out.items())

    def _count(self, ids: list[int]) -> int:
        """Return the number of words of a sequence of tokens; subwords of one word count once."""
        return len(words(self._decode(ids)))

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))  # type: ignore[union-attr]  # as above


def _cased(new: str, old: str) -> str:
    """Return a word in the letter case of the word that it replaces."""
    if len(old) > 1 and old.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new
