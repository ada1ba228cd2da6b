"""Count the norms, activations, gates and residual sums of a family: those of the trace beside those of the model.

The expected numbers do not come from the trace. :func:`implied` runs the model once more without it, with hooks on its
norm and activation modules and a look at the torch functions that it calls, and counts what the target depends on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tools.conformance.family import Family, Inputs
from whence.methods.registry import create
from whence.runs.forward import forwarded
from whence.runs.model_inputs import prepare
from whence.runs.run import Run
from whence.tracing.node import Node, node_of, walk

REGIONS = ("norms", "activations", "gates", "residuals")
#: elementwise functions that are activations of a network; powers, roots, exponentials and bounds are arithmetic
FUNCTIONS = frozenset({
    "gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "mish", "hardswish", "hardtanh",
    "hardsigmoid", "tanh", "sigmoid", "softplus", "softsign", "logsigmoid", "prelu", "rrelu", "tanhshrink",
    "softshrink",
})  # fmt: skip
#: names of operations with which an activation of several steps ends
STEPS = frozenset({"mul", "div", "add", "sub", "where", "maximum", "minimum", "masked_fill"})
#: torch functions that are norms, and how many each
NORMS = {"layer_norm": 1, "rms_norm": 1, "group_norm": 1, "instance_norm": 1, "normalize": 1, "cosine_similarity": 2}
#: classes that are called after a norm and are none: in evaluation, the first is linear, the second always is
LINEAR = ("BatchNorm", "NoNorm")
#: classes of ``torch.nn.modules.activation`` that are no activations; ``nn.GLU`` is seen as the function that it calls
OTHERS = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)
Step = Any  # a node of the autograd graph


@dataclass(frozen=True)
class Count:
    """How many regions of one kind there are.

    Attributes:
        found: in the trace.
        expected: implied by the model; ``None``: not checked.
    """

    found: int
    expected: int | None

    @property
    def missed(self) -> bool:
        """Whether the numbers differ."""
        return self.expected is not None and self.found != self.expected

    def __str__(self) -> str:
        return f"{self.found} / {'–' if self.expected is None else self.expected}"


def counted(family: Family, model: nn.Module) -> dict[str, Count]:
    """Return the number of regions of each kind, found and expected, for one sample."""
    inputs = family.batch(1)
    with forwarded(model, *prepare(model, inputs), create("gradient-x-input", {}), [family.target]) as (run,):
        there = found(run)
    known = {name: getattr(family, name) for name in REGIONS}
    other = {k: v[1:] if v.dim() and len(v) == 2 else v for k, v in family.batch(2).items()}
    derived = implied(model, inputs, other, family.target, family.queries)
    return {name: Count(there[name], derived[name] if known[name] is None else known[name]) for name in REGIONS}


# -- in the trace ----------------------------------------------------------------------------------------------------


def found(run: Run) -> dict[str, int]:
    """Return how many regions of each kind lie between the input and the target of a traced forward pass.

    - norms: nodes of the kind ``norm``, and of the kind ``normalise`` if they divide by a deviation.
    - activations: nodes of the kinds ``gated`` and ``activation`` that are one of :data:`FUNCTIONS`, or a function of
      several steps that the trace has joined.
    - gates: nodes of the kind ``gate``.
    - residuals: the residual sums on record.

    The steps inside a norm, a joined activation or a joined softmax are no regions of their own.

    Args:
        run: of a method without rules, whose nodes are connected as the operations are.
    """
    start = node_of(run.seed.output)
    nodes = list(walk([start], _outside))
    reached = {node.seq for node in nodes}
    kinds = [node.kind for node in nodes]
    return {
        "norms": kinds.count("norm") + sum(node.kind == "normalise" and _divides(node) for node in nodes),
        "activations": sum(node.kind in ("gated", "activation") and _is_function(node) for node in nodes),
        "gates": kinds.count("gate"),
        "residuals": sum(node_of(residual.output).seq in reached for residual in run.trace.residuals),
    }


def _outside(node: Node) -> list[Node]:
    """Return the tensors that a node is made from, without the deviation that it is divided by."""
    return [parent for parent in node.live if node.kind != "normalise" or not _is_deviation(parent)]


def _divides(node: Node) -> bool:
    return any(_is_deviation(parent) for parent in node.live)


def _is_deviation(node: Node) -> bool:
    return node.moved_from().deviation


def _is_function(node: Node) -> bool:
    joined = {parent.seq for parent in node.live} != {parent.seq for parent in node.flows}
    return node.name in FUNCTIONS or (joined and node.name in STEPS)


# -- in the model ----------------------------------------------------------------------------------------------------


def implied(
    model: nn.Module, inputs: Inputs, other: Inputs, target: Callable[[Any], Tensor], queries: tuple[str, ...] = ()
) -> dict[str, int]:
    """Return how many regions of each kind the model computes on the way from its inputs to a target.

    Parameters are constants here, so that a tensor requires a gradient if it depends on the input.

    - norms: calls of modules with "Norm" in the name of their class, and of torch's norms outside of these.
    - activations: calls of activation modules, and of :data:`FUNCTIONS` outside of these.
    - gates: products of functions of two different tensors that both depend on the input.
    - residuals: sums of two tensors of one shape, of which one is computed from the other.

    Gates and residuals inside norm and activation modules do not count.

    Args:
        model: the model, in evaluation mode; it is as it was afterwards.
        inputs: a batch.
        other: another one, of the same shape: a lookup is one of input tokens if its ids differ between the two, and
            one of positions if they do not.
        target: a function from the model's outputs to one number for each sample.
        queries: (parts of) the names of parameters that are tokens of the model's own, and count as input.
    """
    seen = _Calls()
    with _constant(model, queries), torch.enable_grad():
        with seen:
            model(**other)
        seen.restart()
        given = {k: v.clone().requires_grad_().clone() if v.is_floating_point() else v for k, v in inputs.items()}
        with _watched(model, seen), seen:
            value = target(model(**given))
    reached = set(_behind(value.grad_fn))
    return {name: sum(n for step, n in seen.made[name] if step in reached) for name in REGIONS}


class _Calls(TorchFunctionMode):
    """The norms, activations, gates and residual sums of a forward pass, each by what made it in the autograd graph.

    Attributes:
        made: for each kind of region, the steps that made some, and how many.
        within: how many norm modules and how many activation modules are being called.
        ids: those of each lookup.
        before: those of each lookup that is still to come, in an earlier pass with other inputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[Tensor] = []
        self.restart()

    def restart(self) -> None:
        """Begin another pass."""
        self.made: dict[str, list[tuple[Step, int]]] = {name: [] for name in REGIONS}
        self.within = {"norms": 0, "activations": 0}
        self.before, self.ids = self.ids, []

    def note(self, name: str, output: Any, count: int = 1) -> None:
        """Note a region by what it returned."""
        output = output[0] if isinstance(output, tuple) else output
        if isinstance(output, Tensor) and output.grad_fn is not None:
            self.made[name].append((output.grad_fn, count))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func)
        if name == "set_grad_enabled":  # a backbone that the model does not train is explained, too
            return None
        if name == "zeros_like" and args[0].requires_grad:  # to these zeros, DETR adds its queries in every layer
            return args[0] * 0
        traced = [a for a in args[:2] if isinstance(a, Tensor) and a.requires_grad]
        pair = len(traced) == 2 and not any(self.within.values())
        gate = name == "mul" and pair and _is_gate(*traced)
        residual = name == "add" and pair and traced[0].shape == traced[1].shape and _is_residual(*traced)
        func = torch.group_norm if name == "group_norm" else func  # that of nn.functional refuses a single pixel
        out = func(*args, **(kwargs or {}))
        if name == "embedding" and self._varies(args[0]):
            return out.requires_grad_().clone()  # a model may overwrite it
        if name in NORMS and not self.within["norms"]:
            self.note("norms", out, NORMS[name])
        if name in (*FUNCTIONS, "erf", "glu") and not self.within["activations"]:
            self.note("activations", out)
        if gate or name == "glu":
            self.note("gates", out)
        if residual:
            self.note("residuals", out)
        return out

    def _varies(self, ids: Tensor) -> bool:
        """Return whether the ids of a lookup depend on the input."""
        self.ids.append(ids)
        return bool(self.before) and not torch.equal(self.before.pop(0), ids)


