"""Whether an explanation is of its class: how alike those of the two best classes are."""

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
    """1 minus the rank correlation of the map with that of the class that the model found second best.

    0 says that the method does not see which class it explains; 1, that the maps are unrelated; 2, opposite.
    """

    paper: ClassVar[str] = "after Rebuffi et al., CVPR 2020"
    needs: ClassVar[frozenset[str]] = frozenset({"runner-up"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """From 0 to 2."""
        assert case.runner_up is not None
        return np.array([1 - rank_correlation(case.scores, case.runner_up)])
