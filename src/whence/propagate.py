"""An operation whose backward carries either the gradient or relevance.

The same graph is run backwards twice: once with true gradients and once with relevance, which a rule hands
from an operation's output to its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .axes import Axes, Axis
from .errors import ModelError

if TYPE_CHECKING:
    from .ledger import Ledger
    from .trace import Call


class Phase:
    """What the backward carries now, shared by all operations of one trace.

    Attributes:
        relevance: relevance rather than the gradient.
        masked: whether the user gave the model a padding mask.
        ledger: where losses are entered.
    """

    def __init__(self) -> None:
        self.relevance = False
        self.masked = False
        self.ledger: Ledger | None = None


def per_sample(tensor: Tensor, axes: Axes, batch: Axis) -> Tensor:
    """Sum a tensor over everything but the batch: ``[batch]``."""
    if batch.size == 1:
        return tensor.sum().reshape(1)
    for i, dim in enumerate(axes):
        if batch in dim:
            moved = tensor.movedim(i, 0)
            split = moved.reshape(*(atom.size for atom in dim), -1)
            return split.movedim(dim.index(batch), 0).flatten(1).sum(1)
    raise ModelError("A tensor of the model cannot be told apart by sample; explain one sample at a time.")


def spread(values: Tensor, tensor: Tensor, axes: Axes, batch: Axis) -> Tensor:
    """The inverse of a per-sample sum: ``[batch]`` values, shaped to multiply a tensor."""
    if batch.size == 1:
        return values.reshape((1,) * tensor.dim())
    for i, dim in enumerate(axes):
        if batch in dim:
            sizes = [atom.size if atom is batch else 1 for atom in dim]
            full = values.reshape(sizes).expand([atom.size for atom in dim]).reshape(-1)
            return full.reshape([-1 if j == i else 1 for j in range(tensor.dim())])
    raise AssertionError("per_sample would have refused")


class Local:
    """One operation at the time of the backward: its inputs, its output, its vector-Jacobian product.

    Attributes:
        call: the operation (its constants; the traced tensors are in ``inputs``).
        inputs: the traced inputs, detached from the outer graph.
        output: the output.
        nodes: what the trace knows of each input.
        weight, bias, apply: for a linear operation, its constants and the bilinear map (input, weight) -> output.
    """

    def __init__(self, call: Call, inputs: list[Tensor], output: Tensor) -> None:
        self.inputs = inputs
        self.result = output  # with its own small graph
        self.output = output.detach()
        self.batch = call.trace.batch
        self.kind = call.kind
        self.name = call.name
        self.nodes = [call.node(t) for t in call.traced]
        self.node = self.nodes[0]  # of the output, once the trace has made it
        self.weight, self.bias, self.apply = _linear_parts(call)
        self.is_bias = any(t.dim() and t.numel() == t.shape[-1] for t in call.tensors if not t.requires_grad)
        self._versions = [x._version for x in inputs]

    def vjp(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        """The vector-Jacobian product of the operation itself."""
        return torch.autograd.grad(self.result, self.inputs, cotangent, retain_graph=True)

    def protect(self) -> None:
        """Keep the output's value when the model is about to overwrite it in place."""
        self.output = self.output.clone()

    def sums(self, tensor: Tensor) -> Tensor:
        """Per-sample sums of a tensor shaped like the output, shaped to multiply it."""
        axes = self.node.axes
        return spread(per_sample(tensor, axes, self.batch), tensor, axes, self.batch)

    @property
    def bias_like_output(self) -> Tensor:
        """The bias, shaped to be added to the output."""
        assert self.bias is not None
        spatial = self.output.dim() - 2 if self.name.startswith("conv") else 0
        return self.bias.reshape(-1, *(1,) * spatial)

    def check(self) -> None:
        """Refuse to go on with inputs that were overwritten after they were used."""
        if [x._version for x in self.inputs] != self._versions:
            raise ModelError(
                f"The model overwrites an input of '{self.name}' in place after using it, so that its relevance cannot be "
                "computed. Replace the in-place operation (x += y, x.mul_(y)) by x = x + y, x = x * y."
            )


def _linear_parts(call: Call) -> tuple[Tensor | None, Tensor | None, Callable[[Tensor, Tensor], Tensor] | None]:
    """Weight, bias and the bilinear map (input, weight) -> output of a linear operation."""
    if call.kind not in ("linear", "convolution") or len(call.traced) != 1:
        return None, None, None
    name, args, kwargs = call.name, call.args, call.kwargs
    x = call.traced[0]
    if name == "addmm":
        return args[2], args[0], torch.mm
    if name == "linear":
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return weight, bias, torch.nn.functional.linear
    if name.startswith("conv"):
        rest = args[3:]
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        options = {k: v for k, v in kwargs.items() if k not in ("bias", "input", "weight")}
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        func = call.func
        return weight, bias, lambda a, w: func(a, w, None, *rest, **options)
    if name in ("matmul", "mm", "bmm", "einsum") and len(call.tensors) == 2:
        other = next(t for t in call.tensors if t is not x)
        func = call.func
        swapped = call.tensors[0] is not x
        lead = call.args[:1] if name == "einsum" else ()

        def product(a: Tensor, w: Tensor) -> Tensor:
            pair = (w, a) if swapped else (a, w)
            return func(*lead, *pair)

        return other, None, product
    return None, None, None


RelevanceRule = Callable[[Local, Tensor], tuple[Tensor, ...]]


class Propagate(torch.autograd.Function):
    """Runs an operation; its backward is the gradient or the rule, as the phase says."""

    @staticmethod
    def forward(ctx: Any, call: Call, rule: RelevanceRule, phase: Phase, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            own = [x.detach().requires_grad_() for x in inputs]
            output = call.run(*own)
        ctx.local, ctx.rule, ctx.phase = Local(call, own, output), rule, phase
        call.local = ctx.local
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        local: Local = ctx.local
        local.check()
        if not ctx.phase.relevance:
            return (None, None, None, *local.vjp(grads[0]))
        out = ctx.rule(local, grads[0])
        if ctx.phase.ledger is not None:
            ctx.phase.ledger.operation(local, grads[0], out)
        return (None, None, None, *out)
