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

import torch
from torch import Tensor

from .axes import Dim, per_token
from .node import Node, node_of
from .run import Run

State = dict[Dim, Tensor]  #: stream -> [batch, tokens here, tokens there]
#: the state of the queries, that of what is read, the map [batch, queries, keys], the two streams -> the new state
Update = Callable[[State, State, Tensor, Dim, Dim], State]


@dataclass
class Written:
    """A tensor that an attention wrote to: its token axis, its state, and whether another stream reads it."""

    tensor: Tensor
    rows: Dim
    state: State
    read: bool = False


def relate(run: Run, maps: Sequence[Tensor], update: Update) -> list[Written]:
    """Follow the states through all attentions.

    Args:
        run: a traced forward.
        maps: one ``[batch, queries, keys]`` per attention.
        update: what an attention does to a state.

    Returns:
        What each attention wrote, in the order of the forward pass.
    """
    states: dict[int, Written] = {}
    for i, (record, A) in enumerate(zip(run.trace.attentions, maps, strict=True)):
        queries, keys = record.axes[record.query], record.axes[record.key]
        residual = next((r for r in run.trace.residuals if i in r.attentions), None)
        source = _nearest(record.reads, keys, states)
        read = _state(source, keys, A)
        if source is not None and queries != keys:
            source.read = True
        if residual is None:  # attention that replaces what was there (a pooling)
            assert record.output is not None
            new = Written(record.output, queries, {stream: A @ R for stream, R in read.items()})
        else:
            mine = _state(_nearest(node_of(residual.trunk), queries, states), queries, A)
            new = Written(residual.output, queries, update(mine, read, A, queries, keys))
        states[node_of(new.tensor).seq] = new
    return list(states.values())


def _state(written: Written | None, rows: Dim, like: Tensor) -> State:
    """What was written; else a stream begins, whose tokens relate to themselves."""
    if written is not None:
        return written.state
    return {rows: torch.eye(_size(rows), dtype=like.dtype, device=like.device).expand(len(like), -1, -1)}


def _nearest(node: Node | None, rows: Dim, states: dict[int, Written]) -> Written | None:
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


def _size(dim: Dim) -> int:
    size = 1
    for atom in dim:
        size *= atom.size
    return size


def accumulate(mine: State, read: State, A: Tensor, queries: Dim, keys: Dim) -> State:
    """``R = R + A R``: what is read is added to what was there, for every stream alike."""
    return {**mine, **{stream: mine.get(stream, 0.0) + A @ R for stream, R in read.items()}}


def replace(mine: State, read: State, A: Tensor, queries: Dim, keys: Dim) -> State:
    """The last attention to each stream, and nothing before it."""
    return {**mine, keys: A}


def explained(run: Run, written: Sequence[Written], every: bool = False) -> list[tuple[Dim, Tensor]]:
    """Of the last state of every stream, the rows that the target reads: their mean, ``[batch, tokens]`` per stream.

    A stream that another one reads in the end (an encoder) has its part there. The main stream, which the first
    attention reads, comes first.

    Args:
        run: a traced forward.
        written: what attentions wrote.
        every: the sum of all rows of the streams that the target reads, instead.
    """
    ends = [w for w in {w.rows: w for w in written}.values() if not w.read]
    gradients = run.backward([w.tensor for w in ends])
    scores: dict[Dim, Tensor] = {}
    for w, gradient in zip(ends, gradients, strict=True):
        rows = per_token((gradient != 0).to(gradient.dtype), node_of(w.tensor).axes, run.trace.batch, w.rows) != 0
        weights = rows / rows.sum(-1, keepdim=True).clamp(min=1)
        if every:
            real = rows.new_ones(rows.shape) if run.mask is None or run.mask.shape != rows.shape else ~run.mask
            weights = (real & rows.any(-1, keepdim=True)).to(weights.dtype)
        for stream, R in w.state.items():
            scores[stream] = scores.get(stream, 0.0) + (weights.to(R.dtype)[:, None] @ R)[:, 0]
    main = run.tokens()
    return [(main, scores[main]), *((stream, found) for stream, found in scores.items() if stream != main)]


def from_layer(run: Run, maps: Sequence[Tensor], start: int) -> list[Tensor]:
    """The maps with those before layer ``start`` of each stream at zero; layers are counted by who asks."""
    asked: dict[Dim, list[int]] = {}
    for i, record in enumerate(run.trace.attentions):
        asked.setdefault(record.axes[record.query], []).append(i)
    kept = {i for layers in asked.values() for i in layers[start:]}
    return [A if i in kept else torch.zeros_like(A) for i, A in enumerate(maps)]
