"""Activation and pruning curves (Ali et al., ICML 2022).

Activation: of an input without any feature, the most relevant are put in first; the more of the class's probability
returns early, the larger the area (AUAC). Pruning: the features of the smallest ``|R|`` are removed first; the less the
logits move, the smaller the area under their squared change, summed over classes (AU-MSE).

The published code takes eleven fractions, rounds the number of features up, and counts [CLS] and [SEP] among them
(``special=True`` of :func:`whence.evaluate`); the area is by trapezoids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Flags, Floats
from ..flipping import area, at_least, kept_first, removed_first, spread
from ..measure import Measure, measure


@measure("auac")
@dataclass(frozen=True)
class Activation(Measure):
    """The area under the activation curve: the class's probability as the most relevant features are put in first.

    Attributes:
        steps: how many times something is put in.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    along: ClassVar[str] = "share of features put in"

    steps: int = 10

    def plan(self, case: Case) -> Flags:
        """All features removed at first, none in the end."""
        return kept_first(case, case.scores, at_least(spread(self.steps), len(case.scores)))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The curve."""
        return case.probabilities(logits)[:, case.target]

    def finish(self, mean: Floats) -> Floats:
        """The area under it."""
        return area(spread(self.steps), mean)

    def axis(self) -> Floats:
        """The share of features that are there."""
        return spread(self.steps)


@measure("au-mse")
@dataclass(frozen=True)
class Pruning(Activation):
    """The area under the pruning curve: how much the logits move as features of the smallest ``|R|`` are removed."""

    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features removed"

    def plan(self, case: Case) -> Flags:
        """None removed at first, all in the end."""
        return removed_first(case, -np.abs(case.scores), at_least(spread(self.steps), len(case.scores)))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The curve."""
        return np.asarray(((logits - case.logits) ** 2).sum(-1))
