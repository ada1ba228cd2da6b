"""Comprehensiveness and sufficiency (DeYoung et al., ACL 2020, ERASER).

How much of the class's probability goes when the most relevant features are removed (comprehensiveness: much is good),
and how much when all others are (sufficiency: little is good), as the mean over 1, 5, 10, 20 and 50 % of the features.
ERASER takes tokens out of the text; here they are replaced (``baseline="hide"`` comes nearest to taking them out).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Flags, Floats
from ..feature_flipping import at_least, kept_first, removed_first
from ..measure import Measure, measure

SHARES = np.array([0.01, 0.05, 0.1, 0.2, 0.5])


@measure("comprehensiveness")
@dataclass(frozen=True)
class Comprehensiveness(Measure):
    """How much probability goes with the most relevant features."""

    paper: ClassVar[str] = "DeYoung et al., ACL 2020"
    along: ClassVar[str] = "share of features removed"

    def plan(self, case: Case) -> Flags:
        """The most relevant removed."""
        return removed_first(case, case.scores, at_least(SHARES, len(case.scores)))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The loss of probability at each share."""
        whole = case.probabilities(case.logits[None])[0, case.target]
        return np.asarray(whole - case.probabilities(logits)[:, case.target])

    def finish(self, mean: Floats) -> Floats:
        """The mean over shares."""
        return np.asarray(mean.mean(-1))

    def axis(self) -> Floats:
        """The shares."""
        return SHARES


@measure("sufficiency")
@dataclass(frozen=True)
class Sufficiency(Comprehensiveness):
    """How much probability goes when the most relevant features are all that is left."""

    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features left"

    def plan(self, case: Case) -> Flags:
        """All but the most relevant removed."""
        return kept_first(case, case.scores, at_least(SHARES, len(case.scores)))
