"""One sample of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Item:
    """One sample.

    Attributes:
        id: the same in every run: from the file, or its row number (from 1).
        input: as :class:`whence.Explainer` takes it: a text, a pair of texts (tuple), a path to an image, an array or
            a PIL image, or ``{"image": ..., "text": ...}``.
        label: the class: its name where the dataset has class names, otherwise the value in the file, integers as
            ``int``; ``None`` if there is none.
        rationale: character spans ``(start, end)`` of the text that annotators marked; sorted, disjoint.
        mask: loads an int8 array ``[height, width]`` in the size of the image: 1 object, 0 background, -1 ignore.

    Example:
        >>> Item("7", "a gripping film", "positive", rationale=((2, 10),))
    """

    id: str
    input: Any
    label: str | int | None = None
    rationale: tuple[tuple[int, int], ...] | None = None
    mask: Callable[[], Mask] | None = None
