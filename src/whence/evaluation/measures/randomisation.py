"""Sanity check by randomised weights: does the explanation depend on what the model learned?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Floats
from ..correlation import rank_correlation
from ..measure import Measure, measure


@measure("randomisation")
@dataclass(frozen=True)
class Randomisation(Measure):
    """The absolute rank correlation of the map with that of the same model with shuffled weights.

    Every weight matrix, embedding and bias is shuffled within itself, so the model has learned nothing but its weights
    have the same distribution. A method whose maps stay the same does not explain what was learned.
    """

    paper: ClassVar[str] = "Adebayo et al., NeurIPS 2018"
    higher: ClassVar[bool | None] = False
    needs: ClassVar[frozenset[str]] = frozenset({"randomised"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the correlation, from 0 to 1."""
        assert case.randomised is not None
        return np.array([abs(rank_correlation(case.scores, case.randomised))])
