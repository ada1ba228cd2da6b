"""Norms: a tensor times or over a deviation of itself.

A deviation (standard deviation, root mean square, length) is known by what it is as a function of the tensor ``x``, not
by the calls that compute it: it is computed from sums over ``x``, and grows with ``x`` in proportion, but for a
constant that keeps it from 0. So does what it divides (``x``, ``x - mean``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, region, remembered, restored, same, sample

#: how many operations back the tensor is looked for that a norm is of: statistics may be computed in a loop
REACH = 512
#: factors at which functions are compared: large enough that the constants added to variances do not matter
LARGE = 2.0**12
LARGER = 2.0**13
#: relative difference up to which two values of a function count as the same
TOLERANCE = 2e-2


def deviation_in(call: Call) -> Tensor | None:
    """Return the operand of a product or quotient that is a deviation of the other operand, if one is."""
    candidates = ((1, 0),) if call.name == "div" else ((1, 0), (0, 1))
    for own, other in candidates:
        scale, tensor = call.nodes[own], call.nodes[other]
        degree = 1 if call.name == "div" else -1
        if scale is not None and tensor is not None and is_deviation(scale, tensor, degree):
            return call.tensors[own]
    return None


def is_deviation(scale: Node, tensor: Node, degree: int) -> bool:
    """Return whether one tensor is a deviation of another to some power, and the other is linear in their root."""
    root = dominator((scale, tensor), REACH)
    if root is None or root is scale or not is_reduced(scale, root):
        return False
    if root.device.type == "meta":
        return any(node.name in ("rsqrt", "sqrt", "std", "norm") for node in region(scale, root))
    return remembered(
        f"deviation {degree}", (scale, tensor), (root,), lambda: _is_deviation(scale, tensor, root, degree)
    )


def _is_deviation(scale: Node, tensor: Node, root: Node, degree: int) -> bool:
    x = sample(root)
    try:
        with torch.no_grad():
            found = _scales(scale, root, x, degree) and (tensor is root or _scales(tensor, root, x, 1))
            return found and (degree < 0 or _is_even(scale, root, x))
    except (UnknownFunctionError, RuntimeError):
        return False


def _scales(node: Node, root: Node, x: Tensor, degree: int) -> bool:
    """Return whether a tensor is homogeneous in its root, of a degree."""
    large, larger = (evaluate(node, {root: x * c}).double() / c**degree for c in (LARGE, LARGER))
    return bool(large.any()) and same(larger, large, TOLERANCE)


def _is_even(node: Node, root: Node, x: Tensor) -> bool:
    """Return whether a tensor is the same of its root and of its root's negative: no mere sum (of probabilities)."""
    here, there = (evaluate(node, {root: x * c}).double() for c in (LARGE, -LARGE))
    return same(there, here, TOLERANCE)


def is_reduced(node: Node, root: Node) -> bool:
    """Return whether a tensor is computed from sums over its root, by operations without weights of the model."""
    inner = region(node, root)
    reduced = any(n.numel < root.numel or n.kind == "reduce" for n in inner)  # a mean over one entry is one, too
    return reduced and not any(n.weighted for n in inner)


def is_centering(call: Call) -> bool:
    """Return whether a sum or difference is a tensor less its own mean, or another value that moves along with it."""
    first, second = call.nodes[:2]
    if first is None or second is None or first.moved_from().numel == second.moved_from().numel:
        return False
    narrow, wide = sorted((first, second), key=lambda node: node.moved_from().numel)
    if narrow.seq == wide.seq or wide.numel < narrow.numel:
        return False
    root = dominator((wide, narrow), REACH)
    if root is None or root is narrow or not is_reduced(narrow, root):
        return False
    if root.device.type == "meta":
        return call.name == "sub"
    question = f"centering {call.name} {wide is first} {call.kwargs}"
    return remembered(question, (wide, narrow), (root,), lambda: _stays(call, root))


def _stays(call: Call, root: Node) -> bool:
    """Return whether a call has the same value if a number is added to all of its root."""
    x = sample(root)
    recipe = Recipe.of(call, {id(t): n for t, n in zip(call.tensors, call.nodes, strict=True) if n is not None}, 0)
    try:
        with torch.no_grad():
            here, there = (recipe.run(partial(evaluate, given={root: value})) for value in (x, x + 1))
            return bool(here.any()) and same(there.double(), here.double(), TOLERANCE)
    except (UnknownFunctionError, RuntimeError):
        return False


