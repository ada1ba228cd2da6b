"""Softmax, however it is computed: something that is nowhere negative, over its own sum.

``exp(z) / exp(z).sum()``, with or without the largest score subtracted first, ``log_softmax(z).exp()``,
``exp(z - logsumexp(z))``, and probabilities that are masked or cut and divided by their sum again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, region

#: operations whose operand is kept until the next residual addition: a softmax may be a function of it
EXPONENTIAL = {"exp", "exp2", "log_softmax", "logsumexp"}
#: how far sums may be from 1
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def softmax(call: Call) -> Call | None:
    """Return a softmax in several steps as one operation on its scores; ``None`` if the call does not complete one."""
    if call.inplace or call.name not in ("div", "mul", "exp", "exp2"):
        return None
    nodes = [node for t, node in zip(call.tensors, call.nodes, strict=True) if t.requires_grad and node is not None]
    if call.name in ("div", "mul"):
        if len(call.traced) != 2 or len(nodes) < 2:
            return None
        root = dominator(nodes)
        root = None if root is None else _without_shift(root)
    else:
        root = _scores(nodes[0])
    if root is None:
        return None
    x = root.tensor
    if x is None or x.is_meta:
        return None
    inner = [n for node in nodes for n in region(node, root)]
    if not any(n.numel < root.numel or n.name == "log_softmax" for n in inner) or any(n.weighted for n in inner):
        return None
    with torch.no_grad():
        value = call.func(*call.args, **call.kwargs)
    dim = None if value.numel() != root.numel else sums_to_one(value)
    if dim is None:
        return None
    known = {id(t): node for t, node in zip(call.tensors, call.nodes, strict=True) if t.requires_grad and node}
    again = functools.partial(_again, Recipe.of(call, known, 0), root)
    try:
        with torch.no_grad():
            again(x.detach(), dim)
    except (UnknownFunctionError, RuntimeError):
        return None
    return Call("softmax", "softmax", again, (x, dim), {}, call.batch, [x], [root], [x], composed=True)


def _again(recipe: Recipe, root: Node, x: Tensor, dim: int) -> Tensor:
    """Compute the softmax from other scores, with its plain derivative."""
    return recipe.run(lambda node: evaluate(node, {root: x}))


def _scores(node: Node) -> Node | None:
    """Return the scores that the logarithm of a softmax is computed from."""
    if node.name == "log_softmax" and node.flows:
        return node.flows[0]
    if node.kind in ("add", "center") and any(parent.numel < node.numel for parent in node.flows):
        return dominator(node.flows)
    return None


def _without_shift(root: Node) -> Node:
    """Return the scores that an exponential was taken of, without what was subtracted from all of them."""
    if root.name in ("exp", "exp2") and root.flows:
        scores = root.flows[0]
        while _is_shifted(scores):
            further = dominator(scores.flows)
            if further is None or further.numel != scores.numel or further.tensor is None:
                break
            scores = further
        return scores if scores.tensor is not None else root
    return root


def _is_shifted(scores: Node) -> bool:
    """Return whether one number for each row was added to scores: their maximum, which may be a constant."""
    if scores.kind in ("add", "center"):
        return any(parent.numel < scores.numel for parent in scores.flows)
    if scores.kind != "shift-by-constant" or scores.recipe is None:
        return False
    constants = [a for a in scores.recipe.args if isinstance(a, Tensor)]
    return len(constants) == 1 and constants[0].dim() == len(scores.shape) and constants[0].shape[-1] == 1


def sums_to_one(value: Tensor) -> int | None:
    """Return the dimension along which a tensor, nowhere negative, sums to 1 (or to 0, where all is masked)."""
    if value.dim() == 0 or not value.is_floating_point() or value.is_meta or bool((value < 0).any()):
        return None
    for dim in range(value.dim() - 1, -1, -1):
        if value.shape[dim] > 1 and is_map_along(value, dim):
            return dim - value.dim()
    return None


def is_map_along(value: Tensor, dim: int) -> bool:
    """Return whether a tensor sums to 1 along a dimension; fully masked rows may sum to 0."""
    tolerance = TOLERANCE.get(value.dtype, 3e-2)
    total = value.sum(dim)
    one = (total - 1).abs() < tolerance
    return bool((one | (total == 0)).all()) and bool(one.any())


def log_softmax(call: Call) -> Callable[[], Tensor] | None:
    """Return scores less the logarithm of their summed exponentials as the logarithm of a softmax."""
    wide, narrow = call.nodes[:2] if len(call.traced) == 2 else (None, None)
    if wide is None or narrow is None or narrow.moved_from().numel >= wide.numel:
        return None
    root = dominator((wide, narrow))
    if root is None or not any(node.name in ("logsumexp", "log") for node in region(narrow, root)):
        return None
    while _is_shifted(root) and (further := dominator(root.flows)) is not None and further.shape == root.shape:
        root = further
    x = root.tensor
    if x is None or x.is_meta or x.shape != wide.shape:
        return None
    with torch.no_grad():
        dim = sums_to_one(call.func(*call.args, **call.kwargs).exp())
    return None if dim is None else functools.partial(torch.log_softmax, x, dim)
