"""Activations and gates: elementwise functions of one tensor, and products of functions of two.

Which function of its root a tensor is decides about its rule, not the operations that compute it: ``gelu(x)`` and
``x * 0.5 * (1 + erf(x / sqrt(2)))`` are one activation. A product of several factors is taken apart, and factors of one
tensor are joined: ``(u * a) * sigmoid(a)`` is ``u * silu(a)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import operations as ops
from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, restored
from ..tensor_info import info_of, inform, node_of

#: elementwise operations that join several functions of one tensor
JOINING = {
    "mul", "div", "add", "sub", "pow", "where", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2",
    "masked_fill", "atan2", "xlogy",
}  # fmt: skip
#: kinds of operations that are elementwise functions, or copy
ELEMENTWISE = {
    "scale", "shift", "shift-by-constant", "activation", "gated", "function", "identity", "structural", "discrete",
}  # fmt: skip
#: how far the argument is scaled to find out whether an activation grows with it
FAR = 2.0**10
#: where to find out whether a function is finite everywhere, and grows no faster than a polynomial
LARGE = 2.0**7


def keep_root(tensor: Tensor, node: Node) -> None:
    """Keep the tensor that another is an elementwise function of alive with it: more of the function may follow."""
    if node.root is not node and tensor.requires_grad and not (node.kind == "gated" and node.proportional):
        inform(tensor, root=node.root.tensor)


def release_roots(tensors: list[Tensor]) -> None:
    """Let go of the roots of some tensors, which an operation has read that is no elementwise function."""
    for tensor in tensors:
        if info_of(tensor).root is not None:
            inform(tensor, root=None)


def functions(call: Call) -> list[Node]:
    """Return the nodes of all operands that vary with the input: traced tensors, and masks that compare one."""
    pairs = zip(call.tensors, call.nodes, strict=True)
    return [node for tensor, node in pairs if node is not None and (tensor.requires_grad or is_mask(node))]


def is_mask(node: Node) -> bool:
    """Return whether a tensor is a function of one that carries relevance, without a derivative: ``x > 0``."""
    return not node.differentiable and node.root.differentiable


def root_of(call: Call) -> Node | None:
    """Return the one tensor of which all operands of an elementwise operation are functions, if there is one."""
    roots = {id(node.root): node.root for node in functions(call)}
    if len(roots) != 1:
        return None
    (root,) = roots.values()
    return root


def is_activation(call: Call) -> bool:
    """Return whether an operation completes an elementwise function that is more than its last step."""
    root = root_of(call)
    if root is None or call.inplace:
        return False
    nodes = functions(call)
    if call.name in JOINING and len(nodes) > 1:
        return call.name not in ("add", "sub") or any(not node.linear for node in nodes)
    return any(node.shifted or _is_unfinished(node) for node in nodes) or _shifts(call)


def _is_unfinished(node: Node) -> bool:
    """Return whether the last function on the way to a tensor from its root is no activation: an exponential."""
    while node is not node.root and len(node.flows) == 1 and node.kind not in ("function", "activation", "gated"):
        node = node.flows[0]
    return node.kind == "function" and node is not node.root


def _shifts(call: Call) -> bool:
    """Return whether an operation adds a number to an activation."""
    if call.name not in ("add", "sub") or len(call.traced) != 1 or not node_of(call.traced[0]).activated:
        return False
    return all(t.requires_grad or t.numel() == 1 for t in call.tensors)


def activation(call: Call, value: Tensor) -> Call | None:
    """Return an elementwise function as one operation on its root; ``None`` if the root is gone.

    A function that ends with the addition of a number is complete if it is 0 at 0, as ``2 sigmoid(2 x) - 1``.
    """
    root = root_of(call)
    nodes = functions(call)
    if root is not None and root.tensor is None:
        root = dominator(nodes)
    x = None if root is None else root.tensor
    if root is None or x is None or x.shape != value.shape:
        return None
    recipe = Recipe.of(call, _known(call), 0)

    def at(other: Tensor) -> Tensor:
        return recipe.run(lambda node: evaluate(node, {root: other}))

    try:
        with torch.no_grad():
            if _shifts(call) and not _is_zero_at_zero(at, x):
                return None
            kind = _kind(call, at, x)
    except (UnknownFunctionError, RuntimeError):
        return None
    if kind == "function":
        return None
    return Call(
        call.name, kind, functools.partial(_valued, value, at), (x,), {}, call.batch, [x], [root], [x], composed=True
    )


def stacked_activation(call: Call) -> Call | None:
    """Return an elementwise function that is computed by way of a stack with constants as one operation.

    ``logsumexp(stack([x, 0]))`` is softplus, ``stack([x, 0], -1).softmax(-1)[..., 0]`` is the sigmoid.
    """
    if call.name not in ("logsumexp", "getitem", "select") or len(call.traced) != 1 or call.inplace:
        return None
    node = node_of(call.traced[0])
    node = node.flows[0] if node.name == "softmax" and len(node.flows) == 1 else node
    root = node.flows[0] if node.name == "stack" and len(node.flows) == 1 else None
    x = None if root is None else root.tensor
    if root is None or x is None or x.is_meta:
        return None
    name = "logsumexp" if call.name == "logsumexp" else "softmax"
    recipe = Recipe.of(call, _known(call), 0)

    def at(other: Tensor) -> Tensor:
        return recipe.run(lambda node: evaluate(node, {root: other}))

    try:
        with torch.no_grad():
            value = at(x.detach())
            if value.shape != x.shape or not is_elementwise(at, x.detach()) or is_identity(at, x):
                return None
            kind = function_kind(at, x)
    except (UnknownFunctionError, RuntimeError):
        return None
    return Call(
        name, kind, functools.partial(_valued, value, at), (x,), {}, call.batch, [x], [root], [x], composed=True
    )


def _known(call: Call) -> dict[int, Node]:
    """Return the nodes of the operands that vary with the input, by ``id``."""
    pairs = zip(call.tensors, call.nodes, strict=True)
    return {id(t): node for t, node in pairs if node is not None and (t.requires_grad or is_mask(node))}


def _kind(call: Call, at: Callable[[Tensor], Tensor], x: Tensor) -> str:
    if _is_proportional(call):
        return "gated"
    if not x.is_meta and is_identity(at, x):
        return "identity"
    return function_kind(at, x)


def _is_zero_at_zero(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    return not x.is_meta and bool((function(torch.zeros_like(x)).abs() < 1e-6).all())


def _valued(value: Tensor, at: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return what was computed for ``x``; with its derivative, if that is asked for."""
    return at(x) if torch.is_grad_enabled() and x.requires_grad else value.detach()


