"""Attention maps with their gradients, looked at while the backward passes, one layer at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from torch import Tensor

from .attention import AttentionRecord
from .fused import Piece
from .run import Run

#: called with the index of an attention, its map and the map's gradient, ``[batch, heads, queries, keys]``
Visit = Callable[[int, Tensor, Tensor], None]
#: called with the index of an attention, which samples and heads, and the gradient and relevance of their maps
Witness = Callable[[int, Piece, Tensor, Tensor], None]


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


def walk_twice(run: Run, witness: Witness, tensors: Sequence[Tensor], keep: bool = False) -> list[Tensor]:
    """Send the seed back as gradients, then as relevance, and show both of each attention's map as relevance passes.

    Relevance starts from what the target speaks for: of a contrast, from its first class alone.

    Args:
        run: a traced forward, under rules of relevance.
        witness: who looks: at a few heads at a time where attention is fused, at none that the target does not reach.
        tensors: what relevance goes on to.
        keep: whether another backward will follow.

    Returns:
        The relevance that arrived at each tensor.
    """
    records = run.trace.attentions
    gradients = run.backward([_read_at(record) for record in records], keep=True)
    ends = [_let_witness(i, *pair, witness) for i, pair in enumerate(zip(records, gradients, strict=True))]
    sent = run.instead
    try:
        run.instead = (run.seed.weights if sent is None else sent).clamp(min=0)
        return run.backward(tensors, relevance=True, keep=keep)
    finally:
        run.instead = sent
        for end in ends:
            end()


def _read_at(record: AttentionRecord) -> Tensor:
    """Where the gradient of an attention is read: at its map, or, if that is never whole, at what it makes."""
    found = record.probabilities if record.shown is None else record.output
    assert found is not None
    return found


def _let_witness(index: int, record: AttentionRecord, gradient: Tensor, witness: Witness) -> Callable[[], None]:
    """Let somebody see an attention when relevance passes it; returns what ends that."""
    shown = record.shown
    if shown is None:

        def passed(relevance: Tensor) -> None:
            witness(index, (), record.arrange(gradient), record.arrange(relevance.detach()))

        handle = _read_at(record).register_hook(passed)
        return lambda: handle.remove()

    def seen(piece: Piece, relevance: Tensor) -> None:
        own = shown.part(piece).gradient(gradient[piece])
        if piece:  # the first two dimensions are samples and heads
            witness(index, piece, own, relevance)
        else:
            witness(index, piece, record.arrange(own), record.arrange(relevance))

    shown.witness = seen
    return functools.partial(setattr, shown, "witness", None)


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
