"""The connected components of a mask. Pixels that touch at a side or at a corner are connected (8-connectivity)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._utils.optional_imports import need
from .region import checked

NEIGHBOURS = np.ones((3, 3), bool)  # a pixel and the eight around it


def components(mask: Tensor) -> Tensor:
    """Return ``[H, W]``: 0 outside the mask, and 1, 2, ... in its components, by their first pixels in reading order.

    Args:
        mask: ``[H, W]``, bool.

    Example:
        >>> components(torch.tensor([[True, False, True]]))
        tensor([[1, 0, 2]])
    """
    flags = checked(mask).cpu().numpy()
    label = need("scipy.ndimage", "connected components of masks", "localisation").label
    found, count = label(flags, NEIGHBOURS)
    numbers, first = np.unique(found[flags], return_index=True)  # scipy promises no order of its numbers
    renumbered = np.zeros(count + 1, np.int64)
    renumbered[numbers[np.argsort(first)]] = np.arange(1, count + 1)
    return torch.from_numpy(renumbered[found]).to(mask.device)


def largest(mask: Tensor) -> Tensor:
    """Return ``[H, W]``: the component of a mask with most pixels; of several, the first in reading order.

    Example:
        >>> largest(torch.tensor([[True, False, True, True]]))
        tensor([[False, False,  True,  True]])
    """
    found = components(mask)
    sizes = found.flatten().bincount(minlength=2)[1:]
    return found == sizes.argmax() + 1
