"""The user's own input, and which part of it each position of a token stream comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .word_segmentation import Piece, pieces


class Span(NamedTuple):
    """Characters ``start`` to ``end`` of the user's ``part``-th text (a pair has two)."""

    start: int
    end: int
    part: int = 0


class _ValueEquality:
    """A mixin of equality by value, arrays included."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]  # type: ignore[arg-type]  # dataclasses all
        return all(
            (a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f")))
            if isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
            else a == b
            for a, b in pairs
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash


@dataclass(frozen=True, eq=False)
class TextOrigin(_ValueEquality):
    """A text, or several read as one sequence.

    Attributes:
        texts: the user's own strings, unchanged.
        tokens: ``[S]``, one per position, as the tokenizer writes them.
        spans: ``[S]``, where each token is in the user's strings; ``None`` for special tokens.
        unread: the characters that were truncated.
        molecule: whether the text is a molecule (SMILES): every token is a word of its own.
    """

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]
    unread: tuple[Span, ...] = ()
    molecule: bool = False

    def after(self, count: int) -> TextOrigin:
        """Return the same text, read after so many tokens of the model's own (a tuned prompt)."""
        own = tuple(f"[virtual {i + 1}]" for i in range(count))
        return replace(self, tokens=own + self.tokens, spans=(None,) * count + self.spans)

    def pieces(self, scores: Sequence[float], words: bool = True) -> list[Piece]:
        """Cut the texts into words (or tokens) and the gaps between them; joined, they are the texts."""
        out: list[Piece] = []
        for part, text in enumerate(self.texts):
            spans = [(i, s.start, s.end) for i, s in enumerate(self.spans) if s is not None and s.part == part]
            out += pieces(text, spans, scores, words and not self.molecule, part)
        return out


@dataclass(frozen=True, eq=False)
class ImageOrigin(_ValueEquality):
    """An image.

    Attributes:
        image: ``[height, width, 3]``, bytes: the image as the user sees it.
        scale: ``(y, x)``, and
        shift: ``(y, x)``: pixel ``p`` of the image is at ``scale * p + shift`` in the model's input.
        size: height and width of the model's input.
        name: the file it was read from.
    """

    image: npt.NDArray[np.uint8]
    scale: tuple[float, float]
    shift: tuple[float, float]
    size: tuple[int, int]
    name: str = ""

    def lay(self, patches: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Map patches ``[h, w]`` of the model's input onto the image: ``[height, width]``, 0 where it was cropped.

        Scores are interpolated bilinearly between the centres of patches, as in Chefer et al. 2021.
        """
        height, width = size or self.image.shape[:2]
        rows = self._places(0, height, patches)
        columns = self._places(1, width, patches)
        grid = torch.stack(torch.broadcast_tensors(columns[None, :], rows[:, None]), -1)[None]
        laid = torch.nn.functional.grid_sample(
            patches[None, None], grid, mode="bilinear", padding_mode="border", align_corners=False
        )[0, 0]
        seen = (rows.abs() <= 1)[:, None] & (columns.abs() <= 1)[None, :]
        return torch.where(seen, laid, 0.0)

    def box(self, row: int, column: int, grid: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom, in the image, of one patch of a grid."""
        edges = []
        for axis, index in ((1, column), (0, row)):
            low, high = (self.size[axis] * (index + k) / grid[axis] for k in (0, 1))
            ends = sorted((e - self.shift[axis]) / self.scale[axis] for e in (low, high))
            limit = self.image.shape[axis]
            edges.append([min(max(round(e), 0), limit) for e in ends])
        (left, right), (top, bottom) = edges
        return left, top, right, bottom

    def _places(self, axis: int, count: int, like: Tensor) -> Tensor:
        """Return where ``count`` pixels along an axis lie in the model's input, from -1 to 1."""
        centres = (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) * self.image.shape[axis] / count
        places: Tensor = (centres * self.scale[axis] + self.shift[axis]) * (2 / self.size[axis]) - 1
        return places


@dataclass(frozen=True, eq=False)
class AudioOrigin(_ValueEquality):
    """Audio.

    Attributes:
        samples: ``[N]``, the waveform.
        rate: samples per second.
        heard: seconds that the model's input covers (it may be padded or truncated).
        name: the file it was read from.
    """

    samples: npt.NDArray[np.float32]
    rate: int
    heard: float
    name: str = ""

    @property
    def seconds(self) -> float:
        """The length of the audio that the model reads, in seconds."""
        return min(len(self.samples) / self.rate, self.heard)

    def times(self, positions: int) -> npt.NDArray[np.float64]:
        """Return ``[S, 2]``: the seconds at which each position begins and ends, positions being evenly spaced."""
        edges = np.linspace(0.0, self.heard, positions + 1)
        return np.stack([edges[:-1], edges[1:]], 1)


@dataclass(frozen=True, eq=False)
class SeriesOrigin(_ValueEquality):
    """A time series.

    Attributes:
        values: ``[time, channels]``.
        channels: a name per channel.
    """

    values: npt.NDArray[np.float64]
    channels: tuple[str, ...] = ()


Origin = TextOrigin | ImageOrigin | AudioOrigin | SeriesOrigin
