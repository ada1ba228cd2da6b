"""The connected parts of a mask. Pixels that touch at a side or at a corner belong together (8-connectivity)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .region import checked

Numbers = npt.NDArray[np.int64]


def components(mask: Tensor) -> Tensor:
    """``[H, W]``: 0 outside the mask, and 1, 2, ... in its parts, by their first pixels in reading order.

    Args:
        mask: ``[H, W]``, bool.

    Example:
        >>> components(torch.tensor([[True, False, True]]))
        tensor([[1, 0, 2]])
    """
    flags = checked(mask).cpu().numpy()
    row, start, end = _runs(flags)
    roots = _joined(len(row), *_touching(row, start, end, flags.shape[1]))
    _, number = np.unique(roots, return_inverse=True)
    out = np.zeros(flags.shape, np.int64)
    out[flags] = np.repeat(number + 1, end - start)  # runs are in reading order, as their pixels are
    return torch.from_numpy(out).to(mask.device)


def largest(mask: Tensor) -> Tensor:
    """``[H, W]``: the part of a mask that has most pixels; of several, the first in reading order.

    Example:
        >>> largest(torch.tensor([[True, False, True, True]]))
        tensor([[False, False,  True,  True]])
    """
    parts = components(mask)
    sizes = parts.flatten().bincount(minlength=2)[1:]
    return parts == sizes.argmax() + 1


def _runs(flags: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
    """Row, first column and column after the last of each unbroken run of true pixels, in reading order."""
    edges = np.diff(np.pad(flags, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, start = np.nonzero(edges == 1)
    return row, start, np.nonzero(edges == -1)[1]


def _touching(row: Numbers, start: Numbers, end: Numbers, width: int) -> tuple[Numbers, Numbers]:
    """All pairs of runs that touch, the first in the row above the second."""
    line = width + 2
    low = np.searchsorted(row * line + end, (row + 1) * line + start, "left")  # ends not before this one begins
    high = np.searchsorted(row * line + start, (row + 1) * line + end, "right")  # begins not after this one ends
    counts = high - low
    first = np.repeat(np.arange(len(row)), counts)
    within = np.arange(len(first)) - np.repeat(counts.cumsum() - counts, counts)
    return first, np.repeat(low, counts) + within


def _joined(count: int, first: Numbers, second: Numbers) -> Numbers:
    """``[count]``: the smallest of all that each is connected with, from pairs that are.

    In each round every root is hung below the smallest root that it is paired with, and trees are made flat.
    """
    root = np.arange(count)
    while (root[first] != root[second]).any():
        a, b = root[first], root[second]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while (root != root[root]).any():
            root = root[root]
    return root
