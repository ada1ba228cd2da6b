"""Attention maps with their gradients, looked at while the backward passes, one layer at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import Tensor

from .attention import AttentionRecord
from .run import Run

#: called with the index of an attention, its map and the map's gradient, ``[batch, heads, queries, keys]``
Visit = Callable[[int, Tensor, Tensor], None]


def walk(run: Run, visit: Visit, keep: bool = False) -> None:
    """Send the seed back and show each attention on the way, from the last to the first; none is kept.

    Args:
        run: a traced forward.
        visit: who looks. Attentions that the target does not depend on are not shown.
        keep: whether another backward will follow.

    Example:
        >>> walk(run, lambda i, A, gradient: print(i, (A * gradient).sum((-2, -1))))
    """
    keep = keep or run.more
    ends = [_show(i, record, visit, keep) for i, record in enumerate(run.trace.attentions)]
    try:
        run.backward([source.tensor for source in run.trace.sources], keep=keep)
    finally:
        for end in ends:
            end()


def last_gradient(run: Run) -> Tensor:
    """The gradient of the last attention's map, ``[batch, heads, queries, keys]``; the backward ends there."""
    record = run.trace.attentions[-1]
    if record.shown is None:
        assert record.probabilities is not None
        return record.arrange(run.backward([record.probabilities])[0])
    assert record.output is not None
    return record.arrange(record.shown.gradient(run.backward([record.output])[0]))


def _show(index: int, record: AttentionRecord, visit: Visit, keep: bool) -> Callable[[], None]:
    """Let a visitor see an attention when the backward passes it; returns what ends that."""

    def shown(A: Tensor, gradient: Tensor) -> None:
        visit(index, record.arrange(A), record.arrange(gradient))

    def passed(gradient: Tensor) -> None:
        assert record.probabilities is not None
        shown(record.probabilities.detach(), gradient.detach())
        if not keep:
            record.probabilities = record.mix = None  # what autograd does not need any more is then free

    if record.shown is not None:
        record.shown.visit = shown
        return functools.partial(setattr, record.shown, "visit", None)
    assert record.probabilities is not None
    handle = record.probabilities.register_hook(passed)
    return lambda: handle.remove()
