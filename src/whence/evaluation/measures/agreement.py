"""Agreement of a method with the others in the same evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Floats
from ..correlation import rank_correlation
from ..measure import Measure, measure


@measure("agreement")
@dataclass(frozen=True)
class Agreement(Measure):
    """The mean rank correlation with the other methods' maps of the same input; the vector has one entry for each."""

    higher: ClassVar[bool | None] = None
    needs: ClassVar[frozenset[str]] = frozenset({"peers"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return one correlation for each other method, in the order of the methods."""
        return np.array([rank_correlation(case.scores, other) for other in case.peers.values()])

    def finish(self, mean: Floats) -> Floats:
        """Return their mean."""
        return np.asarray(mean.mean(-1))
