"""Class sensitivity: do explanations of the two most probable classes differ?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Floats
from ..correlation import rank_correlation
from ..measure import Measure, measure


@measure("class-sensitivity")
@dataclass(frozen=True)
class ClassSensitivity(Measure):
    """1 minus the rank correlation of the map with that of the class with the second largest logit.

    0: the method does not depend on the class; 1: the maps are unrelated; 2: they are opposite.
    """

    paper: ClassVar[str] = "after Rebuffi et al., CVPR 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"runner-up"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the value, from 0 to 2."""
        assert case.runner_up is not None
        return np.array([1 - rank_correlation(case.scores, case.runner_up)])