def _is_proportional(call: Call) -> bool:
    """Return whether an operation keeps the form ``x g(x)`` of its operands: a product with one, a sum of several."""
    nodes = [node.proportional for node in functions(call)]
    if call.name == "mul":
        return any(nodes)
    if call.name == "div":
        return nodes[0]
    return call.name in ("add", "sub") and len(nodes) > 1 and all(nodes)


def is_identity(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function leaves all values as they are."""
    size = FAR * max(float(x.detach().double().abs().max()), 1.0)
    return all(bool((function(torch.full_like(x, c)) == c).all()) for c in (size, -size))


def function_kind(function: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """Return what an elementwise function is: ``x g(x)``, another activation, or none."""
    return "function" if not _is_tame(function, x) else "gated" if is_gated(function, x) else "activation"


def _is_tame(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function is finite everywhere and grows no faster than a polynomial."""
    if x.is_meta or not x.numel():
        return True
    near, far = (
        [float(function(torch.full_like(x, sign * c, dtype=torch.float64)).abs().max()) for sign in (1, -1)]
        for c in (LARGE, 2 * LARGE)
    )
    steps = torch.arange(x.numel(), dtype=torch.float64, device=x.device).reshape(x.shape)
    grid = [(steps + start).remainder(2 * LARGE) - LARGE for start in range(0, int(2 * LARGE), x.numel())]
    between = float(torch.stack([function(points).abs().max() for points in grid]).max())
    return between <= 16 * max(*near, LARGE) and all(b <= 16 * max(a, LARGE) for a, b in zip(near, far, strict=True))


def is_gated(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function is of the form ``x g(x)``: 0 at 0, and growing with ``x``."""
    if x.is_meta:
        return True
    if bool(function(torch.zeros_like(x)).any()):
        return False
    size = float(x.detach().double().abs().max())
    ends = [function(torch.full_like(x, sign * FAR * max(size, 1.0))).abs().max() / FAR for sign in (1, -1)]
    return any(1e-2 < float(end) < math.inf for end in ends)


class Factors:
    """The factors of a product or quotient, each with the power 1 or -1.

    Attributes:
        nodes: tensors that vary with the input.
        constants: tensors and numbers that do not.
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[Node, int]] = []
        self.constants: list[tuple[Any, int]] = []

    def add(self, node: Node, power: int) -> None:
        """Add a tensor: its own factors, where it is a product itself."""
        args = () if node.recipe is None else node.recipe.args[:2]
        inner = [a for a in args if isinstance(a, Node)]
        quotient = node.name == "div" and node.kind in ("normalise", "gate", "scale")
        whole = not (quotient or (node.name == "mul" and node.kind in ("gate", "scale")))
        multiple = node.kind == "scale" and (len(inner) != 1 or inner[0].root is node.root)
        if len(args) != 2 or whole or multiple:
            self.nodes.append((node, power))
        else:
            for arg, sign in zip(args, (1, -1 if quotient else 1), strict=True):
                if isinstance(arg, Node):
                    self.add(arg, sign * power)
                else:
                    self.constants.append((arg, sign * power))

    def groups(self) -> list[list[tuple[Node, int]]]:
        """Return the factors in one group for each tensor that they are functions of."""
        found: dict[int, list[tuple[Node, int]]] = {}
        for node, power in self.nodes:
            found.setdefault(id(node.root), []).append((node, power))
        return list(found.values())

    def is_elementwise(self) -> bool:
        """Return whether all denominators are activations of as many elements as the largest factor: no sums, no norms.

        A numerator that is part of a sum that it is divided by, ``a / (a + b)``, is a share.
        """
        size = max(node.numel for node, _ in self.nodes)
        above = [node for node, power in self.nodes if power > 0]
        below = [node for node, power in self.nodes if power < 0]
        if any(_is_share(own, other.root) for own in above for other in below):
            return False
        return all(n.activated and min(n.moved_from().numel, n.root.moved_from().numel) == size for n in below)


def _is_share(own: Node, total: Node) -> bool:
    """Return whether a tensor is part of a sum, without weights between them."""
    between = total.paths(own) if own.seq < total.seq else []
    return bool(between) and not any(node.weighted for node in between)


def regrouped(call: Call) -> Callable[[], Tensor] | None:
    """Return a product with its factors in another order: one group for each of two tensors that they are functions of.

    ``None`` if it has that form: factors of one tensor are multiplied first, and a quotient by a function of another
    tensor is a product.
    """
    known = _known(call)
    operands = [known.get(id(t)) if isinstance(t, Tensor) else None for t in call.args[:2]]
    if len(operands) != 2 or None in operands:
        return None
    own = []
    for node, power in zip(operands, (1, -1 if call.name == "div" else 1), strict=True):
        own.append(Factors())
        own[-1].add(node, power)  # type: ignore[arg-type]  # none is None
    every = Factors()
    every.nodes = own[0].nodes + own[1].nodes
    every.constants = own[0].constants + own[1].constants
    groups = every.groups()
    if len(groups) != 2 or not every.is_elementwise():
        return None
    mixed = [{id(node.root) for node, _ in part.nodes} for part in own]
    if call.name == "mul" and mixed[0].isdisjoint(mixed[1]):
        return None

    def run() -> Tensor:
        made = torch.mul(*(power_product([(restored(node), power) for node, power in group]) for group in groups))
        return power_product([(made, 1), *every.constants]) if every.constants else made

    return run


def power_product(factors: list[tuple[Any, int]]) -> Tensor:
    """Return the product of some tensors, over that of others."""
    above = [tensor for tensor, power in factors if power > 0]
    below = [tensor for tensor, power in factors if power < 0]
    divisor = functools.reduce(torch.mul, below) if below else None
    if not above:
        assert divisor is not None
        return torch.reciprocal(divisor)
    made: Tensor = functools.reduce(torch.mul, above)
    return made if divisor is None else torch.div(made, divisor)


def shifted_gate(call: Call) -> Callable[[], Tensor] | None:
    """Return a product with a function to which a number was added last, as a product with one function.

    ``u * (0.5 + 0.5 * tanh(g))`` is a product with a gate, 0 at one end; ``u * (1 + g(x))`` is ``u + u * g(x)``.
    """
    for mine, other in ((0, 1), (1, 0)):
        if len(call.traced) != 2 or len(call.args) != 2:
            return None
        node, rest = (call.nodes[i] for i in (mine, other))
        shift = call.tensors[mine]
        if node is None or rest is None or node.kind != "shift" or not node.shifted or node.root is rest.root:
            continue
        if node.recipe is None or shift.shape != call.tensors[other].shape or shift.is_meta:
            continue
        if _closes(node):
            return functools.partial(lambda u, s: torch.mul(u, s.clone()), call.tensors[other], shift)
        saturates = node.flows[0].kind == "activation" and node.flows[0].name not in ops.CLIPPING
        if saturates and node.name == "add" and 1 in [a for a in node.recipe.args[:2] if isinstance(a, int | float)]:
            return functools.partial(lambda u, f: u + u * restored(f), call.tensors[other], node.flows[0])
    return None


def _closes(node: Node) -> bool:
    """Return whether a function of one tensor is bounded, and 0 for large arguments of one sign."""
    x = torch.full(node.root.shape, FAR, dtype=node.root.dtype, device=node.root.device)
    try:
        with torch.no_grad():
            ends = [float(evaluate(node, {node.root: sign * x}).abs().max()) for sign in (1, -1)]
    except (UnknownFunctionError, RuntimeError):
        return False
    return min(ends) < 1e-6 and max(ends) < FAR / 2


def constant_multiple(call: Call) -> Callable[[], Tensor] | None:
    """Return a sum of constant multiples of one tensor, ``y + y * w``, as one multiple."""
    root = root_of(call)
    nodes = functions(call)
    x = None if root is None else root.tensor
    if root is None or x is None or x.is_meta or len(nodes) != 2:
        return None
    if not all(node.linear for node in nodes) or all(node is root for node in nodes):
        return None
    recipe = Recipe.of(call, _known(call), 0)
    try:
        with torch.no_grad():
            ones = torch.ones_like(x)
            factor = recipe.run(lambda node: evaluate(node, {root: ones}))
    except (UnknownFunctionError, RuntimeError):
        return None
    return functools.partial(torch.mul, x, factor) if factor.shape == root.shape else None


def is_elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether a function computes every element from the element at the same place alone."""
    made = function(x)
    if made.shape != x.shape or x.numel() < 2:
        return False
    other = torch.rand(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(x)
    kept = other < 0.5
    again = function(torch.where(kept, x, other))
    return bool((~kept | (again == made) | (again.isnan() & made.isnan())).all())


def constant_factor(call: Call) -> Any:
    """Return the number that a call multiplies its operand by; ``None`` if it does something else."""
    if call.name == "neg":
        return -1.0
    if call.name not in ("mul", "div") or len(call.traced) != 1:
        return None
    others = [a for a in call.args[:2] if a is not call.traced[0]]
    if len(others) != 1 or (call.name == "div" and others[0] is call.args[0]):
        return None
    value = others[0]
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_meta:
            return None
        value = value.item()
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value) if call.name == "mul" else 1.0 / value if value else None
