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
from ..feature_flipping import Curve, kept_first, removed_first
from ..measure import measure


@measure("auac")
@dataclass(frozen=True)
class Activation(Curve):
    """The area under the activation curve: the class's probability as the most relevant features are put in first.

    Attributes:
        steps: how many times something is put in.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    along: ClassVar[str] = "share of features put in"

    steps: int = 10

    def plan(self, case: Case) -> Flags:
        """All features removed at first, none in the end."""
        return kept_first(case, case.scores, self.counts(case))


@measure("au-mse")
@dataclass(frozen=True)
class Pruning(Curve):
    """The area under the pruning curve: how much the logits move as features of the smallest ``|R|`` are removed.

    Attributes:
        steps: how many times something is removed.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features removed"

    steps: int = 10

    def plan(self, case: Case) -> Flags:
        """None removed at first, all in the end."""
        return removed_first(case, -np.abs(case.scores), self.counts(case))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The squared change, summed over classes, at each step."""
        return np.asarray(((logits - case.logits) ** 2).sum(-1))
