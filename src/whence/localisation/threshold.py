"""Thresholds of heat maps: the pixels above the threshold are the object.

=========  ==================================================================================================
threshold  value
=========  ==================================================================================================
``mean``   the mean of the map (Chefer et al., CVPR 2021)
``otsu``   the value that splits the map into two classes with the largest variance between them,
           ``w0 w1 (m1 - m0)^2`` (Otsu 1979; Chefer et al., ICCV 2021, for DETR)
a number   this share of the way from the smallest to the largest value (0.2: Zhou et al., CVPR 2016)
=========  ==================================================================================================

Published code finds Otsu's value among 256 grey levels; here it is found among all values of the map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError

#: ``"mean"``, ``"otsu"``, or a share from 0 to below 1
Threshold = str | float


def threshold_of(values: Tensor, threshold: Threshold) -> float:
    """Return the value above which a pixel belongs to the object.

    Args:
        values: of the pixels, any shape.
        threshold: ``"mean"``, ``"otsu"``, or a share, from 0 to below 1, of the way from the smallest to the largest
            value.

    Example:
        >>> threshold_of(torch.tensor([0.0, 1.0, 8.0, 9.0]), "otsu")
        1.0
    """
    flat = values.detach().flatten().double()
    if threshold == "mean":
        return float(flat.mean())
    if threshold == "otsu":
        return otsu(flat)
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < 1:
        raise InputError(f"A threshold is 'mean', 'otsu', or a number from 0 to below 1, not {threshold!r}.")
    low, high = flat.aminmax()
    return float(low + threshold * (high - low))


def otsu(values: Tensor) -> float:
    """Return Otsu's threshold of ``[n]`` values: the largest value of the lower class; of several optima, the first.

    Where all values are equal there are no two classes: the threshold is that value, and no value is above it.
    """
    ordered = values.double().sort().values
    count = len(ordered)
    if ordered[0] == ordered[-1]:
        return float(ordered[0])
    below = torch.arange(1, count, dtype=torch.float64, device=values.device)  # the size of the lower class
    sums = (ordered - ordered.mean()).cumsum(0)[:-1]  # of the lower class; that of the upper one is its negative
    between = sums**2 / (
        below * (count - below)
    )  # w0 w1 (m1 - m0)^2; a split between equal values is never the optimum
    return float(ordered[between.argmax()])
