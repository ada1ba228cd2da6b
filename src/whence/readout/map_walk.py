"""Attention maps with their gradients, visited during the backward pass, one layer at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..runs.run import Carry, Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.fused_attention import Piece

#: called with the index of an attention, a chunk of samples and heads (empty: all), and two tensors of the chunk,
#: ``[batch, heads, queries, keys]``: the map and its gradient, or the map's gradient and its relevance
Visit = Callable[[int, Piece, Tensor, Tensor], None]


@dataclass
class LayerMap:
    """The weighted maps of an attention, reduced over its heads.

    Attributes:
        map: ``[batch, queries, keys]``, their mean.
        mass: ``[batch, heads]``, the sum of each.
        read: ``[batch, queries]``, the rows in which some head has a gradient.
    """

    map: Tensor
    mass: Tensor
    read: Tensor


class MapAccumulator:
    """Reduces the maps of attentions over heads, from chunks of heads.

    Args:
        records: the attentions.
        done: called with the index of an attention and its reduced maps, when all its heads have been added.
    """

    def __init__(self, records: Sequence[AttentionRecord], done: Callable[[int, LayerMap], None]) -> None:
        self.records = records
        self.done = done
        self._partial: dict[int, LayerMap] = {}
        self._added: Counter[int] = Counter()  # samples x heads

    def add(self, i: int, chunk: Piece, weighted: Tensor, gradient: Tensor) -> None:
        """Add a chunk of an attention: its weighted maps and their gradient."""
        batch = self.records[i].batch.size
        heads, queries, keys = self.records[i].shape
        if i not in self._partial:
            self._partial[i] = LayerMap(
                map=weighted.new_zeros(batch, queries, keys),
                mass=weighted.new_zeros(batch, heads),
                read=weighted.new_zeros(batch, queries),
            )
        layer = self._partial[i]
        layer.map[chunk[:1]] += weighted.sum(1) / heads
        layer.mass[chunk] = weighted.sum((-2, -1))
        layer.read[chunk[:1]] += (gradient != 0).any(-1).any(1)
        self._added[i] += weighted.shape[0] * weighted.shape[1]
        if self._added[i] == batch * heads:
            self.done(i, self._partial.pop(i))
            del self._added[i]


def visit_gradients(run: Run, visit: Visit, keep: bool = False, weights: Tensor | None = None) -> None:
    """Run a backward pass and visit each attention's map and gradient, from the last to the first; none is stored.

    Args:
        run: a traced forward pass.
        visit: the visitor, called in chunks of heads where attention is fused. Attentions that the target does not
            depend on are not visited.
        keep: whether another backward pass will follow.
        weights: what to start from in place of the weights of the seed.

    Example:
        >>> visit_gradients(run, lambda i, chunk, A, gradient: print(i, (A * gradient).sum((-2, -1))))
    """
    keep = keep or run.more
    removers = [_add_gradient_visitor(i, record, visit, keep) for i, record in enumerate(run.trace.attentions)]
    try:
        run.backward([source.tensor for source in run.trace.sources], weights=weights, keep=keep)
    finally:
        for remove in removers:
            remove()


def visit_relevance(
    run: Run, visit: Visit, tensors: Sequence[Tensor], keep: bool = False, weights: Tensor | None = None
) -> list[Tensor]:
    """Run a backward pass of gradients, then one of relevance that visits both for each attention's map.

    Relevance starts from the positive weights of the target: of a contrast, from its first class alone.

    Args:
        run: a traced forward pass, under rules of relevance.
        visit: the visitor, as in :func:`visit_gradients`.
        tensors: the tensors at which relevance is read.
        keep: whether another backward pass will follow.
        weights: what to start from in place of the weights of the seed.

    Returns:
        The relevance at each tensor.
    """
    records = run.trace.attentions
    gradients = run.backward([_tensor_of_gradient(record) for record in records], weights=weights, keep=True)
    pairs = zip(records, gradients, strict=True)
    removers = [_add_relevance_visitor(i, record, gradient, visit) for i, (record, gradient) in enumerate(pairs)]
    positive = (run.seed.weights if weights is None else weights).clamp(min=0)
    try:
        return run.backward(tensors, carry=Carry.RELEVANCE, weights=positive, keep=keep)
    finally:
        for remove in removers:
            remove()


def _tensor_of_gradient(record: AttentionRecord) -> Tensor:
    """Return the tensor at which an attention's gradient is read: its map, or its output if the kernel is fused."""
    found = record.probabilities if record.shown is None else record.output
    assert found is not None
    return found


def _add_relevance_visitor(index: int, record: AttentionRecord, gradient: Tensor, visit: Visit) -> Callable[[], None]:
    """Call a visitor when relevance passes an attention; returns a function that removes it."""
    shown = record.shown
    if shown is None:

        def visit_map(relevance: Tensor) -> None:
            visit(index, (), record.arrange(gradient), record.arrange(relevance.detach()))

        handle = _tensor_of_gradient(record).register_hook(visit_map)
        return lambda: handle.remove()

    def visit_chunk(chunk: Piece, relevance: Tensor) -> None:
        own = shown.part(chunk).gradient(gradient[chunk])
        if chunk:  # the first two dimensions are samples and heads
            visit(index, chunk, record.in_order(own, chunk[0]), record.in_order(relevance, chunk[0]))
        else:
            visit(index, chunk, record.arrange(own), record.arrange(relevance))

    return shown.watch_relevance(visit_chunk)


def last_gradient(run: Run) -> Tensor:
    """Run a backward pass to the last attention; return its map's gradient, ``[batch, heads, queries, keys]``."""
    record = run.trace.attentions[-1]
    if record.shown is None:
        assert record.probabilities is not None
        return record.arrange(run.backward([record.probabilities])[0])
    assert record.output is not None
    return record.arrange(record.shown.gradient(run.backward([record.output])[0]))


def _add_gradient_visitor(index: int, record: AttentionRecord, visit: Visit, keep: bool) -> Callable[[], None]:
    """Call a visitor when the backward pass reaches an attention; returns a function that removes it."""

    def visit_map(gradient: Tensor) -> None:
        assert record.probabilities is not None
        visit(index, (), record.map(), record.arrange(gradient.detach()))
        if not keep:
            record.release_map()  # during the backward pass

    def visit_chunk(chunk: Piece, A: Tensor, gradient: Tensor) -> None:
        if chunk:
            A, gradient = record.in_order(A, chunk[0]), record.in_order(gradient, chunk[0])
        else:
            A, gradient = record.arrange(A), record.arrange(gradient)
        visit(index, chunk, A, gradient)

    if record.shown is not None:
        return record.shown.watch_gradient(visit_chunk)
    assert record.probabilities is not None
    handle = record.probabilities.register_hook(visit_map)
    return lambda: handle.remove()
