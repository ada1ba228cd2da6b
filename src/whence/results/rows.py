"""Rows of a table: each position, word, patch, frame or time step of one sample with its score, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InputError
from .input_origin import AudioOrigin, ImageOrigin, Origin, SeriesOrigin, TextOrigin
from .result import Result

#: what a row may have, in the order of a table's columns
COLUMNS = (
    "sample", "method", "target", "stream", "position", "token", "text", "part", "start", "end", "row", "column",
    "left", "top", "right", "bottom", "start_second", "end_second", "start_step", "end_step", "special", "score",
)  # fmt: skip
LEVELS = ("position", "word")

Row = dict[str, Any]


def to_array(scores: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """Return scores as numpy's ``__array__`` protocol asks; types that numpy lacks (bfloat16) become float32.

    Without a conversion, the array shares the memory of scores that are on the CPU, as a tensor's does.
    """
    own = scores.detach().cpu()
    try:
        array = own.numpy()
    except TypeError:
        array = own.float().numpy()
    found = array if dtype is None else array.astype(dtype, copy=False)
    shared = scores.device.type == "cpu" and found.dtype == array.dtype and array.dtype.itemsize == scores.itemsize
    if copy is False and not shared:
        raise ValueError(
            f"Scores of type {scores.dtype} on {scores.device} become an array of {found.dtype} only by a copy: use "
            "np.asarray(e), or copy=None."
        )
    return found.copy() if copy and shared else found


def rows(one: Result, by: str = "position") -> list[Row]:
    """Return the rows of a batch of one, stream by stream.

    Args:
        one: the result.
        by: ``"position"``: a row for each position of each stream, so that their scores add up to the stream's;
            ``"word"``: of texts, a row for each word, without special tokens.
    """
    if by not in LEVELS:
        raise InputError(f"There are rows by {' and by '.join(LEVELS)}, not by {by!r}.")
    origins = one.origins[0] if one.origins else {}
    return [row for name in one.streams for row in stream_rows(one, name, origins.get(name), by)]


def stream_rows(one: Result, name: str, origin: Origin | None, by: str = "position") -> Iterator[Row]:
    """Yield the rows of one stream: see :func:`rows`."""
    scores = one.streams[name][0].tolist()
    if isinstance(origin, TextOrigin) and by == "word":
        for piece in origin.pieces(scores):
            if piece.score is not None:
                place = {"text": piece.text, "part": piece.part, "start": piece.start, "end": piece.end}
                yield {"stream": name, **place, "score": piece.score}
        return
    special = one.special_of(name)[0].tolist()
    if isinstance(origin, TextOrigin):
        tail = (True,) * (len(scores) - len(origin.spans))  # padding behind the text
        special = [span is None for span in origin.spans] + list(tail)
    places = _places(one, name, origin, special)
    for position, score in enumerate(scores):
        place = places.get(position, {})
        yield {"stream": name, "position": position, **place, "special": special[position], "score": score}


def _places(one: Result, name: str, origin: Origin | None, special: list[bool]) -> dict[int, Row]:
    """Return where in the user's input each position of a stream is, by position."""
    if isinstance(origin, TextOrigin):
        return dict(enumerate(_tokens(origin)))
    if isinstance(origin, SeriesOrigin):
        own = [position for position, is_special in enumerate(special) if not is_special]
        edges = np.linspace(0, len(origin.values), len(own) + 1).tolist()
        return {p: {"start_step": edges[k], "end_step": edges[k + 1]} for k, p in enumerate(own)}
    if one.grid is not None and (name == "image" or len(one.streams) == 1):
        return dict(enumerate(_patches(one.grid, origin), start=one.patch_start))
    if isinstance(origin, AudioOrigin):
        times = origin.times(one.streams[name].shape[1]).tolist()
        return {p: {"start_second": start, "end_second": end} for p, (start, end) in enumerate(times)}
    return {}


def _tokens(origin: TextOrigin) -> Iterator[Row]:
    for token, span in zip(origin.tokens, origin.spans, strict=True):
        if span is None:
            yield {"token": token}
        else:
            text = origin.texts[span.part][span.start : span.end]
            yield {"token": token, "text": text, "part": span.part, "start": span.start, "end": span.end}


def _patches(grid: tuple[int, int], origin: Origin | None) -> Iterator[Row]:
    """Yield the place of each patch: of an image its box, of a spectrogram its seconds."""
    height, width = grid
    times = origin.times(width).tolist() if isinstance(origin, AudioOrigin) else []
    for row in range(height):
        for column in range(width):
            place: Row = {"row": row, "column": column}
            if isinstance(origin, ImageOrigin):
                left, top, right, bottom = origin.box(row, column, grid)
                place |= {"left": left, "top": top, "right": right, "bottom": bottom}
            if times:
                place |= {"start_second": times[column][0], "end_second": times[column][1]}
            yield place
