"""Regions as COCO JSON, with masks as uncompressed run-length encoding.

The counts are of pixels column by column, alternating between outside and inside the mask. They begin with 0 where the
first pixel is in the mask.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._utils import atomic_files
from .._utils.type_checks import is_whole
from ..errors import InputError
from .region import Region, checked


def encode(mask: Tensor) -> dict[str, list[int]]:
    """Return the run-length encoding of a mask ``[H, W]``: its ``size``, and ``counts``.

    Example:
        >>> encode(torch.tensor([[False, True], [False, True]]))
        {'size': [2, 2], 'counts': [2, 2]}
    """
    columns = checked(mask).cpu().numpy().flatten(order="F")
    edges = np.flatnonzero(np.diff(columns, prepend=False))
    counts = np.diff(np.concatenate([[0], edges, [columns.size]]))
    return {"size": list(mask.shape), "counts": counts.tolist()}


def decode(code: Mapping[str, Sequence[int]]) -> Tensor:
    """Return the mask ``[H, W]`` of a run-length encoding.

    Example:
        >>> decode({"size": [2, 2], "counts": [2, 2]})
        tensor([[False,  True],
                [False,  True]])
    """
    try:
        (height, width), counts = code["size"], code["counts"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "A run-length code has a size, [height, width], and counts: "
            f"{{'size': [2, 2], 'counts': [2, 2]}}, not {code!r:.60}."
        ) from error
    if isinstance(counts, str | bytes):
        raise InputError("This run-length code is compressed: give one whose counts are numbers.")
    if not isinstance(counts, Iterable) or not all(map(is_whole, (height, width, *counts))):
        raise InputError("The size and the counts of a run-length code are whole numbers: some of these are not.")
    if sum(counts) != height * width or any(count < 0 for count in counts):
        raise InputError(
            f"The counts of this run-length code add up to {sum(counts)}, not to {height} x {width} pixels."
        )
    pixels = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return torch.from_numpy(pixels.reshape(height, width, order="F").copy())


class Coco:
    """A COCO file, built image by image.

    An annotation has the region's mask, its score, and a box: the detector's, or else the mask's bounding box. The id
    of a category is the model's class index, so that a detector of COCO's classes can be compared with COCO's ground
    truth; a target that is no class, or whose index is taken, gets the next free id.

    Example:
        >>> coco = whence.Coco()
        >>> coco.add("cat.jpg", whence.locate(explainer("cat.jpg")))
        >>> coco.save("regions.json")
    """

    def __init__(self) -> None:
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._categories: dict[str, int] = {}

    def add(self, picture: str | Path, regions: Sequence[Region], size: tuple[int, int] | None = None) -> None:
        """Add an image with its regions.

        Args:
            picture: the name of its file.
            regions: all regions of this image.
            size: its height and width, required where it has no regions.
        """
        sizes = {(r.mask.shape[0], r.mask.shape[1]) for r in regions} | ({size} if size else set())
        if len(sizes) != 1:
            told = f"have different sizes ({', '.join(map(str, sorted(sizes)))})" if sizes else "are none"
            raise InputError(
                f"The regions of '{picture}' {told}: add each picture with its own regions, and one that has none "
                "with size=(height, width)."
            )
        height, width = sizes.pop()
        number = len(self._images) + 1
        self._images.append({"id": number, "file_name": str(picture), "height": height, "width": width})
        for region in regions:
            left, top, right, bottom = region.detected or region.box
            self._annotations.append({
                "id": len(self._annotations) + 1,
                "image_id": number,
                "category_id": self._category(region),
                "bbox": [left, top, right - left, bottom - top],
                "area": int(region.mask.sum()),
                "iscrowd": 0,
                "segmentation": encode(region.mask),
                "score": region.score,
            })  # fmt: skip

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document: ``images``, ``annotations``, ``categories``."""
        categories = [{"id": number, "name": name} for name, number in self._categories.items()]
        return {
            "info": {"description": "Regions located by Whence"},
            "images": list(self._images),
            "annotations": list(self._annotations),
            "categories": sorted(categories, key=lambda category: category["id"]),
        }

    def save(self, path: str | Path) -> Path:
        """Write the file atomically."""
        path = Path(path)
        if path.suffix.lower() != ".json":
            raise InputError(f"A COCO file is saved as .json, not as '{path.name}'.")
        atomic_files.write(path, json.dumps(self.document).encode())
        return path

    def _category(self, region: Region) -> int:
        if region.label not in self._categories:
            number = region.category
            taken = self._categories.values()
            self._categories[region.label] = max(taken, default=0) + 1 if number is None or number in taken else number
        return self._categories[region.label]
