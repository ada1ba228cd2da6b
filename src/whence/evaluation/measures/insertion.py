"""Deletion and insertion (Petsiuk et al., BMVC 2018, RISE).

The class's probability as the most relevant features are removed (deletion: it should fall), and as they are inserted
into an empty input (insertion: it should rise). The paper replaces removed pixels by black and inserts them into a
blurred image: with ``baseline="blur"`` both are relative to the blurred one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..case import Case, Flags
from ..feature_flipping import Curve, kept_first, removed_first
from ..measure import measure


@measure("deletion")
@dataclass(frozen=True)
class Deletion(Curve):
    """The area under the class's probability, the most relevant features removed first."""

    paper: ClassVar[str] = "Petsiuk et al., BMVC 2018"
    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features removed"

    def plan(self, case: Case) -> Flags:
        """Return flags from no features removed to all."""
        return removed_first(case, case.scores, self.counts(case))


@measure("insertion")
@dataclass(frozen=True)
class Insertion(Curve):
    """The area under the class's probability, the most relevant features inserted first."""

    paper: ClassVar[str] = "Petsiuk et al., BMVC 2018"
    along: ClassVar[str] = "share of features put in"

    def plan(self, case: Case) -> Flags:
        """Return flags from all features removed to none."""
        return kept_first(case, case.scores, self.counts(case))
