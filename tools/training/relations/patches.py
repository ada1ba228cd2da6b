"""A canvas as a row of patches: what LXMERT takes for the objects of a picture."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tools.training.digits import CANVAS, PATCH

SIDE = CANVAS // PATCH


def features(images: np.ndarray) -> Tensor:
    """The pixels of each patch from 0, black, to 1: images uint8 [scenes, h, w] to [scenes, patches, pixels]."""
    return functional.unfold(torch.from_numpy(images).float()[:, None] / 255, PATCH, stride=PATCH).transpose(1, 2)


def boxes(count: int) -> Tensor:
    """Left, top, right and bottom of each patch from 0 to 1, for each of `count` scenes: [count, patches, 4]."""
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    corners = torch.stack([column, row, column + 1, row + 1], dim=-1).reshape(-1, 4) / SIDE
    return corners.expand(count, -1, -1)


def touched(region: np.ndarray) -> np.ndarray:
    """Which patches hold a pixel of the region, bool [h, w] to bool [patches]."""
    return region.reshape(SIDE, PATCH, SIDE, PATCH).any(axis=(1, 3)).ravel()
