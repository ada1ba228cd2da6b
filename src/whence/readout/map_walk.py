"""Attention maps with their gradients, looked at while the backward passes, one layer at a time."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.fused_attention import Piece

#: called with the index of an attention, which samples and heads (nothing: all), and two tensors of those,
#: ``[batch, heads, queries, keys]``: the map and its gradient, or the map's gradient and its relevance
Visit = Callable[[int, Piece, Tensor, Tensor], None]


@dataclass
class LayerMap:
    """What is left of the weighted maps of an attention when its heads are added up.

    Attributes:
        map: ``[batch, queries, keys]``, their mean.
        mass: ``[batch, heads]``, the sum of each.
        read: ``[batch, queries]``, the rows in which some head has a gradient.
    """

    map: Tensor
    mass: Tensor
    read: Tensor


class MapAccumulator:
    """Adds up the heads of attentions that come in pieces.

    Args:
        records: the attentions.
        done: called with the index of an attention and what is left of it, when all its heads have come.
    """

    def __init__(self, records: Sequence[AttentionRecord], done: Callable[[int, LayerMap], None]) -> None:
        self.records, self.done = records, done
        self._begun: dict[int, LayerMap] = {}
        self._come: Counter[int] = Counter()  # heads of samples

    def add(self, i: int, piece: Piece, weighted: Tensor, gradient: Tensor) -> None:
        """Add a piece of an attention: its weighted maps and their gradient."""
        batch, (heads, queries, keys) = self.records[i].batch.size, self.records[i].shape
        if i not in self._begun:
            sizes = (batch, queries, keys), (batch, heads), (batch, queries)
            self._begun[i] = LayerMap(*(weighted.new_zeros(size) for size in sizes))
        layer = self._begun[i]
        layer.map[piece[:1]] += weighted.sum(1) / heads
        layer.mass[piece] = weighted.sum((-2, -1))
        layer.read[piece[:1]] += (gradient != 0).any(-1).any(1)
        self._come[i] += weighted.shape[0] * weighted.shape[1]
        if self._come[i] == batch * heads:
            self.done(i, self._begun.pop(i))
            del self._come[i]


def walk(run: Run, visit: Visit, keep: bool = False) -> None:
    """Send the seed back and show each attention on the way, from the last to the first; none is kept.

    Args:
        run: a traced forward.
        visit: who looks, at a few heads at a time where attention is fused. Attentions that the target does not
            depend on are not shown.
        keep: whether another backward will follow.

    Example:
        >>> walk(run, lambda i, piece, A, gradient: print(i, (A * gradient).sum((-2, -1))))
    """
    keep = keep or run.more
    ends = [_show(i, record, visit, keep) for i, record in enumerate(run.trace.attentions)]
    try:
        run.backward([source.tensor for source in run.trace.sources], keep=keep)
    finally:
        for end in ends:
            end()


def walk_twice(run: Run, visit: Visit, tensors: Sequence[Tensor], keep: bool = False) -> list[Tensor]:
    """Send the seed back as gradients, then as relevance, and show both of each attention's map as relevance passes.

    Relevance starts from what the target speaks for: of a contrast, from its first class alone.

    Args:
        run: a traced forward, under rules of relevance.
        visit: who looks, as in :func:`walk`.
        tensors: what relevance goes on to.
        keep: whether another backward will follow.

    Returns:
        The relevance that arrived at each tensor.
    """
    records = run.trace.attentions
    gradients = run.backward([_read_at(record) for record in records], keep=True)
    ends = [_let_witness(i, *pair, visit) for i, pair in enumerate(zip(records, gradients, strict=True))]
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


def _let_witness(index: int, record: AttentionRecord, gradient: Tensor, visit: Visit) -> Callable[[], None]:
    """Let somebody see an attention when relevance passes it; returns what ends that."""
    shown = record.shown
    if shown is None:

        def passed(relevance: Tensor) -> None:
            visit(index, (), record.arrange(gradient), record.arrange(relevance.detach()))

        handle = _read_at(record).register_hook(passed)
        return lambda: handle.remove()

    def seen(piece: Piece, relevance: Tensor) -> None:
        own = shown.part(piece).gradient(gradient[piece])
        if piece:  # the first two dimensions are samples and heads
            visit(index, piece, own, relevance)
        else:
            visit(index, piece, record.arrange(own), record.arrange(relevance))

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

    def passed(gradient: Tensor) -> None:
        assert record.probabilities is not None
        visit(index, (), record.map(), record.arrange(gradient.detach()))
        if not keep:
            record.probabilities = record.mix = None  # what autograd does not need any more is then free

    def seen(piece: Piece, A: Tensor, gradient: Tensor) -> None:
        if not piece:
            A, gradient = record.arrange(A), record.arrange(gradient)
        visit(index, piece, A, gradient)

    if record.shown is not None:
        record.shown.visit = seen
        return functools.partial(setattr, record.shown, "visit", None)
    assert record.probabilities is not None
    handle = record.probabilities.register_hook(passed)
    return lambda: handle.remove()
