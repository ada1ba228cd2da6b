"""Validation of explanations read from a file: every field of its type, and all of one size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._utils.type_checks import field_types, fits
from ..propagation.ledger import Ledger
from ..tracing.coverage import Coverage
from .input_origin import AudioOrigin, ImageOrigin, Origin, SeriesOrigin, Span, TextOrigin
from .result import Result

#: the number of dimensions of tensors that not every explanation has
DIMENSIONS = {"value": 1, "layers": 3, "heads": 3, "branches": 4, "pairs": 4}


def first_fault(e: Result) -> str:
    """Return the first fault of an explanation, in words; empty if there is none.

    Example:
        >>> first_fault(replace(e, special=e.special[:, :1]))
        "'special' has shape [2, 1], not [2, 7]"
    """
    return next(_faults(e), "")


def _faults(e: Result) -> Iterator[str]:
    """Yield every fault; types come first, because the other checks rely on them."""
    yield from _type_faults(e)
    yield from _score_faults(e)
    batch = len(e.scores)
    yield from _size_faults(e, batch)
    yield from _patch_faults(e)
    yield from _coverage_faults(e.coverage)
    yield from _ledger_faults(e.ledger, batch)
    for origins in e.origins:
        for name, origin in origins.items():
            length = e.streams[name].shape[1] if name in e.streams else None
            yield from _origin_faults(origin, length)


def _type_faults(e: Result) -> Iterator[str]:
    cls: Any = type(e)
    for name, hint in field_types(cls).items():
        if not fits(getattr(e, name), hint):
            yield f"'{name}' is of another kind than it should be"


def _score_faults(e: Result) -> Iterator[str]:
    if e.scores.dim() != 2 or not e.scores.is_floating_point():
        yield f"'scores' are {e.scores.dtype} of shape {list(e.scores.shape)}, not numbers [batch, positions]"
    for name, scores in [("scores", e.scores), *e.streams.items()]:
        if not bool(torch.isfinite(scores).all()):
            yield f"'{name}' holds a NaN or an infinity"
    if e.special.shape != e.scores.shape or e.special.dtype != torch.bool:
        yield f"'special' has shape {list(e.special.shape)}, not {list(e.scores.shape)}"


def _size_faults(e: Result, batch: int) -> Iterator[str]:
    for name, tensor in _tensors(e):
        dims = DIMENSIONS.get(name, 2 if name.startswith("streams") else tensor.dim())
        if tensor.dim() != dims or not tensor.dim() or len(tensor) != batch:
            yield f"'{name}' has shape {list(tensor.shape)}, which does not fit {batch} samples"
    for name in ("target_names", "prediction_names", "origins"):
        if len(getattr(e, name)) not in (0, batch):
            yield f"'{name}' has {len(getattr(e, name))} entries, not {batch}"


def _tensors(e: Result) -> Iterator[tuple[str, Tensor]]:
    for f in fields(e):
        value = getattr(e, f.name)
        if isinstance(value, Tensor):
            yield f.name, value
    yield from ((f"streams {name}", tensor) for name, tensor in e.streams.items())


def _patch_faults(e: Result) -> Iterator[str]:
    longest = max([e.scores.shape[1], *(s.shape[1] for s in e.streams.values())])
    if e.grid is not None and (min(e.grid) < 1 or e.patch_start < 0 or e.patch_start + e.grid[0] * e.grid[1] > longest):
        yield f"'grid' has {e.grid[0]} x {e.grid[1]} patches from position {e.patch_start}, and there are {longest}"
    if e.image_size is not None and not 1 <= min(e.image_size) <= max(e.image_size) <= 1 << 16:
        yield f"'image_size' is {list(e.image_size)}"


def _coverage_faults(coverage: Coverage) -> Iterator[str]:
    if not fits(dict(coverage.seen), Mapping[str, int]) or not fits(dict(coverage.plain), Mapping[str, int]):
        yield "'coverage' counts something that is no number"
    if not fits(coverage.ruled, Mapping[str, str]):
        yield "'coverage' names something that is no rule"


def _ledger_faults(ledger: Ledger | None, batch: int) -> Iterator[str]:
    if ledger is None:
        return
    if not isinstance(ledger.total, Tensor) or ledger.total.shape != (batch,):
        yield f"'ledger' has no total of {batch} samples"
    if not isinstance(ledger.sums, Tensor) or ledger.sums.dim() != 2 or len(ledger.sums) != batch:
        yield f"'ledger' has no sums of {batch} samples"
    elif not fits(tuple(ledger._marks), tuple[int, ...]) or len(ledger._marks) != ledger.sums.shape[1]:
        yield "'ledger' has not as many places as sums"
    for entry in ledger.entries:
        if not fits(entry, type(entry)) or entry.amount.shape != (batch,):
            yield "'ledger' has an entry that is none"


def _origin_faults(origin: Origin, length: int | None) -> Iterator[str]:
    """Yield the faults of the user's input; ``length`` is that of its stream."""
    if isinstance(origin, TextOrigin):
        yield from _text_faults(origin, length)
    elif isinstance(origin, ImageOrigin):
        yield from _image_faults(origin)
    elif isinstance(origin, AudioOrigin):
        yield from _audio_faults(origin)
    elif isinstance(origin, SeriesOrigin) and (origin.values.ndim != 2 or origin.values.dtype.kind != "f"):
        yield f"a series is {origin.values.dtype} of shape {list(origin.values.shape)}"


def _text_faults(origin: TextOrigin, length: int | None) -> Iterator[str]:
    if len(origin.tokens) != len(origin.spans) or (length is not None and len(origin.tokens) != length):
        yield f"a text has {len(origin.tokens)} tokens, {len(origin.spans)} places and {length} scores"
    if not all(_inside(span, origin.texts) for span in (*origin.spans, *origin.unread) if span is not None):
        yield "a token stands outside its text"


def _image_faults(origin: ImageOrigin) -> Iterator[str]:
    if origin.image.dtype != np.uint8 or origin.image.ndim != 3 or origin.image.shape[2] != 3:
        yield f"a picture is {origin.image.dtype} of shape {list(origin.image.shape)}"
    placed = [*origin.scale, *origin.shift]
    if not all(map(math.isfinite, placed)) or not all(origin.scale) or min(origin.size) < 1:
        yield "a picture is laid on nothing"


def _audio_faults(origin: AudioOrigin) -> Iterator[str]:
    if origin.samples.ndim != 1 or origin.samples.dtype.kind != "f" or origin.rate < 1:
        yield "a recording is no wave"
    if not 0 <= origin.heard < math.inf:
        yield f"a recording was heard for {origin.heard} seconds"


def _inside(span: Span, texts: tuple[str, ...]) -> bool:
    return 0 <= span.part < len(texts) and 0 <= span.start <= span.end <= len(texts[span.part])