def folded(call: Call) -> Callable[[], Tensor] | None:
    """Return a norm whose mean is folded into its bias, ``x s + (b - mean s)``, as ``(x - mean) s + b``.

    With the deviation ``s`` given, it is an affine function of ``x``: 0 gives the bias, another value the weight.
    """
    pairs = zip(call.tensors, call.nodes, strict=True)
    known = {id(t): node for t, node in pairs if node is not None and t.requires_grad}
    nodes = list(known.values())
    root = dominator(nodes) if len(nodes) == 2 and not call.inplace else None
    if root is None or root in nodes or root.tensor is None or root.tensor.is_meta:
        return None
    inner = {node.seq: node for end in nodes for node in region(end, root)}.values()
    scale = next((node for node in inner if node.deviation), None)
    if scale is None or any(node.weighted for node in inner):
        return None
    recipe = Recipe.of(call, known, 0)
    try:
        with torch.no_grad():
            return _as_norm(root, scale, lambda x, s: recipe.run(partial(evaluate, given={root: x, scale: s})))
    except (UnknownFunctionError, RuntimeError):
        return None


def _as_norm(root: Node, scale: Node, function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Tensor] | None:
    """Return a function of a tensor and its deviation as a centred tensor times or over the deviation, with weights."""
    x, s = root.tensor, sample(scale).abs() + 1
    assert x is not None
    bias = function(torch.zeros_like(x), s)
    divisions: tuple[Callable[..., Tensor], ...] = (torch.mul, torch.div)
    for dim, divide in product((x.dim() - 1, 1), divisions):
        signs = 1.0 - 2.0 * (torch.arange(x.shape[dim], device=x.device) % 2)
        values = signs.to(x.dtype).reshape([-1 if d == dim else 1 for d in range(x.dim())]).expand_as(x)
        normalised = divide(values - values.mean(dim, keepdim=True), s)
        weight = (function(values, s) - bias) / normalised if normalised.shape == bias.shape else normalised
        first = [slice(None) if d == dim else slice(0, 1) for d in range(x.dim())]
        if weight.shape == bias.shape and all(same(t[first].expand_as(t), t, 1e-4) for t in (weight, bias)):
            return partial(_norm, x, scale, dim, divide, weight[first].squeeze(), bias[first].squeeze())
    return None


def _norm(x: Tensor, scale: Node, dim: int, divide: Callable[..., Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    made = divide(x - x.mean(dim, keepdim=True), restored(scale))
    if dim == x.dim() - 1:
        return made * weight + bias
    return (made.movedim(dim, -1) * weight + bias).movedim(-1, dim)


def _statistics(call: Call) -> dict[str, Any]:
    """Return the statistics, weight and bias that a batch norm or instance norm is given."""
    functional = getattr(call.func, "__module__", "") == "torch.nn.functional"
    names = (
        ("running_mean", "running_var", "weight", "bias")
        if functional
        else ("weight", "bias", "running_mean", "running_var")
    )
    return {name: call.argument(i + 1, name) for i, name in enumerate(names)}


def stored_statistics(call: Call) -> Callable[[], Tensor] | None:
    """Return a batch norm with stored statistics as what it is: factors and biases of features."""
    given, x = _statistics(call), call.args[0]
    if call.argument(5, "training", False) or given["running_mean"] is None or call.traced != [x]:
        return None
    factor = torch.rsqrt(given["running_var"] + call.argument(7, "eps", 1e-5))
    factor = factor if given["weight"] is None else factor * given["weight"]

    def run() -> Tensor:
        made: Tensor = (x.movedim(1, -1) - given["running_mean"]) * factor
        made = made if given["bias"] is None else made + given["bias"]
        return made.movedim(-1, 1).clone()  # the model may overwrite it

    return run


def own_statistics(call: Call) -> Callable[[], Any] | None:
    """Return a norm by statistics of each sample alone, which another kernel computes, in primitive operations."""
    given = _statistics(call)
    by_itself = call.argument(
        5, "use_input_stats" if call.name == "instance_norm" else "training", call.name == "instance_norm"
    )
    x, node = call.args[0], call.nodes[0]
    kept = (0, 1) if call.name == "instance_norm" else (1,)
    dims = [d for d in range(x.dim()) if d not in kept]
    mixed = node is None or (call.batch.size > 1 and any(call.batch in node.axes[d] for d in dims))
    if mixed or not by_itself or given["running_mean"] is not None or x is not call.traced[0] or len(call.traced) > 1:
        return None
    eps = call.argument(7, "eps", 1e-5)
    wide = (-1, *(1,) * (x.dim() - 2))

    def run() -> Any:
        mean = x.mean(dims, keepdim=True)
        centred = x - mean
        deviation = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
        made = centred * deviation
        made = made if given["weight"] is None else made * given["weight"].reshape(wide)
        made = made if given["bias"] is None else made + given["bias"].reshape(wide)
        return (made, mean.flatten(), deviation.flatten()) if call.name.startswith("native") else made

    return run
