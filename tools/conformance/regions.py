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
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from tools.conformance.family import Family, Inputs
from whence.propagation.rulebook import Rulebook
from whence.runs.forward import forwarded
from whence.runs.model_inputs import prepare
from whence.runs.run import Run
from whence.tracing.node import Node, walk
from whence.tracing.tensor_info import node_of

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
        expected: in the model.
    """

    found: int
    expected: int

    @property
    def missed(self) -> bool:
        """Whether the numbers differ."""
        return self.found != self.expected

    def __str__(self) -> str:
        return f"{self.found} of {self.expected}" if self.missed else str(self.found)


def counted(family: Family) -> dict[str, Count]:
    """Return the number of regions of each kind, found and expected, for one sample.

    The model is built anew, so that its regions are recognised and not remembered from an earlier explanation.
    """
    model, inputs = family.model(), family.batch(1)
    with forwarded(model, *prepare(model, inputs), _NoRules(), [family.target]) as (run,):
        there = found(run)
    known = {name: getattr(family, name) for name in REGIONS}
    other = {k: v[1:] if v.dim() and len(v) == 2 else v for k, v in family.batch(2).items()}
    derived = implied(model, inputs, other, family.target, family.queries)
    return {name: Count(there[name], derived[name] if known[name] is None else known[name]) for name in REGIONS}


class _NoRules:
    """Runs every operation by its plain derivative, and yet looks into custom autograd functions, as rules need it."""

    name = "regions"

    def rulebook(self) -> Rulebook:
        """Return a rule for a kind of operation that does not occur."""
        return Rulebook({"none": lambda call: call.run()}, books=False)


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
        run: without rules, so that its nodes are connected as its operations are.
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

    - norms: calls of modules with "Norm" in the name of their class; outside of these, calls of torch's norms, and
      products and quotients with a length or deviation (also where a norm is undone).
    - activations: calls of activation modules, and of :data:`FUNCTIONS` outside of these.
    - gates: products of functions of two different tensors that both depend on the input, outside of activation
      modules, but for those that are norms.
    - residuals: sums of two tensors of one shape, of which one is computed from the other, outside of activation
      modules.

    Args:
        model: the model, in evaluation mode; it is as it was afterwards.
        inputs: a batch.
        other: another one, of the same shape: a lookup is one of input tokens if its ids differ between the two, and
            one of positions if they do not.
        target: a function from the model's outputs to one number for each sample.
        queries: (parts of) the names of parameters that are tokens of the model's own, and count as input.
    """
    seen = _Calls(bool(queries))
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
        queries: whether the model has tokens of its own.
        made: for each kind of region, the steps that made some, and how many.
        within: how many norm modules and how many activation modules are being called.
        ids: those of each lookup.
        before: those of each lookup that is still to come, in an earlier pass with other inputs.
    """

    def __init__(self, queries: bool) -> None:
        super().__init__()
        self.queries = queries
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
        if name == "zeros_like" and self.queries and args[0].requires_grad:  # what DETR adds its queries to
            return args[0] * 0
        operands = [a for a in args[:2] if isinstance(a, Tensor) and a.requires_grad]
        region = _region(name, *operands) if len(operands) == 2 and not self.within["activations"] else ""
        func = torch.group_norm if name == "group_norm" else func  # that of nn.functional refuses a single pixel
        out = func(*args, **(kwargs or {}))
        if name == "embedding" and self._varies(args[0]):
            return out.requires_grad_().clone()  # a model may overwrite it
        if (name in NORMS or region == "norms") and not self.within["norms"]:
            self.note("norms", out, NORMS.get(name, 1))
        if name in (*FUNCTIONS, "erf", "glu") and not self.within["activations"]:
            self.note("activations", out)
        if region == "gates" or name == "glu":
            self.note("gates", out)
        if region == "residuals":
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
    """Return whether a module is an activation: of torch, of transformers, or called after one."""
    home, name = type(module).__module__, type(module).__name__.lower()
    own = home in ("torch.nn.modules.activation", "transformers.activations") or name.endswith(("gelu", "silu", "relu"))
    layers = any(True for child in module.children() for _ in child.parameters())
    return own and not layers and not isinstance(module, OTHERS)


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
#: steps that pick entries, and those that bound them
CUTS = {"Slice", "Select", "Index", "Where", "ClampMin", "Maximum"}
#: steps that a length is made by: at once, or as a root of a sum
LENGTHS, ROOTS, SUMS = {"LinalgVectorNorm", "Norm", "Std"}, {"Sqrt", "Rsqrt", "Pow"}, {"Sum", "Mean", "Var"}
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


def _region(name: str, a: Tensor, b: Tensor) -> str:
    """Return which region an operation on two tensors that depend on the input is, or an empty string.

    Functions of one tensor, multiplied or added, are steps of an activation.
    """
    one, two = get_gradient_edge(a), get_gradient_edge(b)
    if _root(one.node, one.output_nr) == _root(two.node, two.output_nr):
        return ""
    if (name in ("mul", "div") and _is_length(two.node)) or (name == "mul" and _is_length(one.node)):
        return "norms"
    if name == "mul":
        return "gates"
    return "residuals" if name == "add" and a.shape == b.shape and _is_residual(a, b) else ""


def _is_length(step: Step) -> bool:
    """Return whether a tensor is a length or a deviation, or the inverse of one: a root of a sum or mean."""
    root = False
    while step is not None and _kind(step) not in SUMS:
        if _kind(step) in LENGTHS:
            return True
        root = root or _kind(step) in ROOTS
        inner = [other for other, _ in step.next_functions if other is not None]
        step = inner[0] if len(inner) == 1 and _kind(step) in (*LAYOUT, *ELEMENTWISE, *ROOTS, *CUTS) else None
    return root and step is not None


def _is_residual(a: Tensor, b: Tensor) -> bool:
    """Return whether one of two tensors is computed from the other, however that is laid out."""
    return _is_from(a, b) or _is_from(b, a)


def _is_from(tensor: Tensor, other: Tensor) -> bool:
    steps: list[Step] = [get_gradient_edge(other).node]
    while _kind(steps[-1]) in LAYOUT:
        steps.append(steps[-1].next_functions[0][0])
    after = -1 if _kind(steps[-1]).startswith("AccumulateGrad") else steps[-1]._sequence_nr()  # a leaf has no number
    behind = set(_behind(get_gradient_edge(tensor).node, after))
    return any(step in behind for step in steps)
