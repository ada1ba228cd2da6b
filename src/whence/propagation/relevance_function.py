"""The autograd function whose backward pass carries either the gradient or relevance.

The same graph is traversed by two backward passes: one with true gradients and one with relevance, which a rule
propagates from an operation's output to its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import ModelError
from ..tracing import operations as ops
from ..tracing.node import Node
from ..tracing.op_call import Call, map_tensors
from ..tracing.reductions import per_sample, spread
from ..tracing.sparse_rows import SparseRows, alias, among
from ..tracing.tensor_info import is_weight, node_of


class LossRecorder(Protocol):
    """A recorder of relevance that operations absorb or create (the ledger)."""

    def operation(self, op: BackwardOp, incoming: Tensor, outgoing: tuple[Tensor, ...]) -> None:
        """Record the relevance that an operation absorbed."""
        ...

    def stabilised(self, node: Node, incoming: Tensor, outgoing: Tensor) -> None:
        """Record the relevance that a stabiliser absorbed where a tensor is read several times."""
        ...


class Phase:
    """What the current backward pass carries, shared by all operations of one trace.

    Attributes:
        relevance: whether it carries relevance rather than the gradient.
        keep: whether another backward pass will follow.
        masked: whether the user gave the model a padding mask.
        ledger: the recorder of absorbed and created relevance.
        readers: by ``seq`` of a tensor, how many linear layers and how many other operations pass relevance to it.
        sparse_rows: the rows that linear layers leave out.
    """

    def __init__(self) -> None:
        self.sparse_rows = SparseRows()
        self.relevance = False
        self.keep = True
        self.masked = False
        self.ledger: LossRecorder | None = None
        self.readers: dict[int, tuple[float, float]] = {}

    def carry(self, relevance: bool, keep: bool = True, ledger: LossRecorder | None = None) -> None:
        """Set what the next backward pass carries; see the attributes."""
        self.relevance = relevance
        self.keep = keep
        self.ledger = ledger

    def read(self, readers: dict[int, tuple[float, float]]) -> None:
        """Set how many operations pass relevance to each tensor."""
        self.readers = readers

    def mask(self, masked: bool) -> None:
        """Set whether the user gave the model a padding mask."""
        self.masked = masked


LinearParts = tuple[Tensor | None, Tensor | None, Callable[..., Tensor] | None]


class BackwardOp:
    """One operation during the backward pass: its inputs, its output, its vector-Jacobian product.

    Attributes:
        call: the operation (its constants; the traced tensors are in ``inputs``).
        inputs: the traced inputs, detached from the outer graph.
        output: the output.
        nodes: the node of each input.
        weight, bias, apply: for a linear operation, its constants and the bilinear map (input, weight) -> output.
        sparse_rows: the rows that linear layers leave out.
    """

    def __init__(self, call: Call, sparse_rows: SparseRows) -> None:
        self.weight, self.bias, self.apply = linear_parts(call)
        self.inputs = [x.detach() for x in call.traced]
        self.result = self._run(call)  # with its own small graph
        self.output = self.result.detach()
        self.batch = call.batch
        self.kind = call.kind
        self.name = call.name
        self.nodes = [node_of(t) for t in call.traced]
        self.node = self.nodes[0]  # replaced by the node of the output once the trace has created it
        self.sparse_rows = sparse_rows
        self.is_bias = self.kind == "shift-by-constant" and is_bias(call)
        self._shown = self.output  # what the model has of it
        self._versions = [x._version for x in self.inputs]

    def _run(self, call: Call) -> Tensor:
        """Run the operation on its own inputs; its small graph is kept for the backward pass."""
        if self.by_rows:  # neither a linear layer nor a sum needs a graph of its own
            assert self.weight is not None
            return torch.nn.functional.linear(self.inputs[0], self.weight, self.bias)
        if is_plain_sum(call):
            return torch.add(*self.inputs)
        with torch.enable_grad():
            output: Tensor = call.run(*(x.requires_grad_() for x in self.inputs))
        return output

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Return the vector-Jacobian product of the operation itself."""
        weight = (
            None if self.weight is None else self.weight.to(cotangent.dtype)
        )  # another, where it ran under autocast
        if weight is not None and self.by_rows:
            return (among(self.sparse_rows.alive(cotangent), lambda rows: torch.matmul(rows, weight), cotangent),)
        if not self.result.requires_grad:  # a plain sum
            return (cotangent,) * len(self.inputs)
        return torch.autograd.grad(self.result, self.inputs, cotangent.to(self.result.dtype), retain_graph=True)

    @property
    def by_rows(self) -> bool:
        """Whether it is a linear layer, which processes every row independently."""
        return self.apply is torch.nn.functional.linear

    def sums(self, tensor: Tensor) -> Tensor:
        """Return the per-sample sums of a tensor shaped like the output, shaped to multiply it."""
        axes = self.node.axes
        return spread(per_sample(tensor, axes, self.batch), axes, self.batch)

    def place(self, node: Node) -> None:
        """Set the node of the output."""
        self.node = node

    def show(self, result: Tensor) -> Tensor:
        """Return what the model gets as the output, which it may overwrite."""
        self._shown = result.detach()  # its value and version, without its graph
        self._versions.append(result._version)
        return result

    def check(self) -> None:
        """Raise an error if an input or (a view of) the output was overwritten after it was used."""
        tensors, nodes = (*self.inputs, self._shown), (*self.nodes, self.node)
        if any(x._version != old and not n.moved for x, n, old in zip(tensors, nodes, self._versions, strict=True)):
            raise ModelError(
                f"The model overwrites an operand or the result of '{self.name}' in place after using it, so that its "
                "relevance cannot be computed. Replace the in-place operation (x += y, x.mul_(y)) by x = x + y, "
                "x = x * y."
            )


