"""Whether what was read from a file is an explanation: every field of its type, and all of one size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from ..propagation.ledger import Ledger
from ..tracing.coverage import Coverage
from .input_origin import ImageOrigin, Origin, SeriesOrigin, SoundOrigin, Span, TextOrigin
from .result import Result

#: how many dimensions tensors have that not every explanation has
DIMENSIONS = {"value": 1, "layers": 3, "heads": 3, "branches": 4, "pairs": 4}


def unsound(e: Result) -> str:
    """What is wrong with an explanation, in words; empty if nothing is.

    Example:
        >>> unsound(replace(e, special=e.special[:, :1]))
        "'special' has shape [2, 1], not [2, 7]"
    """
    return next(_faults(e), "")


def _faults(e: Result) -> Iterator[str]:
    cls: Any = type(e)
    for name, hint in _hints(cls).items():
        if not fits(getattr(e, name), hint):
            yield f"'{name}' is of another kind than it should be"
    if e.scores.dim() != 2 or not e.scores.is_floating_point():
        yield f"'scores' are {e.scores.dtype} of shape {list(e.scores.shape)}, not numbers [batch, positions]"
    for name, scores in [("scores", e.scores), *e.streams.items()]:
        if not bool(torch.isfinite(scores).all()):
            yield f"'{name}' holds a NaN or an infinity"
    batch = len(e.scores)
    if e.special.shape != e.scores.shape or e.special.dtype != torch.bool:
        yield f"'special' has shape {list(e.special.shape)}, not {list(e.scores.shape)}"
    for name, tensor in _tensors(e):
        dims = DIMENSIONS.get(name, 2 if name.startswith("streams") else tensor.dim())
        if tensor.dim() != dims or not tensor.dim() or len(tensor) != batch:
            yield f"'{name}' has shape {list(tensor.shape)}, which does not fit {batch} samples"
    for name in ("target_names", "prediction_names", "origins"):
        if len(getattr(e, name)) not in (0, batch):
            yield f"'{name}' has {len(getattr(e, name))} entries, not {batch}"
    yield from _patches(e)
    yield from _books(e.ledger, e.coverage, batch)
    for origins in e.origins:
        for name, origin in origins.items():
            length = e.streams[name].shape[1] if name in e.streams else None
            yield from _origin(origin, length)


def _tensors(e: Result) -> Iterator[tuple[str, Tensor]]:
    for f in fields(e):
        value = getattr(e, f.name)
        if isinstance(value, Tensor):
            yield f.name, value
    yield from ((f"streams {name}", tensor) for name, tensor in e.streams.items())


def _patches(e: Result) -> Iterator[str]:
    longest = max([e.scores.shape[1], *(s.shape[1] for s in e.streams.values())])
    if e.grid is not None and (min(e.grid) < 1 or e.patch_start < 0 or e.patch_start + e.grid[0] * e.grid[1] > longest):
        yield f"'grid' has {e.grid[0]} x {e.grid[1]} patches from position {e.patch_start}, and there are {longest}"
    if e.image_size is not None and not 1 <= min(e.image_size) <= max(e.image_size) <= 1 << 16:
        yield f"'image_size' is {list(e.image_size)}"


def _books(ledger: Ledger | None, coverage: Coverage, batch: int) -> Iterator[str]:
    if not fits(dict(coverage.seen), Mapping[str, int]) or not fits(dict(coverage.plain), Mapping[str, int]):
        yield "'coverage' counts something that is no number"
    if not fits(coverage.ruled, Mapping[str, str]):
        yield "'coverage' names something that is no rule"
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


def _origin(origin: Origin, length: int | None) -> Iterator[str]:
    """What is wrong with what the user gave, for a stream of some length."""
    if isinstance(origin, TextOrigin):
        if len(origin.tokens) != len(origin.spans) or (length is not None and len(origin.tokens) != length):
            yield f"a text has {len(origin.tokens)} tokens, {len(origin.spans)} places and {length} scores"
        if not all(_inside(span, origin.texts) for span in (*origin.spans, *origin.unread) if span is not None):
            yield "a token stands outside its text"
    elif isinstance(origin, ImageOrigin):
        if origin.image.dtype != np.uint8 or origin.image.ndim != 3 or origin.image.shape[2] != 3:
            yield f"a picture is {origin.image.dtype} of shape {list(origin.image.shape)}"
        placed = [*origin.scale, *origin.shift]
        if not all(map(math.isfinite, placed)) or not all(origin.scale) or min(origin.size) < 1:
            yield "a picture is laid on nothing"
    elif isinstance(origin, SoundOrigin):
        if origin.samples.ndim != 1 or origin.samples.dtype.kind != "f" or origin.rate < 1:
            yield "a recording is no wave"
        if not 0 <= origin.heard < math.inf:
            yield f"a recording was heard for {origin.heard} seconds"
    elif isinstance(origin, SeriesOrigin) and (origin.values.ndim != 2 or origin.values.dtype.kind != "f"):
        yield f"a series is {origin.values.dtype} of shape {list(origin.values.shape)}"


def _inside(span: Span, texts: tuple[str, ...]) -> bool:
    return 0 <= span.part < len(texts) and 0 <= span.start <= span.end <= len(texts[span.part])


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type, and all that it holds.

    Example:
        >>> fits(("a", 1), tuple[str, ...])
        False
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hasattr(origin, "__value__"):  # an alias made by `type`, as NumPy has them from Python 3.12 on
        return fits(value, origin.__value__[inner])
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in inner)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if isinstance(value, tuple) and inner[-1] is Ellipsis else list(inner)
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return False
        return all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    kind = NoneType if hint is None else origin or hint
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind is Span or is_dataclass(kind):
        own = _hints(kind)
        return isinstance(value, kind) and all(fits(getattr(value, name), part) for name, part in own.items())
    return isinstance(value, kind)
