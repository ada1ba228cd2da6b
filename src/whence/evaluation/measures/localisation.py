"""Localisation: does the relevance lie on the object?

Relevance mass: the share of positive relevance on the object (Arras et al. 2022; AttnLRP and ResLRP call it
localisation). Pointing game: whether the strongest pixel is on it (Zhang et al. 2018). Compare
both with the object's share of the image, which is the score of the random method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Floats
from ..measure import Measure, measure
from .segmentation import known


@measure("relevance-mass")
@dataclass(frozen=True)
class RelevanceMass(Measure):
    """The share of positive relevance on the object."""

    paper: ClassVar[str] = "Arras et al., 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the share, from 0 to 1; 0 where no relevance is positive."""
        heat, truth = known(case)
        positive = heat.clip(min=0)
        return np.array([positive[truth].sum() / positive.sum() if positive.sum() > 0 else 0.0])


@measure("pointing-game")
@dataclass(frozen=True)
class PointingGame(Measure):
    """Whether the strongest pixel is on the object."""

    paper: ClassVar[str] = "Zhang et al., 2018"
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return 1 or 0; of several strongest pixels, the share on the object."""
        heat, truth = known(case)
        return np.array([truth[heat == heat.max()].mean()])
