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
        input: what :class:`whence.Explainer` takes: a text, a pair of texts (tuple), a path to a picture, an array or
            a PIL picture, or ``{"image": ..., "text": ...}``.
        label: the class: its name where the dataset knows the names of its classes, otherwise what the file says, a
            whole number as ``int``; ``None`` if there is none.
        rationale: spans of characters ``(start, end)`` of the text that people marked as its reasons; sorted, apart.
        mask: loads an int8 array ``[height, width]`` in the picture's own pixels: 1 object, 0 background, -1 ignore.

    Example:
        >>> Item("7", "a gripping film", "positive", rationale=((2, 10),))
    """

    id: str
    input: Any
    label: str | int | None = None
    rationale: tuple[tuple[int, int], ...] | None = None
    mask: Callable[[], Mask] | None = None
