"""Positive and negative perturbation (Chefer et al., CVPR 2021).

10 % to 90 % of the features are removed, the most relevant first (positive) or the least relevant first (negative), and
the model's accuracy is measured: with a good explanation it falls at once, or stays to the end. Which class is
explained, the predicted or the true one, is the ``target`` of :func:`whence.evaluate`; accuracy is always by the label.
The published code replaces pixels (``unit="pixel"``) by black, rounds down, and has no code for the area; here it is by
the trapezoidal rule over the nine steps, so a model that is always right has 0.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Flags, Floats
from ..feature_flipping import area, removed_first
from ..measure import Measure, measure

STEPS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])


@measure("positive-perturbation")
@dataclass(frozen=True)
class PositivePerturbation(Measure):
    """The area under the accuracy, the most relevant features removed first."""

    paper: ClassVar[str] = "Chefer et al., CVPR 2021"
    along: ClassVar[str] = "share of features removed"
    higher: ClassVar[bool | None] = False
    needs: ClassVar[frozenset[str]] = frozenset({"label"})
    sign: ClassVar[int] = 1

    def plan(self, case: Case) -> Flags:
        """Return flags of nine steps."""
        return removed_first(case, self.sign * case.scores, [int(len(case.scores) * step) for step in STEPS])

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return whether the prediction is correct at each step."""
        return np.asarray(logits.argmax(-1) == case.label, float)

    def finish(self, mean: Floats) -> Floats:
        """Return the area under the accuracy."""
        return area(STEPS, mean)

    def axis(self) -> Floats:
        """Return the shares of removed features."""
        return STEPS


@measure("negative-perturbation")
@dataclass(frozen=True)
class NegativePerturbation(PositivePerturbation):
    """The area under the accuracy, the least relevant features removed first."""

    higher: ClassVar[bool | None] = True
    sign: ClassVar[int] = -1
