"""From an explanation to a place: the heat map, laid on the user's own picture and cut at a threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ..errors import InputError
from ..explanations.explanation import Explanation
from ..results.input_origin import ImageOrigin
from .connected_components import largest as largest_part
from .region import Region
from .threshold import Threshold, threshold_of

#: an explanation, or lists of them in lists: of many pictures, of several targets, of both
Explained: TypeAlias = "Explanation | Sequence[Explained]"


def locate(explanation: Explained, threshold: Threshold = "mean", *, largest: bool = False) -> list[Region]:
    """Where in its picture each explanation points: a mask and a box.

    Only what the model saw of a picture counts; what its processor cut off is never in a mask.

    Args:
        explanation: of pictures; or a list, of many pictures, of several targets, or of several targets of each of
            many pictures.
        threshold: ``"mean"`` (Chefer et al., CVPR 2021), ``"otsu"``, or a share, from 0 to below 1, of the way from
            the smallest to the largest value of the map.
        largest: keep only the largest connected part of each mask.

    Returns:
        A region for each sample of each explanation, in their order.

    Example:
        >>> (region,) = whence.locate(explainer("cat.jpg", "generic-attention"))
        >>> region.box
        (31, 12, 180, 200)
    """
    return [_region(one, threshold, largest) for e in _each(explanation) for one in e]


def _each(explained: Explained) -> Iterator[Explanation]:
    """Every explanation of a list, also of lists in it."""
    if isinstance(explained, Explanation):
        yield explained
    elif isinstance(explained, list | tuple):
        for one in explained:
            yield from _each(one)
    else:
        raise InputError(
            f"What is located are explanations of pictures, not {type(explained).__name__}: give "
            "explainer(picture), or a list of such."
        )


def mask_of(one: Explanation, threshold: Threshold) -> Tensor:
    """``[H, W]``, bool: where the heat map of one sample is above the threshold."""
    heat, seen = one.heatmap()[0].cpu().double(), seen_of(one)
    return seen & (heat > threshold_of(heat[seen], threshold))


def seen_of(one: Explanation) -> Tensor:
    """``[H, W]``, bool: which pixels of the picture are in the model's input."""
    pictures = [o for origins in one.origins for o in origins.values() if isinstance(o, ImageOrigin)]
    if not pictures:
        return torch.ones(one.heatmap().shape[1:], dtype=torch.bool)
    return pictures[0].lay(torch.ones(1, 1)) > 0


def _region(one: Explanation, threshold: Threshold, largest: bool) -> Region:
    mask = mask_of(one, threshold)
    mask = largest_part(mask) if largest else mask
    label = one.target_names[0] if one.target_names else "the target"
    if one.target is None:
        return Region(mask, float(one.value[0]), label)
    number, probabilities = int(one.target[0]), one.probabilities
    score = float(one.value[0] if probabilities is None else probabilities[0, number])
    is_class = one.labels.get(number, str(number)) == label  # not one class rather than another
    return Region(mask, score, label, number if is_class else None)
