"""Several changed copies of a batch in one forward pass: how many, and whether they do not influence each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .._utils.free_memory import free_memory
from ..capture.tape import checking
from ..errors import ModelError
from ..tracing.node import walk
from ..tracing.tensor_info import node_of
from .run import Run

Point = TypeVar("Point")
Found = TypeVar("Found")

#: rows (copies x samples x tokens) of one forward pass for each thread of a CPU: more are no faster
ROWS = 1024
#: rows of one forward pass at most, on any device
MOST_ROWS = 16384
#: the share of the free memory that copies may take
SHARE = 0.5
#: a forward pass without a graph frees each tensor after its last use: it holds a few of the largest at once
HELD = 4


def copies_at_once(run: Run, places: Sequence[Tensor], samples: int | None, gradients: bool) -> int:
    """Return how many copies of the batch are run in one forward pass, at least 1.

    Args:
        run: the run whose model is run again.
        places: the tensors that are replaced.
        samples: how many samples a forward pass may have; ``None``: as many as fit into the free memory, up to a
            number of rows from which on more are no faster.
        gradients: whether a backward pass follows, for which a forward pass keeps its tensors.
    """
    if len(places) > 1 or run.seed.index is None or (run.trace.batch,) not in node_of(places[0]).axes:
        return 1
    if samples is not None:
        return max(1, samples // run.trace.batch.size)
    device = places[0].device
    tokens = run.boundaries[0].tensor if run.boundaries else places[0]
    rows = min(ROWS * torch.get_num_threads(), MOST_ROWS) if device.type == "cpu" else MOST_ROWS
    copies = rows // max(1, tokens.numel() // tokens.shape[-1])
    free = free_memory(device)
    if free is not None:
        copies = min(copies, int(SHARE * free) // memory_of_copy(run, gradients))
    return max(1, copies)


def memory_of_copy(run: Run, gradients: bool) -> int:
    """Return how many bytes a forward pass of one copy of the batch takes, at most: its tensors, views included."""
    sizes = [node.numel * node.dtype.itemsize for node in walk([node_of(run.seed.output)])]
    return max(1, sum(sizes) if gradients else HELD * max(sizes))


def in_chunks(
    points: Iterable[Point],
    copies: int,
    together: Callable[[list[Point]], list[Found]],
    alone: Callable[[Point], Found],
    agree: Callable[[list[Found], Found], bool],
) -> Iterator[Found]:
    """Yield what a model gives at each of several points, which are run as copies in one batch.

    Only if copies do not influence each other: to test this, one of them is also run by itself. Where they do (batch
    statistics, experts with a limited capacity), or where the model does not take several, points are run one by one.

    Args:
        points: what the model is run on.
        copies: how many at once.
        together: runs several points in one batch; may raise a :class:`ModelError` or ``RuntimeError``.
        alone: runs one point.
        agree: whether the last of several results is, up to rounding, that of the same point alone.
    """
    points = iter(points)
    checked = False
    while chunk := list(itertools.islice(points, copies)):
        found = _tried(together, chunk) if len(chunk) > 1 else None
        if found is not None and not checked:
            with checking():
                checked = agree(found, alone(chunk[-1]))
            found = found if checked else None
        if found is None:
            copies = 1
            yield from map(alone, chunk)
        else:
            yield from found


def _tried(together: Callable[[list[Point]], list[Found]], chunk: list[Point]) -> list[Found] | None:
    """Return the results for several points; ``None`` if the model cannot be run on several copies."""
    try:
        return together(chunk)
    except (ModelError, RuntimeError):
        return None
