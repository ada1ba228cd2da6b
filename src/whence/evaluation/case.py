"""One explanation of one input, the argument of a measure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..datasets.item import Item
from ..explanations.explanation import Explanation

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Case:
    """One explanation of one input.

    Attributes:
        item: the input, with its label, mask and rationale, if it has them.
        explanation: of one sample.
        scores: ``[features]``: the score of each feature that can be removed: token, patch or pixel.
        target: the class that was explained.
        label: the index of the true class; ``None`` if it is not known.
        runner_up: the scores for the class with the second largest logit, where a measure needs them.
        randomised: the scores from a model with random weights, where a measure needs them.
        peers: the scores of the other methods for the same input, by their labels, where a measure needs them.
        seed: for ties.
    """

    item: Item
    explanation: Explanation
    scores: Floats
    target: int
    label: int | None = None
    runner_up: Floats | None = None
    randomised: Floats | None = None
    peers: Mapping[str, Floats] = field(default_factory=dict)
    seed: int = 0

    def order(self, keys: Floats) -> npt.NDArray[np.int64]:
        """Return ``[features]``: indices from the largest key to the smallest; ties in a random order per input."""
        drawn = np.random.default_rng(seed_of(self.seed, self.item.id)).permutation(len(keys))
        return np.asarray(drawn[np.argsort(-keys[drawn], kind="stable")], np.int64)

    def probabilities(self, logits: Floats) -> Floats:
        """Return ``[n, classes]``: softmax, or sigmoid for a multi-label model; regression values are unchanged."""
        task = self.explanation.task
        if task == "regression" or logits.shape[-1] == 1:
            return logits
        if task == "multi-label":
            return np.asarray(1 / (1 + np.exp(-logits)))
        return np.asarray(torch.from_numpy(logits).softmax(-1).numpy())

    @property
    def logits(self) -> Floats:
        """``[classes]``: the logits of the whole input."""
        return as_floats(self.explanation.logits[0])


def as_floats(tensor: Any) -> Floats:
    """Return a tensor as an array in double precision."""
    return np.asarray(tensor.detach().double().cpu().numpy())


def seed_of(seed: int, name: str) -> int:
    """Return a seed that depends on the name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")
