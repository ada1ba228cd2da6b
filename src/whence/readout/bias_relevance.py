"""The relevance of a model's biases, per token: each bias times the gradient of the sum that it is added to.

A bias is the constant of an affine operation: of a linear layer, a convolution, a norm, or a constant that is added by
itself. It counts at the tokens at which it is added. After a pooling ([CLS] selected, tokens averaged) there are no
tokens: there it is shared evenly among those that the target reads, which have a gradient at the end of their stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ModelError
from ..propagation.ledger import constant_of
from ..runs.run import Run
from ..tracing.axes import Dim, order_of, plain, size_of
from ..tracing.coverage import EXACT
from ..tracing.node import Node, walk
from ..tracing.op_call import Call, OutputNode, Rule, RuleResult
from ..tracing.reductions import arrange, per_sample, per_token, precise, restored, unmerge
from ..tracing.reordering import selected_tokens
from ..tracing.replay import UnknownFunctionError, evaluate
from ..tracing.sparse_rows import alias
from ..tracing.tensor_info import node_of

KINDS = ("linear", "convolution", "norm", "shift-by-constant", "shift")  # of operations that may add a constant


class BiasRecorder:
    """A recorder of every operation that adds a constant; after a backward pass it has the relevance of the constants.

    Example:
        >>> biases = BiasRecorder()
        >>> book = biases.wrap_rules({"norm": rules.detach_deviation})
        >>> gradients, maps = biases.backward(run, [(place, run.tokens)])
    """

    def __init__(self) -> None:
        self._streams: list[_Stream] = []

    def wrap_rules(self, book: Mapping[str, Rule]) -> dict[str, Rule]:
        """Return the same rules, with added constants recorded."""
        return {**book, **{kind: _BiasRule(self, kind, book.get(kind)) for kind in KINDS}}

    def backward(self, run: Run, places: Sequence[tuple[Tensor, Dim]]) -> tuple[list[Tensor], list[Tensor]]:
        """Run a backward pass to where streams of tokens begin.

        Args:
            run: a run under the rules of :meth:`wrap_rules`.
            places: the input of each stream, and its token axis. Biases before that are part of it.

        Returns:
            The gradient at each place, and ``[batch, tokens]`` for each: the relevance of the biases.
        """
        streams = self._streams = [_Stream.of(run, place, tokens) for place, tokens in places]
        try:
            found = run.backward([*(s.place for s in streams), *(s.end for s in streams)])
        finally:
            self._streams = []  # the graph holds this object, so it must not hold the graph
        maps = [s.map + _share_pooled(s, end, run) for s, end in zip(streams, found[len(places) :], strict=True)]
        return found[: len(places)], maps

    def enter(self, node: Node, constant: Tensor, gradient: Tensor) -> None:
        """Add ``constant x gradient`` where an operation has added the constant."""
        if not self._streams:  # a backward pass that inspects the model
            return
        gradient = precise(gradient)
        features = not any(token_slices(dim, s.tokens) for dim in node.token_axes[-1:] for s in self._streams)
        amount, axes = unmerge(_product(gradient, constant, features), node.axes, node.batch)
        at = [(s, d) for s in self._streams for d, dim in enumerate(plain(axes)) if token_slices(dim, s.tokens)]
        wide = sum(size_of(dim) > 1 for dim in axes if node.batch not in dim)
        if len(at) == 1:
            ((stream, d),) = at
            order = order_of(axes[d])
            values = arrange(amount, axes, node.batch, (d,)).sum(1)
            stream.add(restored(values, 1, None if order is None else order.places), plain(axes)[d])
        elif at and node.inside is not None:  # added to the scores of an attention: a mask or positions
            return
        elif at or wide > 1:
            raise ModelError(
                f"The model adds a bias (shape {list(constant.shape)}) at positions (shape {list(gradient.shape)}) "
                "that are not followed to its tokens: windows, merged tokens, experts. A read-out without biases "
                "(readout='input-x-gradient') works."
            )
        else:
            self._add_single(node, per_sample(amount, axes, node.batch))

    def _add_single(self, node: Node, values: Tensor) -> None:
        """Add ``[batch]`` values of a bias that is at one token, or after a pooling."""
        stream = self._nearest(node)
        if node.seq not in stream.inner:
            stream.add_pooled(values)
            return
        token = _selected_token(node, stream.tokens)
        if token is None:
            raise ModelError(
                "The model adds a bias to a slice of its tokens that is not followed. A read-out without biases "
                "(readout='input-x-gradient') works."
            )
        stream.map[:, token] += values

    def _nearest(self, node: Node) -> _Stream:
        """Return the stream that a pooled tensor was computed from."""
        for current in walk([node] if len(self._streams) > 1 else []):
            for stream in self._streams:
                if any(token_slices(dim, stream.tokens) for dim in current.token_axes):
                    return stream
        return self._streams[0]


def _selected_token(node: Node, tokens: Dim) -> int | None:
    """Return the one token that a tensor without a token axis is computed from; ``None`` if there are several."""
    found: set[int | None] = set()

    def step(current: Node) -> list[Node]:
        behind = []
        for parent in current.flows:
            dims = [d for d, dim in enumerate(parent.token_axes) if token_slices(dim, tokens)]
            if dims:
                found.add(_picked(current, parent, dims[0], tokens) if len(dims) == 1 else None)
            else:
                behind.append(parent)
        return behind

    for _ in walk([node], step):
        pass
    return found.pop() if len(found) == 1 else None


def _picked(node: Node, parent: Node, dim: int, tokens: Dim) -> int | None:
    """Return which token an operation selects of a tensor with several."""
    numbers = torch.full((parent.shape[dim],), -1)
    for at, start, length in token_slices(parent.token_axes[dim], tokens):
        numbers[at : at + length] = torch.arange(start, start + length)
    numbers = numbers.reshape(-1, *(1,) * (len(parent.shape) - dim - 1)).expand(parent.shape)
    if node.kind not in ("structural", "selecting") or node.recipe is None:
        return None
    try:
        value = evaluate(node, {parent: numbers.to(dtype=parent.dtype, device=parent.device)})
    except (UnknownFunctionError, RuntimeError):
        return None
    first = int(value.flatten()[0])
    return first if first >= 0 and bool((value == first).all()) else None


def _product(gradient: Tensor, constant: Tensor, features: bool) -> Tensor:
    """Return ``gradient x constant``, summed over features for a bias along them; 0 where a mask is infinite."""
    constant = constant.to(gradient.dtype)
    if features and constant.dim() == 1 and len(constant) == gradient.shape[-1]:
        return (gradient @ constant)[..., None]
    return torch.where(gradient == 0, 0.0, gradient * constant)


@dataclass(frozen=True)
class _BiasRule:
    """A rule, or the plain derivative, that records the constants added under it.

    Attributes:
        biases: the recorder.
        kind: of the operations.
        rule: the rule.
    """

    biases: BiasRecorder
    kind: str
    rule: Rule | None

    @property
    def name(self) -> str | None:
        return None if self.rule is None else self.rule.name

    @property
    def conserves(self) -> bool:
        return self.kind in EXACT if self.rule is None else self.rule.conserves

    def accepts(self, call: Call) -> bool:
        return self.rule is None or self.rule.accepts(call)

    def apply(self, call: Call) -> RuleResult:
        found = RuleResult(call.run()) if self.rule is None else self.rule.apply(call)
        constant = None if _of_activation(call) else constant_of(call)
        if constant is None or not found.output.requires_grad:
            return found
        placed = OutputNode()
        return found.also(placed.set, _GradientTap.apply(self.biases, placed, constant, found.output))


class _GradientTap(torch.autograd.Function):
    """The identity, which records its gradient. (A hook on a view is lost when the model overwrites the view.)"""

    @staticmethod
    def forward(ctx: Any, biases: BiasRecorder, placed: OutputNode, constant: Tensor, out: Tensor) -> Tensor:
        ctx.biases = biases
        ctx.constant = constant
        ctx.placed = placed
        return alias(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        ctx.biases.enter(ctx.placed.node, ctx.constant, grads[0])
        return None, None, None, grads[0]


def _of_activation(call: Call) -> bool:
    """Return whether a number is added to an activation, as in an unfused GELU: this is not a bias."""
    return call.kind == "shift" and node_of(call.traced[0]).activated


class TokenSlice(NamedTuple):
    """``length`` entries of an axis from ``at``, which are tokens from ``start``."""

    at: int
    start: int
    length: int


def token_slices(dim: Dim, tokens: Dim) -> list[TokenSlice]:
    """Return which slices of an axis are tokens: all, none, or those that were sliced out or concatenated to others."""
    if dim == tokens:
        return [TokenSlice(0, 0, size_of(tokens))] if tokens else []
    out: list[TokenSlice] = []
    at = 0
    for part in dim[0].parts if len(dim) == 1 else ():
        for inner in token_slices(part.source or (), tokens):
            low = max(inner.at, part.start)
            high = min(inner.at + inner.length, part.start + part.length)
            if low < high:
                out.append(TokenSlice(at + low - part.start, inner.start + low - inner.at, high - low))
        at += part.length
    return out


class _Stream:
    """A stream of tokens: where it begins and ends, and the relevance of its biases.

    Attributes:
        place: the input of its first block.
        tokens: its token axis.
        end: its last residual sum, or the place itself.
        inner: the tensors (by ``seq``) that its end is computed from.
        map: ``[batch, tokens]``, of biases that are added at tokens.
        pooled: ``[batch]``, of those after a pooling.
    """

    def __init__(self, place: Tensor, tokens: Dim, end: Tensor, batch: int) -> None:
        self.place = place
        self.tokens = tokens
        self.end = end
        self.inner = node_of(end).ancestors()
        zeros = precise(place.detach()).new_zeros
        self.map = zeros(batch, size_of(tokens))
        self.pooled = zeros(batch)

    @staticmethod
    def of(run: Run, place: Tensor, tokens: Dim) -> _Stream:
        axes = node_of(place).token_axes
        if not tokens and len(axes) > 2:  # one token, or a model without attention
            tokens = axes[1]
        along = (tokens, (run.trace.batch, *tokens)) if tokens else ()  # samples may lie one after the other
        sums = (
            r.output for r in reversed(run.trace.residuals) if any(d in along for d in node_of(r.output).token_axes)
        )
        return _Stream(place, tokens, next(sums, place), run.trace.batch.size)

    def add(self, values: Tensor, dim: Dim) -> None:
        """Add ``[batch, n]`` values along an axis; those of learned entries, which are not tokens, count as pooled."""
        rest = values.clone()
        for at, start, length in token_slices(dim, self.tokens):
            self.map[:, start : start + length] += values[:, at : at + length]
            rest[:, at : at + length] = 0
        self.add_pooled(rest.sum(1))

    def add_pooled(self, values: Tensor) -> None:
        """Add ``[batch]`` values of biases that are not at tokens."""
        self.pooled += values


def _selected(selection: Node, whole: Node, like: Tensor) -> Tensor:
    """Return ``[batch, tokens]``: true at the tokens that are selected."""
    found = selected_tokens(selection, whole)
    if found is None:
        raise ModelError(
            "The model computes a residual branch for some tokens alone, others in each sample, to which biases are "
            "not followed. A read-out without biases (readout='input-x-gradient') works."
        )
    return torch.zeros_like(like).index_fill(1, found[1].to(like.device), True)


def _share_pooled(stream: _Stream, gradient: Tensor, run: Run) -> Tensor:
    """Return ``[batch, tokens]``: the relevance of pooled biases, shared evenly among the tokens that are read."""
    custom = run.trace.coverage.has_custom_functions and node_of(stream.end).seq in run.reached
    if custom and not bool(gradient.any()) and bool(stream.pooled.any()):
        raise ModelError(
            "The model computes its residual sums in a custom autograd function, where it is not seen which tokens the "
            "target reads, to which biases belong. A read-out without biases (readout='input-x-gradient') works."
        )
    sizes = per_token(precise(gradient).abs(), node_of(stream.end).axes, run.trace.batch, stream.tokens)
    read = sizes > 0
    selected = [r for r in run.trace.residuals if r.selection and stream.tokens in node_of(r.trunk).token_axes]
    if selected and selected[-1].selection is not None:  # the last block is computed for these alone
        read = _selected(selected[-1].selection, node_of(selected[-1].trunk), read)
    if run.mask is not None and run.mask.shape == read.shape:
        read = torch.where(read.any(1, keepdim=True), read, ~run.mask)
    read = torch.where(read.any(1, keepdim=True), read, True).to(stream.map.dtype)  # no token is read: all share it
    return stream.pooled[:, None] * read / read.sum(1, keepdim=True)
