"""Deletion and insertion (Petsiuk et al., BMVC 2018, RISE).

The class's probability as the most relevant features are removed (deletion: it should fall), and as they are put into
an empty input (insertion: it should rise). The paper removes pixels by black ones and inserts them into a blurred
picture: with ``baseline="blur"`` both are relative to the blurred one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..case import Case, Flags, Floats
from ..flipping import area, at_least, kept_first, removed_first, spread
from ..measure import Measure, measure


@measure("deletion")
@dataclass(frozen=True)
class Deletion(Measure):
    """The area under the class's probability, the most relevant features removed first.

    Attributes:
        steps: how many times something is removed.
    """

    paper: ClassVar[str] = "Petsiuk et al., BMVC 2018"
    along: ClassVar[str] = "share of features removed"
    higher: ClassVar[bool | None] = False

    steps: int = 20

    def plan(self, case: Case) -> Flags:
        """From all features to none."""
        return removed_first(case, case.scores, at_least(spread(self.steps), len(case.scores)))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The curve."""
        return case.probabilities(logits)[:, case.target]

    def finish(self, mean: Floats) -> Floats:
        """The area under it."""
        return area(spread(self.steps), mean)

    def axis(self) -> Floats:
        """The share of features that are removed, or put in."""
        return spread(self.steps)


@measure("insertion")
@dataclass(frozen=True)
class Insertion(Deletion):
    """The area under the class's probability, the most relevant features put in first."""

    higher: ClassVar[bool | None] = True
    along: ClassVar[str] = "share of features put in"

    def plan(self, case: Case) -> Flags:
        """From no features to all."""
        return kept_first(case, case.scores, at_least(spread(self.steps), len(case.scores)))
