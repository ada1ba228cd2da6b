"""Asking a model about one input with features removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..inputs.sample import Sample
from ..targets.seed import find_logits
from ..tracing.eval_mode import undisturbed
from .case import Flags, Floats, as_floats
from .feature_removal import Removal


class Questions:
    """What a model says of one input with features removed; of each variant it is asked once.

    Args:
        explainer: holds the model.
        sample: the input.
        removal: how features are removed from it.
        batch_size: how many variants are run together.
    """

    def __init__(self, explainer: Explainer, sample: Sample, removal: Removal, batch_size: int) -> None:
        self.explainer = explainer
        self.sample = sample
        self.removal = removal
        self.batch_size = batch_size
        self._waiting: dict[bytes, Flags] = {}
        self._said: dict[bytes, Floats] = {}

    def add(self, removed: Flags) -> None:
        """Variants that will be asked about, ``[n, features]``: all that are added are run together."""
        self._waiting |= {key: row for key, row in zip(_keys(removed), removed, strict=True) if key not in self._said}

    def answers(self, removed: Flags) -> Floats:
        """``[n, classes]``: the logits of variants, in double precision."""
        self.add(removed)
        self._run()
        return np.stack([self._said[key] for key in _keys(removed)]) if len(removed) else np.zeros((0, 0))

    def _run(self) -> None:
        waiting, self._waiting = list(self._waiting.items()), {}
        for start in range(0, len(waiting), self.batch_size):
            part = waiting[start : start + self.batch_size]
            logits = self._logits(self.removal.apply(np.stack([row for _, row in part])))
            self._said |= {key: row for (key, _), row in zip(part, logits, strict=True)}

    def _logits(self, tensors: dict[str, Any]) -> Floats:
        model, given = self.explainer.model, self.explainer.placed(tensors)
        with torch.no_grad(), undisturbed(model):
            outputs = model(given[""]) if list(given) == [""] else model(**given)
        found = find_logits(outputs)
        if found is not None and found.dim() == 3:  # an answer at every position
            found = found[:, -1 if self.sample.position is None else self.sample.position]
        if found is None or found.dim() != 2:
            raise InputError("The model gives no classes [batch, classes]: what it says of a changed input is unknown.")
        return as_floats(found)


def _keys(removed: Flags) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(removed, axis=-1)]
