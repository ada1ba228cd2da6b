"""Activation and pruning curves (Ali et al., ICML 2022).

Activation: starting from an input without features, the most relevant are inserted first; the earlier the class's
probability is restored, the larger the area (AUAC). Pruning: the features with the smallest ``|R|`` are removed first;
the less the logits change, the smaller the area under their squared change, summed over classes (AU-MSE).

The published code takes eleven fractions, rounds the number of features up, and counts [CLS] and [SEP] among them
(``special=True`` of :func:`whence.evaluate`); the area is by the trapezoidal rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Flags, Floats
from ..feature_flipping import Curve, kept_first, removed_first
from ..measure import measure


@measure("auac")
@dataclass(frozen=True)
class Activation(Curve):
    """The area under the activation curve: the class's probability as the most relevant features are inserted first.

    Attributes:
        steps: the number of insertions.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    along: ClassVar[str] = "share of features put in"

    steps: int = 10

    def plan(self, case: Case) -> Flags:
        """Return flags from all features removed to none."""
        return kept_first(case, case.scores, self.counts(case))


@measure("au-mse")
@dataclass(frozen=True)
class Pruning(Curve):
    """The area under the pruning curve: how much the logits change as features with the smallest ``|R|`` are removed.

    Attributes:
        steps: the number of removals.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features removed"

    steps: int = 10

    def plan(self, case: Case) -> Flags:
        """Return flags from no features removed to all."""
        return removed_first(case, -np.abs(case.scores), self.counts(case))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the squared change of the logits, summed over classes, at each step."""
        return np.asarray(((logits - case.logits) ** 2).sum(-1))
