"""What the biases of a model carry, per token: each bias times the gradient of what it is added to.

A bias is the constant of an affine operation: of a linear layer, a convolution, a norm, or a constant that is added by
itself. It counts at the tokens at which it is added. Behind a pooling ([CLS] picked, tokens averaged) there are no
tokens: there it is shared evenly among those that the target reads, which have a gradient at the end of their stream.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ModelError
from ..propagation.ledger import constant_of
from ..runs.run import Run
from ..tracing.axes import Dim, size_of
from ..tracing.coverage import EXACT
from ..tracing.node import Node, node_of
from ..tracing.op_call import Call, Rule
from ..tracing.reductions import arrange, per_sample, per_token, precise, unmerge
from ..tracing.sparse_rows import alias

KINDS = ("linear", "convolution", "norm", "shift-by-constant", "shift")  # of operations that may add a constant


class BiasRecorder:
    """Watches every operation that adds a constant, and knows after a backward what the constants carry.

    Example:
        >>> biases = BiasRecorder()
        >>> book = biases.watched({"norm": rules.detach_deviation})
        >>> gradients, maps = biases.backward(run, [(place, run.tokens())])
    """

    def __init__(self) -> None:
        self._streams: list[_Stream] = []

    def watched(self, book: Mapping[str, Rule]) -> dict[str, Rule]:
        """The same rules, with an eye on constants."""
        return {**book, **{kind: _Watched(self, kind, book.get(kind)) for kind in KINDS}}

    def backward(self, run: Run, places: Sequence[tuple[Tensor, Dim]]) -> tuple[list[Tensor], list[Tensor]]:
        """Send the seed back to where streams of tokens begin.

        Args:
            run: a run under watched rules.
            places: what enters each stream, and its token axis. Biases before that are part of it.

        Returns:
            The gradient at each place, and ``[batch, tokens]`` for each: what the biases carry.
        """
        streams = self._streams = [_Stream.of(run, place, tokens) for place, tokens in places]
        try:
            found = run.backward([*(s.place for s in streams), *(s.end for s in streams)])
        finally:
            self._streams = []  # the graph holds this object, so it must not hold the graph
        maps = [s.map + _shared(s, end, run) for s, end in zip(streams, found[len(places) :], strict=True)]
        return found[: len(places)], maps

    def enter(self, node: Node, constant: Tensor, gradient: Tensor) -> None:
        """Count ``constant x gradient`` where an operation has added the constant."""
        if not self._streams:  # sent back to learn about the model, not to explain it
            return
        gradient = precise(gradient)
        features = not any(stretches(dim, s.tokens) for dim in node.axes[-1:] for s in self._streams)
        amount, axes = unmerge(_product(gradient, constant, features), node.axes, node.batch)
        at = [(s, d) for s in self._streams for d, dim in enumerate(axes) if stretches(dim, s.tokens)]
        wide = sum(size_of(dim) > 1 for dim in axes if node.batch not in dim)
        if len(at) == 1:
            ((stream, d),) = at
            stream.add(arrange(amount, axes, node.batch, (d,)).sum(1), axes[d])
        elif at and node.inside is not None:  # what is added to the scores of an attention, a mask or positions
            return
        elif at or wide > 1:
            raise ModelError(
                f"The model adds a bias (shape {list(constant.shape)}) at positions (shape {list(gradient.shape)}) "
                "that are not followed to its tokens: windows, merged tokens, experts. A read-out without biases "
                "(readout='input-x-gradient') works."
            )
        else:
            self._nearest(node).pooled += per_sample(amount, axes, node.batch)

    def _nearest(self, node: Node) -> _Stream:
        """The stream from which something pooled was made."""
        queue, seen = [node], {node.seq}
        while queue and len(self._streams) > 1:
            current = queue.pop(0)
            for stream in self._streams:
                if any(stretches(dim, stream.tokens) for dim in current.axes):
                    return stream
            queue += [parent for parent in current.parents if parent.seq not in seen]
            seen |= {parent.seq for parent in current.parents}
        return self._streams[0]


def _product(gradient: Tensor, constant: Tensor, features: bool) -> Tensor:
    """``gradient x constant``, of a bias along features already summed over them; 0 under a mask of infinities."""
    constant = constant.to(gradient.dtype)
    if features and constant.dim() == 1 and len(constant) == gradient.shape[-1]:
        return (gradient @ constant)[..., None]
    return torch.where(gradient == 0, 0.0, gradient * constant)


class _Watched:
    """A rule, or the lack of one, that tells of the constants that are added under it."""

    def __init__(self, biases: BiasRecorder, kind: str, rule: Rule | None) -> None:
        self.biases, self.rule = biases, rule
        self.conserves = kind in EXACT if rule is None else getattr(rule, "conserves", False)  # for the ledger
        self.__name__ = None if rule is None else getattr(rule, "__name__", str(rule))  # for the coverage

    def __call__(self, call: Call) -> Any:
        out = call.run() if self.rule is None else self.rule(call)
        constant = None if _of_activation(call) else constant_of(call)
        return out if constant is None or not out.requires_grad else _Tap.apply(self.biases, call, constant, out)


class _Tap(torch.autograd.Function):
    """The identity, whose gradient is told. (A hook on a view is lost when the model overwrites the view.)"""

    @staticmethod
    def forward(ctx: Any, biases: BiasRecorder, call: Call, constant: Tensor, out: Tensor) -> Tensor:
        ctx.biases, ctx.constant = biases, constant
        call.placed = functools.partial(setattr, ctx, "node")
        return alias(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        ctx.biases.enter(ctx.node, ctx.constant, grads[0])
        return None, None, None, grads[0]


def _of_activation(call: Call) -> bool:
    """Whether a number is added to an activation, as GELU written out does: no bias."""
    return call.kind == "shift" and node_of(call.traced[0]).activated


class TokenSlice(NamedTuple):
    """``length`` entries of an axis from ``at``, which are tokens from ``start``."""

    at: int
    start: int
    length: int


def stretches(dim: Dim, tokens: Dim) -> list[TokenSlice]:
    """Which parts of an axis are tokens: all, none, or those that were cut out or put beside others."""
    if dim == tokens:
        return [TokenSlice(0, 0, size_of(tokens))] if tokens else []
    out: list[TokenSlice] = []
    at = 0
    for part in dim[0].parts if len(dim) == 1 else ():
        for inner in stretches(part.source or (), tokens):
            low = max(inner.at, part.start)
            high = min(inner.at + inner.length, part.start + part.length)
            if low < high:
                out.append(TokenSlice(at + low - part.start, inner.start + low - inner.at, high - low))
        at += part.length
    return out


class _Stream:
    """A stream of tokens: where it begins and ends, and what its biases carry.

    Attributes:
        place: what enters its first block.
        tokens: its token axis.
        end: its last residual sum, or the place itself.
        map: ``[batch, tokens]``, of biases that are added at tokens.
        pooled: ``[batch]``, of those behind a pooling.
    """

    def __init__(self, place: Tensor, tokens: Dim, end: Tensor, batch: int) -> None:
        self.place, self.tokens, self.end = place, tokens, end
        zeros = precise(place.detach()).new_zeros
        self.map = zeros(batch, size_of(tokens))
        self.pooled = zeros(batch)

    @staticmethod
    def of(run: Run, place: Tensor, tokens: Dim) -> _Stream:
        axes = node_of(place).axes
        if not tokens and len(axes) > 2:  # one token, or a model without attention
            tokens = axes[1]
        sums = (r.output for r in reversed(run.trace.residuals) if tokens and tokens in node_of(r.output).axes)
        return _Stream(place, tokens, next(sums, place), run.trace.batch.size)

    def add(self, values: Tensor, dim: Dim) -> None:
        """Count ``[batch, n]`` values along an axis; those of the model's own entries are of no token."""
        rest = values.clone()
        for at, start, length in stretches(dim, self.tokens):
            self.map[:, start : start + length] += values[:, at : at + length]
            rest[:, at : at + length] = 0
        self.pooled += rest.sum(1)


def _shared(stream: _Stream, gradient: Tensor, run: Run) -> Tensor:
    """``[batch, tokens]``: what is behind a pooling, shared evenly among the tokens that are read."""
    sizes = per_token(precise(gradient).abs(), node_of(stream.end).axes, run.trace.batch, stream.tokens)
    read = sizes > 0
    if run.mask is not None and run.mask.shape == read.shape:
        read = torch.where(read.any(1, keepdim=True), read, ~run.mask)
    read = torch.where(read.any(1, keepdim=True), read, True).to(stream.map.dtype)  # none is read: it is of all
    return stream.pooled[:, None] * read / read.sum(1, keepdim=True)