def is_bias(call: Call) -> bool:
    """Return whether a constant that is added is a bias: one value for each feature, the same for all tokens."""
    constant = next((t for t in call.tensors if not t.requires_grad), None)
    if constant is None or not constant.dim():
        return False
    expanded = zip(constant.stride()[:-1], constant.shape[:-1], strict=True)
    if all(step == 0 or size == 1 for step, size in expanded):
        return True
    if not is_weight(constant) or len(call.traced) != 1:
        return False
    if constant.numel() == max(constant.shape):
        return True
    layer = node_of(call.traced[0])
    if layer.kind != "linear" or len(layer.flows) != 1:
        return False
    source = layer.flows[0]
    while source.name in ("expand", "expand_as", "broadcast_to") and len(source.flows) == 1:
        (source,) = source.flows  # one copy for each of several layers
    given = {atom for dim in source.axes for atom in dim}
    varying = [dim for dim, n in zip(layer.axes[::-1], constant.shape[::-1], strict=False) if n > 1]
    return not any(atom in given for dim in varying for atom in dim)


def linear_parts(call: Call) -> LinearParts:
    """Return weight, bias and the map (input, weight, bias) -> output of a linear operation."""
    if call.kind not in ("linear", "convolution") or len(call.traced) != 1:
        return None, None, None
    if call.name not in ops.PRODUCTS and call.argument(ops.WEIGHING.get(call.name, 0), "input") is not call.traced[0]:
        return None, None, None  # the weight depends on the input, the tensor that it multiplies does not
    func = call.func
    name = call.name
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
    if name in ops.PRODUCTS and len(call.tensors) == 2 and call.tensors[0] is not call.tensors[1]:
        x = call.traced[0]
        weight = call.tensors[1 if call.tensors[0] is x else 0]

        def apply(a: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
            args, kwargs = map_tensors((call.args, call.kwargs), lambda t: a if t is x else w if t is weight else t)
            out: Tensor = func(*args, **kwargs)
            return out

        return weight, None, apply
    return None, None, None


def is_plain_sum(call: Call) -> bool:
    """Return whether the operation is ``a + b`` of two tensors of the same shape and type."""
    if call.name != "add" or len(call.traced) != 2 or len(call.tensors) != 2 or "alpha" in call.kwargs:
        return False
    a, b = call.tensors
    return a.shape == b.shape and a.dtype == b.dtype


RelevanceRule = Callable[[BackwardOp, Tensor], tuple[Tensor, ...]]


class Propagate(torch.autograd.Function):
    """An operation whose backward pass is the gradient or the rule, depending on the phase."""

    @staticmethod
    def forward(ctx: Any, op: BackwardOp, rule: RelevanceRule, phase: Phase, *inputs: Tensor) -> Tensor:
        """Return the operation's output, which was computed from the same inputs."""
        ctx.local = op
        ctx.rule = rule
        ctx.phase = phase
        return op.show(alias(op.output))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Return the gradient or the relevance of each input."""
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
    """An operation that gradients pass through and relevance bypasses: to its main input, unchanged."""

    @staticmethod
    def forward(ctx: Any, phase: Phase, main: Tensor, output: Tensor) -> Tensor:
        """Return the output as it is."""
        ctx.phase = phase
        ctx.shape = main.shape
        return alias(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Pass relevance to the main input, gradients into the operation."""
        if ctx.phase.relevance:
            return None, grads[0].sum_to_size(ctx.shape), None
        return None, None, grads[0]
