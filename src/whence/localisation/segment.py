"""Masks from a detector that was trained on boxes alone (Chefer, Gur, Wolf, ICCV 2021, for DETR).

Each query whose class has a probability above 0.5 is a target of its own, the logit of that class; its relevance on the
patches of the image, cut at Otsu's threshold, is the mask of the object.

Where published code differs: it finds the threshold on the grid of patches, in 256 grey levels, and then upsamples the
mask bilinearly and keeps all pixels above 0, so that masks grow by up to a patch on each side. Here the map is
upsampled first and cut afterwards.

Cost: one forward pass to find the objects; one forward pass, and the method's backward passes per object, to explain
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..explainer.explainer import Explainer
from ..targets.specs import every
from .connected_components import largest as largest_component
from .detection import detect
from .locate import mask_of
from .region import Box, Region
from .threshold import Threshold


def segment(
    explainer: Explainer,
    image: Any,
    method: str = "generic-attention",
    threshold: Threshold = "otsu",
    *,
    confidence: float = 0.5,
    target: int | str | None = None,
    cut: bool = False,
    largest: bool = False,
    **options: Any,
) -> list[Region]:
    """Return a mask of each object that a detector finds in an image.

    Args:
        explainer: of a detector.
        image: one image, as the explainer takes it.
        method: a name from :func:`whence.list_methods`.
        threshold: of the heat map, as for :func:`whence.locate`.
        confidence: the probability above which a query counts as an object.
        target: only objects of this class, by index or label.
        cut: restrict each mask to the detector's box.
        largest: keep only the largest connected component of each mask.
        options: the method's options.

    Returns:
        A region for each object, the most probable first; its ``detected`` is the detector's own box.

    Example:
        >>> detector = whence.Explainer.from_pretrained("facebook/detr-resnet-50")
        >>> for i, region in enumerate(whence.segment(detector, "street.jpg")):
        ...     region.save(f"{i}-{region.label}.png")
    """
    found = detect(explainer, image, confidence, target)
    explained = explainer(image, method, every(one.logit for one in found), **options) if found else []
    out = []
    for one, e in zip(found, explained, strict=True):
        mask = mask_of(e, threshold)
        mask = mask & within(one.box, mask) if cut else mask
        mask = largest_component(mask) if largest else mask
        out.append(Region(mask, one.score, one.label, one.category, one.box))
    return out


def within(box: Box, mask: Tensor) -> Tensor:
    """Return ``[H, W]``, bool, in the size of a mask: the pixels whose centres are in a box."""
    left, top, right, bottom = box
    y, x = (torch.arange(size) + 0.5 for size in mask.shape)
    return ((top <= y) & (y < bottom))[:, None] & ((left <= x) & (x < right))
