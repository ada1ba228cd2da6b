"""Comprehensiveness and sufficiency (DeYoung et al., ACL 2020, ERASER).

The drop of the class's probability when the most relevant features are removed (comprehensiveness: higher is better),
and when all others are (sufficiency: lower is better), as the mean over 1, 5, 10, 20 and 50 % of the features. ERASER
deletes tokens from the text; here they are replaced (``baseline="hide"`` comes closest to deleting them).
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
    """The drop of probability when the most relevant features are removed."""

    paper: ClassVar[str] = "DeYoung et al., ACL 2020"
    along: ClassVar[str] = "share of features removed"

    def plan(self, case: Case) -> Flags:
        """Return flags of the most relevant features."""
        return removed_first(case, case.scores, at_least(SHARES, len(case.scores)))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the drop of probability at each share."""
        whole = case.probabilities(case.logits[None])[0, case.target]
        return np.asarray(whole - case.probabilities(logits)[:, case.target])

    def finish(self, mean: Floats) -> Floats:
        """Return the mean over shares."""
        return np.asarray(mean.mean(-1))

    def axis(self) -> Floats:
        """Return the shares."""
        return SHARES


@measure("sufficiency")
@dataclass(frozen=True)
class Sufficiency(Comprehensiveness):
    """The drop of probability when only the most relevant features are kept."""

    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features left"

    def plan(self, case: Case) -> Flags:
        """Return flags of all but the most relevant features."""
        return kept_first(case, case.scores, at_least(SHARES, len(case.scores)))
