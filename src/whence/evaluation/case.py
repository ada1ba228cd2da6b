"""One explanation of one input, as a measure sees it."""

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


@dataclass
class Case:
    """One explanation of one input.

    Attributes:
        item: the input, with what is known of it (label, mask, rationale).
        explanation: of one sample.
        scores: ``[features]``: the score of each feature that can be removed: token, patch or pixel.
        target: the class that was explained.
        label: the class that is right, as the model counts classes; ``None`` if it is not known.
        runner_up: the same for the class that the model found second best, where a measure asks for it.
        randomised: the same from a model with random weights, where a measure asks for it.
        peers: the scores of the other methods for the same input, by their labels, where a measure asks for them.
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
        """``[features]``: from the largest key to the smallest; equal ones in an order drawn for this input."""
        drawn = np.random.default_rng(seed_of(self.seed, self.item.id)).permutation(len(keys))
        return np.asarray(drawn[np.argsort(-keys[drawn], kind="stable")], np.int64)

    def probabilities(self, logits: Floats) -> Floats:
        """``[n, classes]``: softmax, or sigmoid of a multi-label model; values of a regression as they are."""
        task = self.explanation.task
        if task == "regression" or logits.shape[-1] == 1:
            return logits
        if task == "multi-label":
            return np.asarray(1 / (1 + np.exp(-logits)))
        return np.asarray(torch.from_numpy(logits).softmax(-1).numpy())

    @property
    def logits(self) -> Floats:
        """``[classes]``: what the model says of the whole input."""
        return as_floats(self.explanation.logits[0])


def as_floats(tensor: Any) -> Floats:
    """A tensor as an array in double precision."""
    return np.asarray(tensor.detach().double().cpu().numpy())


def seed_of(seed: int, name: str) -> int:
    """A seed of its own for each name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")