def _name(func: Any) -> str:
    """Return the name of a torch function: ``x += y``, ``y + x`` and ``torch.add(x, y)`` are ``add``."""
    name = str(getattr(func, "__name__", ""))
    inner = name.strip("_")
    return {"radd": "add", "iadd": "add", "rmul": "mul", "imul": "mul", "multiply": "mul"}.get(inner, inner)


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a norm, by its class; a layer that holds one, or is called after one, is none."""
    name = type(module).__name__
    layers = any(True for child in module.children() for _ in child.parameters())
    return "Norm" in name and not any(word in name for word in LINEAR) and not layers


def is_activation(module: nn.Module) -> bool:
    """Return whether a module is an activation of torch or of transformers."""
    home = type(module).__module__
    own = home in ("torch.nn.modules.activation", "transformers.activations") and not isinstance(module, OTHERS)
    return own and next(module.children(), None) is None


@contextlib.contextmanager
def _watched(model: nn.Module, seen: _Calls) -> Iterator[None]:
    """Note each call of a norm or activation module while the block runs."""
    handles = []
    for module in model.modules():
        name = "norms" if is_norm(module) else "activations" if is_activation(module) else ""

        def enter(module: nn.Module, args: Any, name: str = name) -> None:
            seen.within[name] += 1

        def leave(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            seen.within[name] -= 1
            if not seen.within[name]:
                seen.note(name, output)

        if name:
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _constant(model: nn.Module, queries: tuple[str, ...]) -> Iterator[None]:
    """Make all parameters constants while the block runs, but for some, by parts of their names."""
    parameters = [
        p for name, p in model.named_parameters() if p.requires_grad and not any(part in name for part in queries)
    ]
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


def _behind(step: Step, after: int = -1) -> Iterator[Step]:
    """Yield a step of the autograd graph and those that it depends on, if they came after some number."""
    stack, seen = [step], set()
    while stack:
        step = stack.pop()
        if step is None or step in seen or step._sequence_nr() < after:
            continue
        seen.add(step)
        yield step
        stack += [other for other, _ in step.next_functions]


#: steps that lay out or copy a tensor
LAYOUT = {"View", "UnsafeView", "Transpose", "T", "Permute", "Clone", "Unsqueeze", "Squeeze", "Expand", "ToCopy"}
#: steps of elementwise functions
ELEMENTWISE = {"Mul", "Div", "Add", "Sub", "Neg", "Tanh", "Sigmoid", "Erf", "Pow", "Exp", "Clamp", "ToCopy", "Clone"}


def _kind(step: Step) -> str:
    """Return the operation of a step of the autograd graph: ``Mul`` of ``MulBackward0``."""
    return type(step).__name__.split("Backward")[0]


def _root(step: Step, output: int) -> tuple[Step, int]:
    """Return what made the one tensor that another is an elementwise function of: a step, and which of its outputs."""
    while _kind(step) in ELEMENTWISE:
        inner = {_root(*edge) for edge in step.next_functions if edge[0] is not None}
        if len(inner) != 1:
            break
        ((step, output),) = inner
    return step, output


def _is_gate(a: Tensor, b: Tensor) -> bool:
    """Return whether two factors are functions of different tensors; others are an activation by hand."""
    return _root(a.grad_fn, a.output_nr) != _root(b.grad_fn, b.output_nr)


def _is_residual(a: Tensor, b: Tensor) -> bool:
    """Return whether one of two tensors is computed from the other, however that is laid out."""
    return _is_from(a, b) or _is_from(b, a)


def _is_from(tensor: Tensor, other: Tensor) -> bool:
    steps = [other.grad_fn]
    while _kind(steps[-1]) in LAYOUT:
        steps.append(steps[-1].next_functions[0][0])
    behind = set(_behind(tensor.grad_fn, min(step._sequence_nr() for step in steps)))
    return any(step in behind for step in steps)
