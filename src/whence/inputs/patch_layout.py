"""Where the patches of an image lie that a processor cuts into tiles, or flattens in an order of its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._utils.optional_imports import need
from .image import Placement, find_placement

#: arguments that hold the numbers of frames, rows and columns of patches that were flattened (Qwen2-VL)
GRID = "image_grid_thw"


@dataclass(frozen=True)
class PatchLayout:
    """The patches of an image's tiles on one common grid, in the image's own geometry.

    Attributes:
        tiles: the placement of each tile: where the image's pixels lie in it.
        order: ``[patches]``, the position of each patch, row by row; ``None`` if they are in order.
        grid: rows and columns of patches of one tile; ``None``: as the model has them.
    """

    tiles: tuple[Placement, ...]
    order: Tensor | None = None
    grid: tuple[int, int] | None = None

    @property
    def whole(self) -> Placement:
        """The placement of the plane that the finest tiles lie on."""
        scale = tuple(max(tile[0][axis] for tile in self.tiles) for axis in (0, 1))
        fine = [tile for tile in self.tiles if tile[0] == scale] or list(self.tiles)
        shift = tuple(max(tile[1][axis] for tile in fine) for axis in (0, 1))
        ends = [[shift[axis] - tile[1][axis] + tile[2][axis] for tile in fine] for axis in (0, 1)]
        return (scale[0], scale[1]), (shift[0], shift[1]), (round(max(ends[0])), round(max(ends[1])))

    def on_one_grid(self, patches: Tensor) -> Tensor:
        """Lay patches ``[..., tiles, rows, columns]`` on the common grid; their sum stays the same.

        A patch of a coarse tile is shared out over the patches of fine tiles that it covers, by area.
        """
        if len(self.tiles) == 1:
            return patches[..., 0, :, :]
        whole = self.whole
        counts = [round(whole[2][axis] * patches.shape[axis - 2] / self.tiles[0][2][axis]) for axis in (0, 1)]
        out: Tensor = torch.zeros(*patches.shape[:-3], *counts, dtype=patches.dtype, device=patches.device)
        for i, tile in enumerate(self.tiles):
            rows, columns = (
                _shares(tile, whole, axis, patches.shape[axis - 2], counts[axis]).to(patches) for axis in (0, 1)
            )
            out += rows @ patches[..., i, :, :] @ columns.mT
        return out


def _shares(tile: Placement, whole: Placement, axis: int, patches: int, cells: int) -> Tensor:
    """Return ``[cells, patches]``: which share of a tile's patch, along an axis, lies in each cell of a grid."""
    (scale, shift, size), (whole_scale, whole_shift, whole_size) = (
        (placement[0][axis], placement[1][axis], placement[2][axis]) for placement in (tile, whole)
    )
    edges = torch.linspace(0, size, patches + 1, dtype=torch.float64)
    edges = ((edges - shift) / scale * whole_scale + whole_shift) * (cells / whole_size)
    low, high = edges[:-1], edges[1:]
    cell = torch.arange(cells, dtype=torch.float64)[:, None]
    overlap = (torch.minimum(high, cell + 1) - torch.maximum(low, cell)).clamp(min=0)
    inside = overlap.sum(0)
    nearest = ((low + high) / 2).floor().clamp(0, cells - 1).long()  # of a patch that is nothing but padding
    overlap = torch.where(inside > 0, overlap, torch.nn.functional.one_hot(nearest, cells).T.double())
    return overlap / overlap.sum(0)


def planes(tensors: Mapping[str, Tensor], name: str, merge: int) -> Tensor | None:
    """Return the images that a processor made, ``[tiles, channels, height, width]``; ``None`` if they are none.

    Args:
        tensors: what the processor made of one image.
        name: the argument that holds its pixels.
        merge: how many patches in a row are merged into one token, where patches are flattened.
    """
    pixels = tensors[name]
    if pixels.dim() == 4 and len(pixels) == 1:
        return pixels
    if pixels.dim() == 5 and len(pixels) == 1:
        return pixels[0]
    if pixels.dim() == 2 and GRID in tensors and len(tensors[GRID]) == 1:
        frames, rows, columns = tensors[GRID][0].tolist()
        if frames != 1 or frames * rows * columns != len(pixels):
            return None
        # a patch holds [channels, frames of a video, height, width]; an image counts as several equal frames
        side, channels = _side(pixels.shape[1])
        if side is None:
            return None
        cells = pixels.unflatten(1, (channels, -1, side, side))[:, :, 0]
        cells = cells[flat_order(rows, columns, merge)].unflatten(0, (rows, columns))
        image: Tensor = cells.permute(2, 0, 3, 1, 4).reshape(1, channels, rows * side, columns * side)
        return image
    return None


def _side(values: int) -> tuple[int | None, int]:
    """Return the height of a square patch of so many values (in one or two frames), and its number of channels."""
    for frames in (2, 1):
        side = math.isqrt(values // (3 * frames))
        if side * side * 3 * frames == values:
            return side, 3
    return None, 0


def flat_order(rows: int, columns: int, merge: int) -> Tensor:
    """Return the position of each patch, row by row, where those that will be merged stand together."""
    places = torch.arange(rows * columns).reshape(rows // merge, columns // merge, merge, merge)
    return places.permute(0, 2, 1, 3).flatten()


def find_layout(
    process: Callable[[Any], Mapping[str, Tensor]], name: str, merge: int, width: int, height: int
) -> PatchLayout | None:
    """Find where the patches of an image of this size lie, by probing the processor (see :func:`find_placement`).

    Returns:
        The layout; ``None`` if what the processor makes is not made of images.
    """
    image = need("PIL.Image", "pictures", "vision")
    probe = _Probe(process, name, merge)
    tensors, images = probe.made(image.new("RGB", (width, height)))
    if images is None:
        return None
    tiles = tuple(find_placement(functools.partial(probe.tile, i), width, height) for i in range(len(images)))
    if tensors[name].dim() != 2:
        return PatchLayout(tiles)
    _, rows, columns = tensors[GRID][0].tolist()
    return PatchLayout(tiles, flat_order(rows, columns, merge), (rows, columns))


class _Probe:
    """What a processor makes of images, each processed once for all tiles; see :func:`find_layout`."""

    def __init__(self, process: Callable[[Any], Mapping[str, Tensor]], name: str, merge: int) -> None:
        self._process = process
        self._name = name
        self._merge = merge
        self._known: dict[bytes, tuple[Mapping[str, Tensor], Tensor | None]] = {}

    def made(self, picture: Any) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """Return the tensors made of an image, and the planes in them."""
        key = picture.tobytes()
        if key not in self._known:
            tensors = self._process(picture)
            self._known[key] = tensors, planes(tensors, self._name, self._merge)
        return self._known[key]

    def tile(self, number: int, picture: Any) -> Tensor:
        """Return one tile of an image, ``[1, channels, height, width]``."""
        _, images = self.made(picture)
        assert images is not None  # every image of one size is made into as many
        return images[number : number + 1]
