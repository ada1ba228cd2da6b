"""Activations and gates: elementwise functions of one tensor, and products of functions of two.

Which function of its root a tensor is decides about its rule, not the operations that compute it: ``gelu(x)`` and
``x * 0.5 * (1 + erf(x / sqrt(2)))`` are one activation. A product of several factors is taken apart, and factors of one
tensor are joined: ``(u * a) * sigmoid(a)`` is ``u * silu(a)``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ...capture.tape import checking
from .. import operations as ops
from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, restored
from ..tensor_info import info_of, inform, node_of
from .origins import is_over_stack, origins

#: elementwise operations that join several functions of one tensor
JOINING = {
    "mul", "div", "add", "sub", "pow", "where", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2",
    "masked_fill", "atan2", "xlogy",
}  # fmt: skip
#: kinds of operations that are elementwise functions, or copy
ELEMENTWISE = {
    "scale", "shift", "shift-by-constant", "activation", "gated", "function", "identity", "structural", "selecting",
    "discrete", "gate",
}  # fmt: skip
#: how far the argument is scaled to find out whether an activation grows with it
FAR = 2.0**10
#: where to find out whether a function is finite everywhere, and grows no faster than a polynomial
LARGE = 2.0**7


def keep_roots(tensor: Tensor, node: Node, operands: list[Tensor]) -> None:
    """Keep the tensors that another is an elementwise function of alive with it: more of the function may follow.

    Args:
        tensor: the function's value.
        node: its node.
        operands: what the operation that made it has read.
    """
    if not tensor.requires_grad:
        return
    kept = [root for operand in operands for root in info_of(operand).roots]
    if node.kind == "gate" or (len(node.flows) > 1 and node.kind == "structural" and any(map(_is_part, node.flows))):
        kept += [operand for operand in operands if operand.requires_grad and operand is not tensor]
    elif node.root is not node and node.root.tensor is not None:
        kept.append(node.root.tensor)
    if kept:
        inform(tensor, roots=tuple({id(root): root for root in kept}.values()))


def _is_part(node: Node) -> bool:
    """Return whether a tensor that is joined with others may be a factor of a gated unit."""
    return node.activated or node.kind == "gate"


def release_roots(tensors: list[Tensor]) -> None:
    """Let go of the roots of some tensors, which an operation has read that is no elementwise function."""
    for tensor in tensors:
        if info_of(tensor).roots:
            inform(tensor, roots=())


@dataclass
class ElementwiseFunction:
    """A function that a model computes in several steps, to be run as one operation.

    Attributes:
        at: its value for any argument.
    """

    at: Callable[[Tensor], Tensor]

    def applied(self, x: Tensor) -> Tensor:
        """Return its value, by one operation of the trace."""
        return elementwise_function(x, self)


def elementwise_function(x: Tensor, function: ElementwiseFunction) -> Tensor:
    """Apply a function to a tensor, as an operation that an active trace sees."""
    if has_torch_function((x,)):
        made: Tensor = handle_torch_function(elementwise_function, (x,), x, function)
        return made
    return function.at(x)


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


def start_of(call: Call) -> Node | None:
    """Return the tensor that an activation is of: the last one before its first function, without number factors.

    So ``sigmoid(x + b)`` is a function of ``x + b``, whether the number ``b`` is part of the layer before or not.
    """
    root = root_of(call)
    start = None if root is None else dominator(functions(call))
    while start is not None and start is not root and start.activated and start.flows:
        start = dominator(start.flows)
    while start is not None and start is not root and start.kind == "scale" and len(start.flows) == 1:
        (start,) = start.flows
    return root if start is None or start.tensor is None else start


def is_activation(call: Call) -> bool:
    """Return whether an operation completes an elementwise function that is more than its last step."""
    root = root_of(call)
    if root is None or call.inplace:
        return False
    nodes = functions(call)
    if call.name in JOINING and len(nodes) > 1:
        return call.name not in ("add", "sub") or any(not node.linear for node in nodes)
    if call.name in ops.COPYING or call.name in ops.LAYOUT:
        return False
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

    A function that ends with the addition of a number is complete if it is 0 at 0, as ``2 sigmoid(2 x) - 1``, or for
    large arguments of one sign, as ``0.5 + 0.5 tanh(x)`` and ``elu(x) + 1``.
    """
    constants = [t for t in call.tensors if not t.requires_grad and not t.is_meta] if call.name == "mul" else []
    if any(not bool(t.any()) for t in constants):  # nothing, whatever is multiplied
        return None
    root = start_of(call)
    x = None if root is None else root.tensor
    if root is None or x is None or x.shape != value.shape:
        return None
    recipe = Recipe.of(call, known_operands(call), 0)

    def at(other: Tensor) -> Tensor:
        return recipe.run(lambda node: evaluate(node, {root: other}))

    try:
        with torch.no_grad():
            if _shifts(call) and not _is_zero_at_zero(at, x) and not _vanishes(at, x):
                return None
            kind = "identity" if not x.is_meta and is_identity(at, x) else function_kind(at, x)
    except (UnknownFunctionError, RuntimeError):
        return None
    if kind == "function":
        return None
    return Call(
        call.name, kind, functools.partial(_valued, value, at), (x,), {}, call.batch, [x], [root], [x], composed=True
    )


