"""The backwards of several targets in one: the same graph from many seeds, by ``torch.vmap``.

Of few tokens a layer's backward takes about as long for ten targets as for one; of many it is bound by arithmetic, and
ten at once save little. So targets go together as long as their rows are few.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .boundary import Brought
from .ledger import Entry
from .run import Run

#: rows (targets x samples x tokens) of one backward; with more it is no faster, and memory grows with them
ROWS = 4096


def together(run: Run) -> list[Run]:
    """A run and those after it that go back together: they begin from the same output, and their rows are few."""
    after = [other for other in (run, *run.followers) if other.seed.output is run.seed.output]
    entry = run.boundaries[0].tensor if run.boundaries else run.seed.output
    return after[: ROWS // max(1, entry.numel() // entry.shape[-1])]


def at_once(run: Run, runs: Sequence[Run], read: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...] | None:
    """What is read with each run's weights in the seed, ``[runs, ...]``; ``None`` where torch cannot do several."""
    try:
        with warnings.catch_warnings():  # of operations that it does one after the other all the same
            warnings.filterwarnings("ignore", "There is a performance drop")
            return tuple(torch.vmap(read)(torch.stack([other.seed.start[1] for other in runs])))
    except RuntimeError:
        return None
    finally:
        for b in run.passages():
            b.relevance = None
        if run.trace.ledger is not None:
            run.trace.ledger.forget()


def read_at_once(run: Run, read: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What a method reads in one backward, together with what it will read for the targets that follow.

    Args:
        run: of which nothing is read but what ``read`` returns.
        read: sends the seed back and returns what it found.
    """
    runs = together(run) if run.readings is None else []
    if len(runs) > 1:

        def one(weights: Tensor) -> tuple[Tensor, ...]:
            run.instead = weights
            try:
                return read()
            finally:
                run.instead = None

        several = at_once(run, runs, one)
        for i, other in enumerate(runs):
            other.readings = () if several is None else tuple(t[i] for t in several)
    return run.readings or read()


def bring(run: Run, tensors: Sequence[Tensor]) -> None:
    """Do a run's backward together with those of the runs that follow it; each keeps what it brought.

    A run of many rows, or of operations that torch does not know how to do many at once, is left to go alone.

    Args:
        run: of which nothing is read but what arrives at the tensors, passes its boundaries and is in its ledger.
        tensors: where it will be read.
    """
    runs = together(run)
    if run.brought is not None or len(runs) < 2:
        return
    tensors = run.ends(tensors)
    absent: list[bool] = []
    ledger, entries = run.trace.ledger, []

    def one(weights: Tensor) -> tuple[Tensor, ...]:
        nonlocal absent, entries
        found = run.send(tensors, True, weights)
        entries = [] if ledger is None else ledger.entries
        values = [*found, *(b.relevance for b in run.passages()), *(entry.amount for entry in entries)]
        absent = [value is None for value in values]
        return tuple(value for value in values if value is not None)

    several = at_once(run, runs, one)
    if several is None:
        for other in runs:
            other.brought = Brought()  # nothing: it goes alone
        return
    for i, other in enumerate(runs):
        values = iter([t[i] for t in several])
        own = [None if none else next(values) for none in absent]
        passed = own[len(tensors) : len(own) - len(entries)]
        amounts = own[len(own) - len(entries) :]
        other.brought = Brought(
            [id(t) for t in tensors],
            own[: len(tensors)],
            passed,
            [Entry(e.seq, e.kind, e.name, a) for e, a in zip(entries, amounts, strict=True) if a is not None],
        )
