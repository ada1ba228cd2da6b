"""Most relevant first, least relevant first, and the area between the two curves.

Samek et al. 2017 remove regions in the order of their relevance (MoRF) and in the reverse one (LeRF). The area between
the curves (ABPC; Blücher et al. 2024) is what AttnLRP reports, of the explained class's logit; ResLRP's symmetric
relevance gain (SRG) is the same of the true class's logit, with patches replaced by a mean. Areas are over shares from
0 to 1, so they do not depend on the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Flags, Floats
from ..feature_flipping import Curve, removed_first
from ..measure import measure


@measure("morf")
@dataclass(frozen=True)
class MostRelevantFirst(Curve):
    """The area under the class's logit, the most relevant features removed first.

    Attributes:
        steps: the number of removals.
        probability: use the class's probability, not its logit.
    """

    paper: ClassVar[str] = "Samek et al., 2017"
    higher: ClassVar[bool | None] = False
    along: ClassVar[str] = "share of features removed"
    signs: ClassVar[tuple[int, ...]] = (1,)

    probability: bool = False

    def plan(self, case: Case) -> Flags:
        """Return flags from no features removed to all, once for each order."""
        orders = [removed_first(case, sign * case.scores, self.counts(case)) for sign in self.signs]
        return np.concatenate(orders)

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the curve; for two orders, the second minus the first."""
        outputs = case.probabilities(logits) if self.probability else logits
        curves = outputs[:, self.class_of(case)].reshape(len(self.signs), -1)
        return np.asarray(curves[-1] - (curves[0] if len(curves) > 1 else 0.0))

    def class_of(self, case: Case) -> int:
        """Return the class of the curve."""
        return case.target


@measure("lerf")
@dataclass(frozen=True)
class LeastRelevantFirst(MostRelevantFirst):
    """The area under the class's logit, the least relevant features removed first."""

    higher: ClassVar[bool | None] = True
    signs: ClassVar[tuple[int, ...]] = (-1,)


@measure("abpc")
@dataclass(frozen=True)
class AreaBetween(MostRelevantFirst):
    """The area between the curves: least relevant first minus most relevant first."""

    paper: ClassVar[str] = "Blücher et al., 2024; as in AttnLRP (Achtibat et al., ICML 2024)"
    higher: ClassVar[bool | None] = True
    signs: ClassVar[tuple[int, ...]] = (1, -1)


@measure("srg")
@dataclass(frozen=True)
class SymmetricRelevanceGain(AreaBetween):
    """The area between the curves of the true class's logit."""

    paper: ClassVar[str] = "Blücher et al., 2024; as in ResLRP"
    needs: ClassVar[frozenset[str]] = frozenset({"label"})

    def class_of(self, case: Case) -> int:
        """Return the true class."""
        assert case.label is not None
        return case.label
