"""How tokens relate to the tokens that entered the model, through attention between any streams.

A state holds, for the tokens of one tensor, a matrix to the tokens of every stream that it has heard of: ``R_ss`` to
its own, ``R_sq`` to another (Chefer, Gur, Wolf, ICCV 2021). It belongs to a tensor, not to a stream: an attention reads
the state of the tensor that its values are projected from, and its residual addition writes a new one. So the two
directions of a co-attention both read what was there before, and a decoder reads what the encoder wrote, without a word
about the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from ..runs.run import Run
from ..tracing.axes import Dim, size_of
from ..tracing.node import Node, edge_of, node_of
from ..tracing.reductions import arrange, per_sample, per_token, precise, unmerge

State = dict[Dim, Tensor]  #: stream -> [batch, tokens here, tokens there]
#: the state of the queries, that of what is read, the map [batch, queries, keys], the two streams -> the new state
Update = Callable[[State, State, Tensor, Dim, Dim], State]


@dataclass
class StreamState:
    """A tensor that an attention wrote to: its token axis, its state, whether a stream reads it or is made of it."""

    tensor: Tensor
    rows: Dim
    state: State
    read: bool = False
    joined: bool = False


def relate(run: Run, maps: Sequence[Tensor], update: Update) -> list[StreamState]:
    """Follow the states through all attentions.

    Args:
        run: a traced forward.
        maps: one ``[batch, queries, keys]`` per attention.
        update: what an attention does to a state.

    Returns:
        What each attention wrote, in the order of the forward pass.
    """
    states: dict[int, StreamState] = {}
    for i, (record, A) in enumerate(zip(run.trace.attentions, maps, strict=True)):
        queries, keys = record.axes[record.query], record.axes[record.key]
        residual = next((r for r in run.trace.residuals if i in r.attentions), None)
        source = _nearest(record.reads, keys, states)
        read = _begin(run, record.values, keys, states, A) if source is None else source.state
        if source is not None and queries != keys:
            source.read = True
        if residual is None:  # attention that replaces what was there (a pooling)
            assert record.output is not None
            new = StreamState(record.output, queries, {stream: A @ R for stream, R in read.items()})
        else:
            before = _nearest(node_of(residual.trunk), queries, states)
            mine = _begin(run, residual.trunk, queries, states, A) if before is None else before.state
            new = StreamState(residual.output, queries, update(mine, read, A, queries, keys))
        for w in states.values():
            w.read = w.read or w.joined
        states[node_of(new.tensor).seq] = new
    return list(states.values())


def _begin(run: Run, tensor: Tensor | None, rows: Dim, states: dict[int, StreamState], like: Tensor) -> State:
    """A stream begins: its tokens relate to themselves, or to the tokens of earlier streams that they are made of."""
    own = torch.ones(len(like), size_of(rows), dtype=like.dtype, device=like.device)
    state: State = {}
    behind = set() if tensor is None else node_of(tensor).ancestors() & set(states)
    for w in {states[seq].rows: states[seq] for seq in sorted(behind)}.values():
        if w.read or tensor is None:
            continue
        made = _made_of(run, tensor, rows, w).to(like.dtype)
        w.joined = True
        own = own * (made.sum(-1) == 0)
        parts = made / made.sum(-1, keepdim=True).clamp(min=1)
        for stream, R in w.state.items():
            state[stream] = state.get(stream, 0.0) + parts @ R
    stretches = [(rows, 0, size_of(rows))]
    if state and len(rows) == 1 and rows[0].parts:  # what was joined: each part is a stream, but for constants
        ends = torch.tensor([p.length for p in rows[0].parts]).cumsum(0).tolist()
        stretches = [(p.source, e - p.length, e) for p, e in zip(rows[0].parts, ends, strict=True) if p.source]
    for stream, start, end in stretches:
        if bool(own[:, start:end].any()) and size_of(stream) == end - start:
            state[stream] = torch.diag_embed(own)[:, :, start:end]
    return state


def _made_of(run: Run, tensor: Tensor, rows: Dim, earlier: StreamState) -> Tensor:
    """``[batch, tokens, earlier tokens]``: 1 where a token is made of an earlier one (alone, or with its neighbours).

    The gradient of all tokens with respect to an earlier one, once with each token counted as 1 and once as its number,
    differs by the number of the token that it became part of.
    """
    batch, phase = run.trace.batch, run.rulebook.phase
    if phase is not None:
        phase.relevance, phase.keep = False, True
    sums = per_token(tensor, node_of(tensor).axes, batch, rows)
    numbers = torch.arange(1, sums.shape[1] + 1, dtype=sums.dtype, device=sums.device)
    ends: Any = [edge_of(earlier.tensor)]
    once, numbered = (
        torch.autograd.grad(s.sum(), ends, retain_graph=True, materialize_grads=True)[0] for s in (sums, sums * numbers)
    )
    _, axes = unmerge(once, node_of(earlier.tensor).axes, batch)
    at = next((i for i, dim in enumerate(axes) if dim == earlier.rows), None)
    if at is not None and sums.shape[1] == size_of(rows):
        once, numbered = (
            arrange(precise(unmerge(g, node_of(earlier.tensor).axes, batch)[0]), axes, batch, (at,))
            for g in (once, numbered)
        )
        norm = (once * once).sum(1)
        places = ((once * numbered).sum(1) / norm.clamp(min=torch.finfo(norm.dtype).tiny)).round()
        error = (numbered - once * places[:, None]).abs().max()
        if float(error) <= 1e-3 * float(numbered.abs().max()):
            made = torch.zeros(len(norm), size_of(rows) + 1, norm.shape[1], dtype=norm.dtype, device=norm.device)
            return made.scatter(1, places.long()[:, None], 1.0)[:, 1:]
    raise ModelError(
        f"The model makes new tokens ({size_of(rows)}) of others ({size_of(earlier.rows)}) in a way that relations "
        "between tokens cannot be followed through. Input-level methods (conservative-lrp, gradient-x-input) work."
    )


def _nearest(node: Node | None, rows: Dim, states: dict[int, StreamState]) -> StreamState | None:
    """The last of the tensors written to that a tensor derives from, with the same tokens."""
    found: list[int] = []
    seen: set[int] = set()
    stack = [] if node is None else [node]
    while stack:
        here = stack.pop()
        if here.seq in seen:
            continue
        seen.add(here.seq)
        if here.seq in states and states[here.seq].rows == rows:
            found.append(here.seq)
        else:
            stack += here.parents
    return states[max(found)] if found else None


def accumulate(mine: State, read: State, A: Tensor, queries: Dim, keys: Dim) -> State:
    """``R = R + A R``: what is read is added to what was there, for every stream alike."""
    return {**mine, **{stream: mine.get(stream, 0.0) + A @ R for stream, R in read.items()}}


def replace(mine: State, read: State, A: Tensor, queries: Dim, keys: Dim) -> State:
    """The last attention to each stream, and nothing before it."""
    return {**mine, **({keys: A} if keys in read else {stream: A @ R for stream, R in read.items()})}


def explained(
    run: Run, written: Sequence[StreamState], every: bool = False, token: int | None = None
) -> list[tuple[Dim, Tensor]]:
    """Of the last state of every stream, the rows that the target reads: their mean, ``[batch, tokens]`` per stream.

    A stream that another one reads in the end (an encoder) has its part there. The main stream, which the first
    attention reads, comes first.

    Args:
        run: a traced forward.
        written: what attentions wrote.
        every: the sum of all rows of the streams that the target reads, instead.
        token: the row of this token of the main stream, instead.
    """
    ends = [w for w in {w.rows: w for w in written}.values() if not w.read]
    gradients = run.backward([w.tensor for w in ends])
    scores: dict[Dim, Tensor] = {}
    for w, gradient in zip(ends, gradients, strict=True):
        met, axes = (gradient != 0).to(gradient.dtype), node_of(w.tensor).axes
        met = (
            per_token(met, axes, run.trace.batch, w.rows) if w.rows else per_sample(met, axes, run.trace.batch)[:, None]
        )
        rows = met != 0  # a single token has no axis
        weights = rows / rows.sum(-1, keepdim=True).clamp(min=1)
        if every:
            real = rows.new_ones(rows.shape) if run.mask is None or run.mask.shape != rows.shape else ~run.mask
            weights = (real & rows.any(-1, keepdim=True)).to(weights.dtype)
        if token is not None:
            weights = torch.zeros_like(weights)
            if w.rows == run.tokens():
                weights[:, token] = 1
        for stream, R in w.state.items():
            scores[stream] = scores.get(stream, 0.0) + (weights.to(R.dtype)[:, None] @ R)[:, 0]
    main = run.tokens()
    if main not in scores:  # which the last attention does not look at
        scores[main] = next(iter(scores.values())).new_zeros(run.trace.batch.size, size_of(main))
    return [(main, scores[main]), *((stream, found) for stream, found in scores.items() if stream != main)]


def from_layer(run: Run, maps: Sequence[Tensor], start: int) -> list[Tensor]:
    """The maps with those before layer ``start`` of each stream at zero; layers are counted by who asks."""
    asked: dict[Dim, list[int]] = {}
    for i, record in enumerate(run.trace.attentions):
        asked.setdefault(record.axes[record.query], []).append(i)
    kept = {i for layers in asked.values() for i in layers[start:]}
    return [A if i in kept else torch.zeros_like(A) for i, A in enumerate(maps)]