def shifted_argument(call: Call) -> Callable[[], Tensor] | None:
    """Return a function of ``x - c`` in several steps, ``1 / (1 + exp(c - x))``, as one operation on ``x - c``."""
    root = root_of(call)
    if root is None or not is_activation(call):
        return None
    steps = [functions(call)[0]]
    while steps[-1] is not root and steps[-1].flows:
        steps.append(steps[-1].flows[0])
    affine = list(itertools.takewhile(lambda node: node.kind in ("scale", "shift"), steps[-2::-1]))
    shifts = [node for node in affine if node.kind == "shift"]
    with torch.no_grad():
        if not shifts or activation(call, call.func(*call.args, **call.kwargs)) is None:
            return None
    recipe = Recipe.of(call, known_operands(call), 0)

    def at(other: Tensor) -> Tensor:
        return recipe.run(lambda node: evaluate(node, {shifts[-1]: other}))

    return lambda: ElementwiseFunction(at).applied(restored(shifts[-1]))


def stacked_activation(call: Call) -> Call | None:
    """Return an elementwise function that is computed by way of a stack as one operation.

    ``logsumexp(stack([x, 0]))`` is softplus, ``stack([x, 0], -1).softmax(-1)[..., 0]`` is the sigmoid.
    """
    if call.name not in ("logsumexp", "getitem", "select", "sum") or len(call.traced) != 1 or call.inplace:
        return None
    node = node_of(call.traced[0])
    over = is_over_stack(node.moved_from()) if call.name in ("getitem", "select") else node.name == "stack"
    roots = origins([node]) if over and not call.traced[0].is_meta else []
    x = restored(roots[0]) if len(roots) == 1 and roots[0].tensor is not None else None
    if x is None:
        return None
    root = roots[0]
    name = "logsumexp" if call.name == "logsumexp" else "softmax"
    recipe = Recipe.of(call, known_operands(call), 0)

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


def known_operands(call: Call) -> dict[int, Node]:
    """Return the nodes of the operands that vary with the input, by ``id``."""
    pairs = zip(call.tensors, call.nodes, strict=True)
    return {id(t): node for t, node in pairs if node is not None and (t.requires_grad or is_mask(node))}


def _is_zero_at_zero(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    return not x.is_meta and bool((function(torch.zeros_like(x)).abs() < 1e-6).all())


def _vanishes(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function is 0 for large arguments of one sign."""
    ends = [function(torch.full_like(x, sign * FAR)).abs().max() for sign in (1, -1)]
    return not x.is_meta and bool(min(ends) < 1e-6)


def _valued(value: Tensor, at: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return what was computed for ``x``; with its derivative, if that is asked for."""
    return at(x) if torch.is_grad_enabled() and x.requires_grad else value.detach()


def is_identity(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function leaves all values as they are."""
    size = FAR * _size(x)
    return all(bool((function(torch.full_like(x, c)) == c).all()) for c in (size, -size))


def _size(x: Tensor) -> float:
    """Return a number that no value of a tensor exceeds, at least 1; a replay may use another one."""
    with checking():
        return max(float(x.detach().double().abs().max()), 1.0)


def function_kind(function: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """Return what an elementwise function is: ``x g(x)``, another activation, or none."""
    return "function" if not _is_tame(function, x) else "gated" if is_gated(function, x) else "activation"


def _is_tame(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function is finite everywhere and grows no faster than a polynomial."""
    if x.is_meta or not x.numel():
        return True
    near, far = (
        torch.stack([function(torch.full_like(x, sign * c, dtype=torch.float64)).abs().max() for sign in (1, -1)])
        for c in (LARGE, 2 * LARGE)
    )
    steps = torch.arange(x.numel(), dtype=torch.float64, device=x.device).reshape(x.shape)
    grid = [(steps + start).remainder(2 * LARGE) - LARGE for start in range(0, int(2 * LARGE), x.numel())]
    between = torch.stack([function(points).abs().max() for points in grid]).max()
    return bool((between <= 16 * near.max().clamp(min=LARGE)) & (far <= 16 * near.clamp(min=LARGE)).all())


def is_gated(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function is of the form ``x g(x)``: 0 at 0, and growing with ``x``."""
    if x.is_meta:
        return True
    if bool(function(torch.zeros_like(x)).any()):
        return False
    size = FAR * _size(x)
    ends, near, far = (
        torch.stack([function(torch.full_like(x, sign * c)).abs().max() for sign in (1, -1)])
        for c in (size, LARGE / 2, LARGE)
    )
    ends = torch.where(ends.isfinite(), ends / FAR, far / near - 1)  # where an exponential in it overflows
    return bool(((ends > 1e-2) & ends.isfinite()).any())


def shifted_gate(call: Call) -> Callable[[], Tensor] | None:
    """Return a product with an activation to which 1 was added last, ``u * (1 + g(x))``, as ``u + u * g(x)``."""
    for mine, other in ((0, 1), (1, 0)):
        if len(call.traced) != 2 or len(call.args) != 2:
            return None
        node, rest = (call.nodes[i] for i in (mine, other))
        shift = call.tensors[mine]
        if node is None or rest is None or node.kind != "shift" or not node.shifted or node.root is rest.root:
            continue
        if node.recipe is None or shift.shape != call.tensors[other].shape or shift.is_meta:
            continue
        saturates = node.flows[0].kind == "activation" and node.flows[0].name not in ops.CLIPPING
        if saturates and node.name == "add" and 1 in [a for a in node.recipe.args[:2] if isinstance(a, int | float)]:
            return functools.partial(lambda u, f: u + u * restored(f), call.tensors[other], node.flows[0])
    return None


def constant_multiple(call: Call) -> Callable[[], Tensor] | None:
    """Return a sum of constant multiples of one tensor, ``y + y * w``, as one multiple."""
    root = root_of(call)
    nodes = functions(call)
    x = None if root is None else root.tensor
    if root is None or x is None or x.is_meta or len(nodes) != 2:
        return None
    if not all(node.linear for node in nodes) or all(node is root for node in nodes):
        return None
    recipe = Recipe.of(call, known_operands(call), 0)
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
