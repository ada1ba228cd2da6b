"""Whether an explanation is of its model: how alike it is to that of a model with random weights."""

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
    """The rank correlation of the map with that of the same model whose weights were shuffled, without its sign.

    Every weight matrix, embedding and bias is shuffled within itself, so that the model has learned nothing but has
    weights of the same sizes. A method whose maps stay the same does not explain what was learned.
    """

    paper: ClassVar[str] = "Adebayo et al., NeurIPS 2018"
    higher: ClassVar[bool | None] = False
    needs: ClassVar[frozenset[str]] = frozenset({"randomised"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """From 0 to 1."""
        assert case.randomised is not None
        return np.array([abs(rank_correlation(case.scores, case.randomised))])
