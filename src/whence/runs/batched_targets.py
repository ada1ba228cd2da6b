"""The backwards of several targets in one: the same graph from many seeds, by ``torch.vmap``.

Of few tokens a layer's backward takes about as long for ten targets as for one; of many it is bound by arithmetic, and
ten at once save little. So targets go together as long as their rows are few. What does not depend on the target, such
as the denominators of LRP, is made once for all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..propagation.entry_amounts import EntryKey
from .boundaries import BatchedResult
from .run import Run

#: rows (targets x samples x tokens) of one backward; with more it is no faster, and memory grows with them
ROWS = 4096

#: reads with weights in place of those of the seed (``None``: those of the seed)
Read = Callable[[Tensor | None], Sequence[Tensor]]


def read_at_once(run: Run, read: Read) -> Sequence[Tensor]:
    """What a method reads in its backwards, together with what it will read for the targets that follow.

    A run of many rows, or of operations that torch does not know how to do many at once, goes alone.

    Args:
        run: of which nothing is read but what ``read`` returns, what passes its boundaries and what is in its ledger.
        read: runs a backward pass and returns what it found.
    """
    if not run.group.brought(run):
        _bring(run, read)
    brought = run.group.take(run)
    if brought is None or not brought.found:
        return read(None)
    for b, passed in zip(run.passages(), brought.passed, strict=True):
        b.set(passed)
    if run.ledger is not None:
        run.ledger.bring(brought.operations, brought.amounts)
    return brought.found


def _together(run: Run) -> list[Run]:
    """A run and those after it that go back together: they begin from the same output, and their rows are few."""
    after = [other for other in (run, *run.followers) if other.seed.output is run.seed.output]
    entry = run.boundaries[0].tensor if run.boundaries else run.seed.output
    return after[: ROWS // max(1, entry.numel() // entry.shape[-1])]


def _bring(run: Run, read: Read) -> None:
    """Read for a run and those that go back together with it; each keeps what was brought."""
    runs = _together(run)
    if len(runs) < 2:
        return
    ledger = run.ledger
    count = 0
    absent = list[bool]()
    operations = list[EntryKey]()

    def one(weights: Tensor) -> tuple[Tensor, ...]:
        nonlocal count, absent, operations
        found = read(weights)
        count = len(found)
        operations, amounts = ([], None) if ledger is None else ledger.recorded()
        values = [*found, *(b.relevance for b in run.passages()), amounts]
        absent = [value is None for value in values]
        return tuple(value for value in values if value is not None)

    several = _at_once(run, runs, one)
    if several is None:
        for other in runs:
            run.group.bring(other, BatchedResult())  # nothing: it goes alone
        return
    for i, other in enumerate(runs):
        values = iter([t[i] for t in several])
        own = [None if none else next(values) for none in absent]
        found = [value for value in own[:count] if value is not None]
        run.group.bring(other, BatchedResult(found, own[count:-1], operations, own[-1]))


def _at_once(run: Run, runs: Sequence[Run], one: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...] | None:
    """What is read with each run's weights in the seed, ``[runs, ...]``; ``None`` where torch cannot do several."""
    try:
        with warnings.catch_warnings():  # of operations that it does one after the other all the same
            warnings.filterwarnings("ignore", "There is a performance drop")
            return tuple(torch.vmap(one)(torch.stack([other.seed.start[1] for other in runs])))
    except RuntimeError:
        return None
    finally:
        for b in run.passages():
            b.set(None)
        if run.ledger is not None:
            run.ledger.clear()
