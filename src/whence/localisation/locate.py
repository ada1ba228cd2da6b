"""``whence.locate``: the heat map of an explanation, resized to the image and cut at a threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ..errors import InputError
from ..explanations.explanation import Explanation
from ..results.input_origin import ImageOrigin
from .connected_components import largest as largest_component
from .region import Region
from .threshold import Threshold, threshold_of

#: an explanation, or nested lists of them: of many images, of several targets, of both
Explained: TypeAlias = "Explanation | Sequence[Explained]"


def locate(explanation: Explained, threshold: Threshold = "mean", *, largest: bool = False) -> list[Region]:
    """Return where in its image each explanation points: a mask and a box.

    A mask covers only the part of the image that the model saw, without what its processor cropped.

    Args:
        explanation: of images; or a list, of many images, of several targets, or of several targets of each of many
            images.
        threshold: ``"mean"`` (Chefer et al., CVPR 2021), ``"otsu"``, or a share, from 0 to below 1, of the way from
            the smallest to the largest value of the map.
        largest: keep only the largest connected component of each mask.

    Returns:
        A region for each sample of each explanation, in their order.

    Example:
        >>> (region,) = whence.locate(explainer("cat.jpg", "generic-attention"))
        >>> region.box
        (31, 12, 180, 200)
    """
    return [_region(one, threshold, largest) for e in _each(explanation) for one in e]


def _each(explained: Explained) -> Iterator[Explanation]:
    """Yield every explanation of nested lists."""
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
    """Return ``[H, W]``, bool: where the heat map of one sample is above the threshold."""
    heat = one.heatmap()[0].cpu().double()
    seen = seen_of(one)
    return seen & (heat > threshold_of(heat[seen], threshold))


def seen_of(one: Explanation) -> Tensor:
    """Return ``[H, W]``, bool: which pixels of the image are in the model's input."""
    pictures = [o for origins in one.origins for o in origins.values() if isinstance(o, ImageOrigin)]
    if not pictures:
        return torch.ones(one.heatmap().shape[1:], dtype=torch.bool)
    return pictures[0].lay(torch.ones(1, 1)) > 0


def _region(one: Explanation, threshold: Threshold, largest: bool) -> Region:
    mask = mask_of(one, threshold)
    mask = largest_component(mask) if largest else mask
    label = one.target_names[0] if one.target_names else "the target"
    if one.target is None:
        return Region(mask, float(one.value[0]), label)
    number = int(one.target[0])
    probabilities = one.probabilities
    score = float(one.value[0] if probabilities is None else probabilities[0, number])
    is_class = one.labels.get(number, str(number)) == label  # not a contrast of two classes
    return Region(mask, score, label, number if is_class else None)
