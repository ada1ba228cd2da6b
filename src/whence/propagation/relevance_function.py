"""An operation whose backward carries either the gradient or relevance.

The same graph is run backwards twice: once with true gradients and once with relevance, which a rule hands
from an operation's output to its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import ModelError
from ..tracing import operations as ops
from ..tracing.node import Node, node_of
from ..tracing.op_call import Call
from ..tracing.reductions import per_sample, spread
from ..tracing.sparse_rows import SparseRows, alias, among


class LossRecorder(Protocol):
    """Where losses of relevance are entered (the ledger)."""

    def operation(self, op: BackwardOp, incoming: Tensor, outgoing: tuple[Tensor, ...]) -> None:
        """Enter what an operation did not pass on."""
        ...

    def stabilised(self, node: Node, incoming: Tensor, outgoing: Tensor) -> None:
        """Enter what a stabiliser took where a tensor is read several times."""
        ...


class Phase:
    """What the backward carries now, shared by all operations of one trace.

    Attributes:
        relevance: relevance rather than the gradient.
        keep: whether another backward will follow.
        masked: whether the user gave the model a padding mask.
        ledger: where losses are entered.
        sparse_rows: what the linear layers leave out.
    """

    def __init__(self) -> None:
        self.sparse_rows = SparseRows()
        self.relevance = False
        self.keep = True
        self.masked = False
        self.ledger: LossRecorder | None = None


LinearParts = tuple[Tensor | None, Tensor | None, Callable[..., Tensor] | None]


class BackwardOp:
    """One operation at the time of the backward: its inputs, its output, its vector-Jacobian product.

    Attributes:
        call: the operation (its constants; the traced tensors are in ``inputs``).
        inputs: the traced inputs, detached from the outer graph.
        output: the output.
        nodes: what the trace knows of each input.
        weight, bias, apply: for a linear operation, its constants and the bilinear map (input, weight) -> output.
        sparse_rows: what linear layers leave out.
    """

    def __init__(
        self, call: Call, inputs: list[Tensor], output: Tensor, parts: LinearParts, sparse_rows: SparseRows
    ) -> None:
        self.inputs = inputs
        self.result = output  # with its own small graph
        self.output = output.detach()
        self.batch = call.batch
        self.kind = call.kind
        self.name = call.name
        self.nodes = [node_of(t) for t in call.traced]
        self.node = self.nodes[0]  # of the output, once the trace has made it
        self.weight, self.bias, self.apply = parts
        self.sparse_rows = sparse_rows
        constants = [t for t in call.tensors if not t.requires_grad] if self.kind == "shift-by-constant" else []
        self.is_bias = any(t.dim() and t.numel() == t.shape[-1] for t in constants)
        self._versions = [x._version for x in inputs]

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """The vector-Jacobian product of the operation itself."""
        weight = self.weight
        if weight is not None and self.by_rows:
            return (among(self.sparse_rows.alive(cotangent), lambda rows: torch.matmul(rows, weight), cotangent),)
        if not self.result.requires_grad:  # a plain sum
            return (cotangent,) * len(self.inputs)
        return torch.autograd.grad(self.result, self.inputs, cotangent, retain_graph=True)

    @property
    def by_rows(self) -> bool:
        """Whether it is a linear layer, which treats every row by itself."""
        return self.apply is torch.nn.functional.linear

    def sums(self, tensor: Tensor) -> Tensor:
        """Per-sample sums of a tensor shaped like the output, shaped to multiply it."""
        axes = self.node.axes
        return spread(per_sample(tensor, axes, self.batch), axes, self.batch)

    def place(self, node: Node) -> None:
        """Take the node of the output."""
        self.node = node

    def check(self) -> None:
        """Refuse to go on with inputs that were overwritten after they were used."""
        if any(
            x._version != old and not n.moved for x, n, old in zip(self.inputs, self.nodes, self._versions, strict=True)
        ):
            raise ModelError(
                f"The model overwrites an input of '{self.name}' in place after using it, so that its relevance cannot "
                "be computed. Replace the in-place operation (x += y, x.mul_(y)) by x = x + y, x = x * y."
            )


def linear_parts(call: Call) -> LinearParts:
    """Weight, bias and the map (input, weight, bias) -> output of a linear operation."""
    if call.kind not in ("linear", "convolution") or len(call.traced) != 1:
        return None, None, None
    if call.name not in ops.PRODUCTS and call.argument(ops.WEIGHING.get(call.name, 0), "input") is not call.traced[0]:
        return None, None, None  # the weight depends on the input, not what it multiplies
    func, name = call.func, call.name
    if name == "addmm":
        return call.args[2], call.args[0], lambda a, w, b=None: torch.mm(a, w) if b is None else torch.addmm(b, a, w)
    if name == "linear":
        return call.argument(1, "weight"), call.argument(2, "bias"), torch.nn.functional.linear
    if name.startswith("conv"):
        rest = call.args[3:]
        options = {k: v for k, v in call.kwargs.items() if k not in ("input", "weight", "bias")}
        return (
            call.argument(1, "weight"),
            call.argument(2, "bias"),
            lambda a, w, b=None: func(a, w, b, *rest, **options),
        )
    if name in ("matmul", "mm", "bmm", "einsum") and len(call.tensors) == 2 and call.tensors[0] is not call.tensors[1]:
        first = call.tensors[0] is call.traced[0]
        lead = call.args[:1] if name == "einsum" else ()
        other = call.tensors[1 if first else 0]
        return other, None, lambda a, w, b=None: func(*lead, *((a, w) if first else (w, a)))
    return None, None, None


def is_plain_sum(call: Call) -> bool:
    """Whether it is ``a + b`` of two tensors of one shape and type."""
    if call.name != "add" or len(call.traced) != 2 or len(call.tensors) != 2 or "alpha" in call.kwargs:
        return False
    a, b = call.tensors
    return a.shape == b.shape and a.dtype == b.dtype


RelevanceRule = Callable[[BackwardOp, Tensor], tuple[Tensor, ...]]


class Propagate(torch.autograd.Function):
    """Runs an operation; its backward is the gradient or the rule, as the phase says."""

    @staticmethod
    def forward(ctx: Any, call: Call, rule: RelevanceRule, phase: Phase, *inputs: Tensor) -> Tensor:
        """The operation's value; its small graph is kept for the backward."""
        parts = linear_parts(call)
        own = [x.detach() for x in inputs]
        if parts[2] is torch.nn.functional.linear:  # it needs no graph of its own, nor does a sum
            output = torch.nn.functional.linear(own[0], *parts[:2])
        elif is_plain_sum(call):
            output = torch.add(*own)
        else:
            with torch.enable_grad():
                output = call.run(*(x.requires_grad_() for x in own))
        ctx.local, ctx.rule, ctx.phase = BackwardOp(call, own, output, parts, phase.sparse_rows), rule, phase
        call.placed = ctx.local.place
        return alias(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Gradient or relevance of each input."""
        local: BackwardOp = ctx.local
        local.check()
        if not ctx.phase.relevance:
            return (None, None, None, *local.vjp(grads[0]))
        out = ctx.rule(local, grads[0])
        if ctx.phase.ledger is not None:
            ctx.phase.ledger.operation(local, grads[0], out)
        if not ctx.phase.keep:
            ctx.local = None
        return (None, None, None, *out)


class Bypass(torch.autograd.Function):
    """Gradients pass through an operation, relevance past it: to its main input, unchanged."""

    @staticmethod
    def forward(ctx: Any, phase: Phase, main: Tensor, output: Tensor) -> Tensor:
        """The output as it is."""
        ctx.phase, ctx.shape = phase, main.shape
        return alias(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """To the main input (relevance), or into the operation (gradients)."""
        if ctx.phase.relevance:
            return None, grads[0].sum_to_size(ctx.shape), None
        return None, None, grads[0]
