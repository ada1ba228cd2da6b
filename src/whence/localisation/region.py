"""A region of an image: a mask, its box, and its label."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._utils import atomic_files
from .._utils.optional_imports import need
from ..errors import InputError

#: left, top, right and bottom in pixels; the last two are just outside
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Region:
    """A region of an image.

    Attributes:
        mask: ``[H, W]``, bool: its pixels, in the size of the image.
        score: the probability of its class; where there are no classes, the value that was explained.
        label: the name of its class or target.
        category: the index of its class; ``None`` if it is no class.
        detected: the box of the detector, if the model is one.

    Example:
        >>> (region,) = whence.locate(explainer("cat.jpg"))
        >>> region.box
        (31, 12, 180, 200)
        >>> region.save("cat-mask.png")
    """

    mask: Tensor
    score: float
    label: str
    category: int | None = None
    detected: Box | None = None

    @property
    def box(self) -> Box:
        """The bounding box of the mask; ``(0, 0, 0, 0)`` if it is empty."""
        return box_of(self.mask)

    @property
    def share(self) -> float:
        """The share of the image that is in the mask."""
        return float(self.mask.float().mean())

    def save(self, path: str | Path) -> Path:
        """Write the mask as a PNG of one channel: 255 in it, 0 outside."""
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise InputError(f"A mask is saved as .png, not as '{path.name}'; whence.Coco writes .json.")
        image = need("PIL.Image", "masks", "vision")
        out = io.BytesIO()
        image.fromarray(self.mask.cpu().numpy().astype(np.uint8) * 255).save(out, "PNG")
        atomic_files.write(path, out.getvalue())
        return path

    def __repr__(self) -> str:
        size = "x".join(map(str, self.mask.shape))
        return f"Region({self.label!r}, {self.score:.2f}, box={self.box}, {self.share:.1%} of {size} pixels)"


def checked(mask: Tensor) -> Tensor:
    """Return the mask; raise if it is not a bool tensor ``[H, W]``."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() != 2:
        shape = f" of {mask.dtype} and shape {list(mask.shape)}" if isinstance(mask, Tensor) else ""
        raise InputError(
            f"A mask is a tensor [H, W] of true and false, not {type(mask).__name__}{shape}: compare first, as in "
            "values > 0."
        )
    return mask


def box_of(mask: Tensor) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a mask ``[H, W]``, the last two exclusive; zeros for an empty mask.

    Example:
        >>> box_of(torch.tensor([[False, False], [False, True]]))
        (1, 1, 2, 2)
    """
    if not bool(checked(mask).any()):
        return 0, 0, 0, 0
    rows, columns = (mask.any(axis).nonzero()[:, 0] for axis in (1, 0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
