"""Relevance between the tokens of a tensor and the model's input tokens, through attention between any streams.

A state holds, for the tokens of one tensor, a matrix to the tokens of every stream that contributed to it: ``R_ss`` to
its own, ``R_sq`` to another (Chefer, Gur, Wolf, ICCV 2021). It belongs to a tensor, not to a stream: an attention reads
the state of the tensor that its values are projected from, and its residual addition writes a new one. So the two
directions of a co-attention both read the states before it, and a decoder reads those of the encoder, for any
architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from ..runs.run import Run
from ..tracing.axes import Dim, order_of, plain, size_of
from ..tracing.node import Node, walk
from ..tracing.reductions import arrange, per_sample, per_token, precise, restored, unmerge
from ..tracing.tensor_info import edge_of, node_of

State = dict[Dim, Tensor]  #: stream -> [batch, tokens here, tokens there]
#: the state of the queries, that of the keys, the map [batch, queries, keys], the two streams, the state in which the
#: stream of the keys began -> the new state
Update = Callable[[State, State, Tensor, Dim, Dim, State], State]


@dataclass(frozen=True)
class StreamState:
    """The state of a tensor after an attention.

    Attributes:
        tensor: the tensor.
        rows: its token axis.
        state: its matrix to the tokens of each stream.
        begun: its matrix when its stream began, before any attention.
        read: whether another stream reads it.
    """

    tensor: Tensor
    rows: Dim
    state: State
    begun: State
    read: bool = False


@dataclass
class _StateTable:
    """The states of all tensors so far, by the sequence number of their nodes.

    Attributes:
        states: the states.
        read: those that another stream reads.
        joined: those that a new stream is made of, which count as read from the next attention on.
    """

    states: dict[int, StreamState] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)

    def nearest(self, node: Node | None, rows: Dim) -> int | None:
        """Return the last tensor with a state, over the same tokens, that a tensor derives from."""

        def has_state(here: Node) -> bool:
            return here.seq in self.states and self.states[here.seq].rows == rows

        nodes = walk([] if node is None else [node], lambda here: () if has_state(here) else here.parents)
        return max((here.seq for here in nodes if has_state(here)), default=None)

    def add(self, state: StreamState) -> None:
        """Add the state that an attention wrote."""
        self.read |= self.joined
        seq = node_of(state.tensor).seq
        self.read.discard(seq)  # a second attention in the same residual addition overwrites the state of the first
        self.joined.discard(seq)
        self.states[seq] = state


def roll_up_states(run: Run, maps: Sequence[Tensor], update: Update) -> list[StreamState]:
    """Update the states through all attentions.

    Args:
        run: a traced forward pass.
        maps: one ``[batch, queries, keys]`` per attention.
        update: the update of a state by an attention.

    Returns:
        The state that each attention wrote, in the order of the forward pass.
    """
    table = _StateTable()
    for i, (record, A) in enumerate(zip(run.trace.attentions, maps, strict=True)):
        queries = record.axes[record.query]
        keys = record.axes[record.key]
        residual = next((r for r in run.trace.residuals if i in r.attentions), None)
        source = table.nearest(record.reads, keys)
        if source is None:
            read, begun = _initial_states(run, record.values, keys, table, A)
        else:
            begun, read = table.states[source].begun, table.states[source].state
        if source is not None and queries != keys:
            table.read.add(source)
        if residual is None:  # attention whose output replaces its queries (a pooling)
            assert record.output is not None
            if source is not None:
                _require_pooling(run, source, node_of(record.output).seq)
            pooled = {stream: A @ R for stream, R in read.items()}
            table.add(StreamState(record.output, queries, pooled, pooled))
        else:
            trunk = table.nearest(node_of(residual.trunk), queries)
            if trunk is None:
                mine, first = _initial_states(run, residual.trunk, queries, table, A)
            else:
                mine, first = table.states[trunk].state, table.states[trunk].begun
            new = update(mine, read, A, queries, keys, begun)
            table.add(StreamState(residual.output, queries, new, first))
    return [replace(state, read=seq in table.read) for seq, state in table.states.items()]


def _require_pooling(run: Run, source: int, output: int) -> None:
    """Raise an error if the stream that an attention reads also goes round it, in a sum that is not recognised.

    Args:
        run: a traced forward pass.
        source: the stream (by ``seq``).
        output: what the attention made (by ``seq``).
    """
    others = {node_of(r.output).seq for r in run.trace.residuals if r.attentions}
    others |= {node_of(r.output).seq for r in run.trace.attentions if r.output is not None}
    if source in node_of(run.seed.output).reachable({output, *others} - {source}):
        raise ModelError(
            "The tokens that one of the model's attentions reads also reach the target past it, but no residual "
            "connection was recognised around it, so that its map cannot be rolled up. Input-level methods "
            "(conservative-lrp, gradient-x-input) work."
        )


def _initial_states(
    run: Run, tensor: Tensor | None, rows: Dim, table: _StateTable, like: Tensor
) -> tuple[State, State]:
    """Return the state where a stream begins: identities, or matrices to the earlier streams that it is made of.

    Returns:
        The state, and the same without the attentions of earlier streams: to their tokens, one by one.
    """
    own = torch.ones(len(like), size_of(rows), dtype=like.dtype, device=like.device)
    state: State = {}
    begun: State = {}
    ancestors = set() if tensor is None else node_of(tensor).ancestors() & set(table.states)
    last_of_stream = {table.states[seq].rows: seq for seq in sorted(ancestors)}
    for seq in last_of_stream.values():
        if seq in table.read or tensor is None:
            continue
        earlier = table.states[seq]
        origins = _token_origins(run, tensor, rows, earlier).to(like.dtype)
        table.joined.add(seq)
        own = own * (origins.sum(-1) == 0)
        mean = origins / origins.sum(-1, keepdim=True).clamp(min=1)
        for new, old in ((state, earlier.state), (begun, earlier.begun)):
            for stream, R in old.items():
                new[stream] = new.get(stream, 0.0) + mean @ R
    for stream, start, end in _slices(rows, bool(state)):
        if bool(own[:, start:end].any()) and size_of(stream) == end - start:
            state[stream] = begun[stream] = torch.diag_embed(own)[:, :, start:end]
    return state, begun


def _slices(rows: Dim, joined: bool) -> list[tuple[Dim, int, int]]:
    """Return the streams that a token axis is made of, with where each begins and ends: itself, or several parts."""
    if not joined or len(rows) != 1 or not rows[0].parts:
        return [(rows, 0, size_of(rows))]
    ends = torch.tensor([p.length for p in rows[0].parts]).cumsum(0).tolist()  # constants are no stream
    return [(p.source, e - p.length, e) for p, e in zip(rows[0].parts, ends, strict=True) if p.source]


def _token_origins(run: Run, tensor: Tensor, rows: Dim, earlier: StreamState) -> Tensor:
    """Return ``[batch, tokens, earlier tokens]``: 1 where a token is made of an earlier one (alone, or among others).

    The gradient of all tokens with respect to an earlier one is computed twice: once with each token weighted by 1 and
    once by its index. Their ratio is the index of the token that the earlier one became part of.
    """
    batch = run.trace.batch
    phase = run.rulebook.phase
    if phase is not None:
        phase.carry(relevance=False)
    sums = per_token(tensor, node_of(tensor).axes, batch, rows)
    numbers = torch.arange(1, sums.shape[1] + 1, dtype=sums.dtype, device=sums.device)
    ends: Any = [edge_of(earlier.tensor)]
    once, numbered = (
        torch.autograd.grad(s.sum(), ends, retain_graph=True, materialize_grads=True)[0] for s in (sums, sums * numbers)
    )
    _, axes = unmerge(once, node_of(earlier.tensor).axes, batch)
    at = next((i for i, dim in enumerate(plain(axes)) if dim == earlier.rows), None)
    if at is not None and sums.shape[1] == size_of(rows):
        once, numbered = (
            restored(found, 2, None if (order := order_of(axes[at])) is None else order.places)
            for found in (
                arrange(precise(unmerge(g, node_of(earlier.tensor).axes, batch)[0]), axes, batch, (at,))
                for g in (once, numbered)
            )
        )
        norm = (once * once).sum(1)
        places = ((once * numbered).sum(1) / norm.clamp(min=torch.finfo(norm.dtype).tiny)).round()
        error = (numbered - once * places[:, None]).abs().max()
        if bool(error <= 1e-3 * numbered.abs().max()):
            made = torch.zeros(len(norm), size_of(rows) + 1, norm.shape[1], dtype=norm.dtype, device=norm.device)
            return made.scatter(1, places.long()[:, None], 1.0)[:, 1:]
    raise _not_followed(size_of(rows), size_of(earlier.rows))


def _not_followed(tokens: int, others: int) -> ModelError:
    return ModelError(
        f"The model makes new tokens ({tokens}) of others ({others}) in a way that relations between tokens cannot be "
        "followed through. Input-level methods (conservative-lrp, gradient-x-input) work."
    )


def accumulate(mine: State, read: State, A: Tensor, queries: Dim, keys: Dim, begun: State | None = None) -> State:
    """Return ``R = R + A R``: the state of the keys is added to that of the queries, for every stream alike."""
    return {**mine, **{stream: mine.get(stream, 0.0) + A @ R for stream, R in read.items()}}


def keep_last(mine: State, read: State, A: Tensor, queries: Dim, keys: Dim, begun: State | None = None) -> State:
    """Return the last attention to each stream, without those before it."""
    return {**mine, **{stream: A @ R for stream, R in (begun or read).items()}}


def explained_scores(
    run: Run, written: Sequence[StreamState], every: bool = False, token: int | None = None
) -> list[tuple[Dim, Tensor]]:
    """Return the mean of the rows that the target reads, of each stream's last state: ``[batch, tokens]`` per stream.

    A stream that another one reads in the end (an encoder) is part of that one's state. The main stream, which the
    first attention reads, comes first.

    Args:
        run: a traced forward pass.
        written: the states after each attention.
        every: return the sum of all rows of the streams that the target reads, instead.
        token: return the row of this token of the main stream, instead.
    """
    ends = [w for w in {w.rows: w for w in written}.values() if not w.read]
    gradients = run.backward([w.tensor for w in ends])
    scores: dict[Dim, Tensor] = {}
    for w, gradient in zip(ends, gradients, strict=True):
        nonzero = (gradient != 0).to(gradient.dtype)
        axes = node_of(w.tensor).axes
        if w.rows:
            counts = per_token(nonzero, axes, run.trace.batch, w.rows)
        else:  # a single token has no axis
            counts = per_sample(nonzero, axes, run.trace.batch)[:, None]
        rows = counts != 0
        weights = rows.to(counts.dtype) / rows.sum(-1, keepdim=True).clamp(min=1)
        if every:
            real = rows.new_ones(rows.shape) if run.mask is None or run.mask.shape != rows.shape else ~run.mask
            weights = (real & rows.any(-1, keepdim=True)).to(weights.dtype)
        if token is not None:
            weights = torch.zeros_like(weights)
            if w.rows == run.tokens:
                weights[:, token] = 1
        for stream, R in w.state.items():
            if R.shape[1] != weights.shape[1]:  # heads folded into queries
                raise _not_followed(weights.shape[1], R.shape[1])
            scores[stream] = scores.get(stream, 0.0) + (weights.to(R.dtype)[:, None] @ R)[:, 0]
    main = run.tokens
    if main not in scores:  # the last attention does not read it
        scores[main] = next(iter(scores.values())).new_zeros(run.trace.batch.size, size_of(main))
    return [(main, scores[main]), *((stream, found) for stream, found in scores.items() if stream != main)]


def zero_layers_before(run: Run, maps: Sequence[Tensor], start: int) -> list[Tensor]:
    """Return the maps with those before layer ``start`` of each stream at zero; layers are counted by query stream."""
    by_stream: dict[Dim, list[int]] = {}
    for i, record in enumerate(run.trace.attentions):
        by_stream.setdefault(record.axes[record.query], []).append(i)
    kept = {i for layers in by_stream.values() for i in layers[start:]}
    return [A if i in kept else torch.zeros_like(A) for i, A in enumerate(maps)]
