"""Segmentation by an explanation (Chefer et al., CVPR 2021).

The heat map, thresholded at its mean, is the predicted mask of the object. Pixel accuracy and the intersection over
union of object and background are over all pixels of the dataset; average precision is over the two classes of each
image together, the object scored by the min-max scaled map and the background by one minus it. Unlabelled pixels are
ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..._utils.optional_imports import need
from ..case import Case, Flags, Floats, as_floats
from ..measure import Measure, measure


def known(case: Case) -> tuple[Floats, Flags]:
    """Return the heat map and the true mask at all labelled pixels, flat."""
    assert case.item.mask is not None
    truth = np.asarray(case.item.mask())
    heat = as_floats(case.explanation.heatmap(truth.shape)[0])
    labelled = truth >= 0
    return heat[labelled], truth[labelled] > 0


@measure("pixel-accuracy")
@dataclass(frozen=True)
class PixelAccuracy(Measure):
    """The share of pixels on the correct side of the threshold."""

    paper: ClassVar[str] = "Chefer et al., CVPR 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the number of correct pixels, and of all."""
        heat, truth = known(case)
        return np.array([float((self.found(case, heat) == truth).sum()), float(len(truth))])

    def found(self, case: Case, heat: Floats) -> Flags:
        """Return which pixels are above the mean of the map."""
        return np.asarray(heat > as_floats(case.explanation.heatmap()[0]).mean())

    def finish(self, mean: Floats) -> Floats:
        """Return their ratio."""
        return np.asarray(mean[..., 0] / mean[..., 1])


@measure("miou")
@dataclass(frozen=True)
class IntersectionOverUnion(PixelAccuracy):
    """The intersection over union, averaged over object and background."""

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return intersection and union of the object, and of the background."""
        heat, truth = known(case)
        found = self.found(case, heat)
        return np.array(
            [(found & truth).sum(), (found | truth).sum(), (~found & ~truth).sum(), (~found | ~truth).sum()], float
        )

    def finish(self, mean: Floats) -> Floats:
        """Return the mean of the two ratios."""
        return np.asarray((mean[..., 0] / mean[..., 1] + mean[..., 2] / mean[..., 3]) / 2)


@measure("map")
@dataclass(frozen=True)
class AveragePrecision(Measure):
    """The mean over images of the average precision of the map, with two classes."""

    paper: ClassVar[str] = "Chefer et al., CVPR 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the average precision of one image."""
        precision = need("sklearn.metrics", "average precision", "evaluation").average_precision_score
        heat, truth = known(case)
        width = heat.max() - heat.min()
        scaled = (heat - heat.min()) / width if width > 0 else np.zeros_like(heat)
        return np.array([precision(np.concatenate([~truth, truth]), np.concatenate([1 - scaled, scaled]))])
