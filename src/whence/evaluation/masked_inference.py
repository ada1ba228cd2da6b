"""Forward passes of one input with features removed."""

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


class MaskedInference:
    """The logits of one input with features removed; each variant is run once.

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
        self._queue: dict[bytes, Flags] = {}
        self._results: dict[bytes, Floats] = {}

    def enqueue(self, removed: Flags) -> None:
        """Queue variants ``[n, features]``; all that are queued are run together."""
        new = {key: row for key, row in zip(_keys(removed), removed, strict=True) if key not in self._results}
        self._queue |= new

    def logits(self, removed: Flags) -> Floats:
        """Return the logits ``[n, classes]`` of variants ``[n, features]``, in double precision."""
        self.enqueue(removed)
        self._run_queue()
        return np.stack([self._results[key] for key in _keys(removed)]) if len(removed) else np.zeros((0, 0))

    def _run_queue(self) -> None:
        queue = list(self._queue.items())
        self._queue = {}
        for start in range(0, len(queue), self.batch_size):
            batch = queue[start : start + self.batch_size]
            logits = self._forward(self.removal.apply(np.stack([row for _, row in batch])))
            self._results |= {key: row for (key, _), row in zip(batch, logits, strict=True)}

    def _forward(self, tensors: dict[str, Any]) -> Floats:
        model = self.explainer.model
        given = self.explainer.placed(tensors)
        with torch.no_grad(), undisturbed(model):
            outputs = model(given[""]) if list(given) == [""] else model(**given)
        found = find_logits(outputs)
        if found is not None and found.dim() == 3:  # logits at every position
            found = found[:, -1 if self.sample.position is None else self.sample.position]
        if found is None or found.dim() != 2:
            raise InputError("The model gives no classes [batch, classes]: what it says of a changed input is unknown.")
        return as_floats(found)


def _keys(removed: Flags) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(removed, axis=-1)]
