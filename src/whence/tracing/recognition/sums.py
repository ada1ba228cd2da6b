"""Sums in their usual form: ``x - (-f)``, ``x.clone() + f`` and ``(2 * x + 2 * f) / 2`` are ``x + f``.

A sum is followed through copies, signs and numbers that its summands are multiplied by, down to tensors that are no such
thing. Where two of these are left, each counting once, the operation is their sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .. import operations as ops
from ..node import Node, node_of
from ..op_call import Call
from .elementwise import constant_factor

#: how deep sums inside sums are followed
DEPTH = 8


def usual_sum(call: Call) -> Callable[[], Tensor] | None:
    """Return a sum in its usual form; ``None`` if it has that form, or is no sum of two tensors."""
    if call.name == "sum":
        return _stacked(call)
    if call.name in ("add", "sub"):
        if len(call.traced) != 2 or call.tensors[0].shape != call.tensors[1].shape or len(call.tensors) != 2:
            return None
        sign = (-1.0 if call.name == "sub" else 1.0) * float(call.kwargs.get("alpha", 1))
        parts = [*_summands(call.nodes[0], 1.0), *_summands(call.nodes[1], sign)]
        if sign == 1 and [node for node, _ in parts] == call.nodes[:2] and all(c == 1 for _, c in parts):
            return None
    else:
        factor = constant_factor(call)
        node = None if factor is None else node_of(call.traced[0])
        if factor in (None, 1.0, -1.0) or node is None or node.kind != "add":
            return None
        parts = [found for part, own in node.summands or () for found in _summands(part, factor * own)]
    if any(factor == 0 for _, factor in parts):
        return None
    total: dict[Node, float] = {}
    for node, factor in parts:
        total[node] = total.get(node, 0.0) + factor
    left = [(node.tensor, factor) for node, factor in total.items() if factor]
    tensors = [t for t, factor in left if t is not None and factor == 1.0]
    if len(tensors) != len(left) or not 1 <= len(left) <= 2 or any(t.shape != tensors[0].shape for t in tensors):
        return None
    if len(tensors) == 1:
        return functools.partial(torch.clone, tensors[0])
    return functools.partial(torch.add, *tensors)


def _summands(node: Node | None, factor: float, depth: int = DEPTH) -> list[tuple[Node, float]]:
    """Return the summands of a tensor, each with the number that it is multiplied by; a residual sum stays whole."""
    if node is None:
        return []
    inner = node.summands if depth and not node.residual else None
    if inner is None:
        return [(node, factor)]
    return [found for part, own in inner for found in _summands(part, factor * own, depth - 1)]


def summands_of(call: Call, nodes: list[Node]) -> tuple[tuple[Node, float], ...] | None:
    """Return what a call sums, with the factor of each; ``None`` if it is no sum, copy or multiple.

    Args:
        call: the call.
        nodes: of its traced operands.
    """
    if call.inplace or not nodes:
        return None
    if call.name in ops.COPYING or (call.kind == "shift" and _adds_zero(call)):
        return ((nodes[0], 1.0),)
    if call.kind == "add" and len(nodes) == 2 and call.name in ("add", "sub"):
        return (nodes[0], 1.0), (nodes[1], (-1.0 if call.name == "sub" else 1.0) * float(call.kwargs.get("alpha", 1)))
    if call.kind == "scale":
        factor = constant_factor(call)
        return None if factor is None else ((nodes[0], factor),)
    return None


def _adds_zero(call: Call) -> bool:
    return any(isinstance(a, int | float) and a == 0 for a in call.args[:2])


def _stacked(call: Call) -> Callable[[], Tensor] | None:
    """Return the sum of tensors that were stacked for it, one after the other."""
    node = node_of(call.traced[0])
    dim = call.argument(1, "dim")
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    if node.name != "stack" or node.recipe is None or not isinstance(dim, int) or call.argument(2, "keepdim", False):
        return None
    given = node.recipe.args[0] if node.recipe.args else node.recipe.kwargs.get("tensors")
    along = node.recipe.args[1] if len(node.recipe.args) > 1 else node.recipe.kwargs.get("dim", 0)
    size = call.traced[0].dim()
    if dim % size != along % size or not isinstance(given, tuple | list):
        return None
    parts = [part.tensor if isinstance(part, Node) else part for part in given]
    if any(part is None for part in parts) or "dtype" in call.kwargs:
        return None
    return functools.partial(functools.reduce, torch.add, parts)
