"""The backwards of several targets in one: the same graph from many seeds, by ``torch.vmap``.

Of few tokens a layer's backward takes about as long for ten targets as for one; of many it is bound by arithmetic, and
ten at once save little. So targets go together as long as their rows are few.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .ledger import Entry

if TYPE_CHECKING:
    from .run import Run

#: rows (targets x samples x tokens) of one backward; with more it is no faster, and memory grows with them
ROWS = 4096


@dataclass
class Brought:
    """What a backward brought.

    Attributes:
        tensors: the tensors it was asked for, by ``id``.
        found: what arrived at each.
        passed: what passed each boundary.
        entries: the ledger's.
    """

    tensors: list[int]
    found: list[Tensor | None]
    passed: list[Tensor | None]
    entries: list[Entry]


def bring(run: Run, tensors: Sequence[Tensor]) -> bool:
    """Do a run's backward together with those of its siblings that follow it.

    Returns:
        Whether it was done, and what it brought is kept with each run; ``False`` if the run has to go alone.
    """
    after = [other for other in run.siblings[run.siblings.index(run) :] if other.seed.output is run.seed.output]
    rows = run.boundaries[0].tensor.numel() // max(1, run.boundaries[0].tensor.shape[-1]) if run.boundaries else ROWS
    runs = after[: max(1, ROWS // max(1, rows))]
    if len(runs) < 2:
        return False
    absent: list[bool] = []
    ledger, entries = run.trace.ledger, []

    def one(weights: Tensor) -> tuple[Tensor, ...]:
        nonlocal absent, entries
        found = run.send(tensors, weights, keep=True)
        entries = [] if ledger is None else ledger.entries
        values = [*found, *(b.relevance for b in run.passages()), *(entry.amount for entry in entries)]
        absent = [value is None for value in values]
        return tuple(value for value in values if value is not None)

    try:
        with warnings.catch_warnings():  # of operations that it does one after the other all the same
            warnings.filterwarnings("ignore", "There is a performance drop")
            several = torch.vmap(one)(torch.stack([other.seed.weights for other in runs]))
    except RuntimeError:  # an operation of which torch does not know how to do many at once
        several = None
    if ledger is not None:
        ledger.forget()
    for b in run.passages():
        b.relevance = None
    if several is None:
        for other in run.siblings:
            other.siblings = [other]
        return False
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
    return True
