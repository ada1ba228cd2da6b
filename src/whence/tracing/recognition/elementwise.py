"""Activations and gates: elementwise functions of one tensor, and products of functions of two.

Which function of its root a tensor is decides about its rule, not the operations that it is computed by: ``gelu(x)`` and
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

from ..node import Node, node_of
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate

#: elementwise operations that join several functions of one tensor
JOINING = {
    "mul", "div", "add", "sub", "pow", "where", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2",
    "masked_fill", "atan2", "xlogy",
}  # fmt: skip
#: how far the argument is scaled to find out whether an activation grows with it
FAR = 2.0**10


def root_of(call: Call) -> Node | None:
    """Return the one tensor of which all traced operands of an elementwise operation are functions, if there is one."""
    roots = {id(node.root): node.root for node in map(node_of, call.traced)}
    if len(roots) != 1:
        return None
    (root,) = roots.values()
    return root


def is_activation(call: Call) -> bool:
    """Return whether an operation completes an elementwise function that is more than its last step."""
    root = root_of(call)
    if root is None or call.inplace:
        return False
    nodes = [node_of(t) for t in call.traced]
    if call.name in JOINING and sum(t.requires_grad for t in call.tensors) > 1:
        return call.name not in ("add", "sub") or any(not node.linear for node in nodes)
    return any(node.shifted for node in nodes)


def activation(call: Call, value: Tensor) -> Call | None:
    """Return an elementwise function as one operation on its root; ``None`` if the root is gone."""
    root = root_of(call)
    if root is not None and root.tensor is None:
        root = dominator([node_of(t) for t in call.traced])
    x = None if root is None else root.tensor
    if root is None or x is None or x.shape != value.shape:
        return None
    recipe = Recipe.of(call, {id(t): node_of(t) for t in call.traced}, 0)

    def at(other: Tensor) -> Tensor:
        return recipe.run(lambda node: evaluate(node, {root: other}))

    try:
        with torch.no_grad():
            kind = "gated" if _is_proportional(call) or is_gated(at, x) else "activation"
    except (UnknownFunctionError, RuntimeError):
        return None
    return Call(
        call.name, kind, functools.partial(_valued, value, at), (x,), {}, call.batch, [x], [root], [x], composed=True
    )


def _valued(value: Tensor, at: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return what was computed for ``x``; with its derivative, if that is asked for."""
    return at(x) if torch.is_grad_enabled() and x.requires_grad else value.detach()


def _is_proportional(call: Call) -> bool:
    """Return whether an operation keeps the form ``x g(x)`` of its operands: a product with one, a sum of several."""
    nodes = [node_of(t).proportional for t in call.tensors if t.requires_grad]
    if call.name == "mul":
        return any(nodes)
    return nodes[0] if call.name == "div" else call.name in ("add", "sub") and all(nodes)


def is_identity(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function leaves all values as they are."""
    size = FAR * max(float(x.detach().double().abs().max()), 1.0)
    return all(bool((function(torch.full_like(x, c)) == c).all()) for c in (size, -size))


def is_gated(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether an elementwise function is of the form ``x g(x)``, such as GELU: 0 at 0, and growing with ``x``."""
    if x.is_meta:
        return True
    if bool(function(torch.zeros_like(x)).any()):
        return False
    size = float(x.detach().double().abs().max())
    far = function(torch.full_like(x, FAR * max(size, 1.0))) / FAR
    near = function(torch.full_like(x, -FAR * max(size, 1.0))) / FAR
    return max(float(far.abs().max()), float(near.abs().max())) > 1e-2


def regrouped(call: Call) -> list[tuple[list[Tensor], Node]] | None:
    """Return the factors of a product, in one group for each tensor that they are functions of.

    ``None`` unless there are two groups of which one has several factors from both operands.
    """
    factors = [_factors(tensor) for tensor in call.traced]
    known = [found for found in factors if found is not None]
    if len(known) != len(factors) or sum(map(len, known)) < 3:
        return None
    groups: dict[int, tuple[list[Tensor], Node]] = {}
    for tensor, node in [pair for found in known for pair in found]:
        groups.setdefault(id(node.root), ([], node.root))[0].append(tensor)
    apart = {frozenset(id(t) for t, _ in found) for found in known}
    grouped = {frozenset(map(id, tensors)) for tensors, _ in groups.values()}
    return list(groups.values()) if len(groups) == 2 and apart != grouped else None


def _factors(tensor: Tensor) -> list[tuple[Tensor, Node]] | None:
    """Return the factors of a product, as tensors; the tensor itself where it is none; ``None`` if some are gone."""
    node = node_of(tensor)
    if node.kind != "gate" or node.name != "mul":
        return [(tensor, node)]
    out: list[tuple[Tensor, Node]] = []
    for parent in node.flows:
        factor = parent.tensor
        if factor is None:
            return None
        found = _factors(factor)
        if found is None:
            return None
        out += found
    return out


def product(tensors: list[Tensor]) -> Tensor:
    """Return the product of some tensors."""
    return functools.reduce(torch.mul, tensors)


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
