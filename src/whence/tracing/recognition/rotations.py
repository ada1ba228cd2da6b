"""Rotary positions in their usual form, ``x * cos + rotated(x) * sin``.

A rotation by position is a linear map of queries and keys with constants: pairs of features are rotated, by complex
numbers, matrices or sums of products. The map is known by its values: features of one half of all pairs give one column
of each rotation, those of the other half the other column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .. import operations as ops
from ..node import Node, walk
from ..op_call import Call, map_tensors
from ..replay import UnknownFunctionError, dominator, evaluate, restored, same, sample
from ..tensor_info import is_weight, node_of

#: kinds of operations that a rotation is computed by
KINDS = {"structural", "selecting", "identity", "scale", "add", "linear", "reduce"}
#: how many operations are followed: tokens may be rotated one by one
REACH = 512
#: how many steps that all paths pass a rotation may have
STEPS = 16
#: relative difference of a map from a rotation
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


class Rotation(NamedTuple):
    """A rotation of pairs of features by position.

    Attributes:
        root: the tensor that is rotated.
        end: the rotated tensor.
        cos, sin: factors of the tensor, and of its pairs turned by a right angle.
        halves: whether the two features of a pair are in different halves, and not side by side.
    """

    root: Node
    end: Node
    cos: Tensor
    sin: Tensor
    halves: bool

    def usual(self) -> Tensor:
        """Return the rotated tensor by the usual operations."""
        x = restored(self.root)
        return x * self.cos + _turned(x, self.halves) * self.sin


def usual_rotation(call: Call) -> Callable[[], Tensor] | None:
    """Return a product of queries and keys with their rotation in its usual form; ``None`` if it has that form."""
    if len(call.traced) < 2 or call.traced[0].is_meta:
        return None
    pairs = [(tensor, _rotation_behind(node_of(tensor))) for tensor in call.traced]
    found = [(tensor, rotation) for tensor, rotation in pairs if rotation is not None]
    if not found:
        return None

    def run() -> Tensor:
        given = {id(t): evaluate(node_of(t), {rotation.end: rotation.usual()}) for t, rotation in found}
        args, kwargs = map_tensors((call.args, call.kwargs), lambda t: given.get(id(t), t))
        made: Tensor = call.func(*args, **kwargs)
        return made

    return run


def _rotation_behind(node: Node) -> Rotation | None:
    """Return the rotation that a tensor is the result of, at most moved or repeated since."""
    if not any(map(_mixes, walk([node], _steps))) or any(map(_is_usual, _moved_from(node))):
        return None
    try:
        with torch.no_grad():
            for end in _moved_from(node):
                for root in _dominators(end):
                    found = _rotation(root, end)
                    if found is not None:
                        return found
    except (UnknownFunctionError, RuntimeError):
        return None
    return None


def _steps(node: Node) -> tuple[Node, ...]:
    """Return what a tensor is computed from, if by an operation that may be part of a rotation."""
    constants = [] if node.recipe is None else [a for a in node.recipe.args if isinstance(a, Tensor)]
    learned = node.weighted or node.residual or any(map(is_weight, constants))
    return () if learned or not (node.kind in KINDS or node.dtype.is_complex) else node.flows


def _mixes(node: Node) -> bool:
    """Return whether a tensor is a product with a constant tensor that is no weight."""
    return (
        node.kind in ("scale", "linear")
        and bool(_steps(node))
        and node.recipe is not None
        and any(isinstance(a, Tensor) and a.numel() > 1 for a in node.recipe.args)
    )


def _moved_from(node: Node) -> Iterator[Node]:
    """Yield a tensor and what it was before it was moved, repeated or multiplied by a number."""
    yield node
    while node.kind in ("structural", "identity", "scale") and len(node.flows) == 1 and not _mixes(node):
        (node,) = node.flows
        yield node


def _dominators(end: Node) -> Iterator[Node]:
    """Yield the tensors of the same shape that all paths to a tensor pass, nearest first."""
    node: Node | None = end
    for _ in range(STEPS):
        node = dominator(_steps(node), REACH) if node is not None and _steps(node) else None
        if node is None:
            return
        if node.shape == end.shape and node.dtype == end.dtype:
            yield node


def _is_usual(end: Node) -> bool:
    """Return whether a rotation has its usual form: a product with the tensor and one with its entries moved."""
    if end.name not in ("add", "sub") or len(end.flows) != 2 or not all(map(_mixes, end.flows)):
        return False
    moved = not any(node.kind == "linear" and not node.weighted for node in walk(end.flows, _steps))
    return moved and all(node.kind == "scale" and node.shape == end.shape for node in end.flows)


def _rotation(root: Node, end: Node) -> Rotation | None:
    """Return a map as a rotation of pairs of features; ``None`` if it is another one."""
    size = root.shape[-1] if root.shape else 0
    if size % 2 or not size or not root.dtype.is_floating_point:
        return None
    value = sample(root)
    expected = evaluate(end, {root: value}).double()
    places = torch.arange(size, device=root.device)
    for halves, first in ((True, places < size // 2), (False, places % 2 == 0)):
        columns = [evaluate(end, {root: torch.zeros_like(value) + kept.to(value.dtype)}) for kept in (first, ~first)]
        cos, sin = torch.where(first, columns[0], columns[1]), torch.where(first, -columns[1], columns[0])
        made = value.double() * cos + _turned(value.double(), halves) * sin
        turned = all(same(_partner(t, halves), t, 1e-6) for t in (cos, sin))
        if turned and bool(sin.any()) and same(made, expected, TOLERANCE.get(root.dtype, 2e-2)):
            return Rotation(root, end, _narrowed(cos), _narrowed(sin), halves)
    return None


def _turned(x: Tensor, halves: bool) -> Tensor:
    """Return all pairs of features turned by a right angle: ``(a, b)`` becomes ``(-b, a)``."""
    if halves:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def _partner(x: Tensor, halves: bool) -> Tensor:
    """Return the features of all pairs exchanged."""
    size = x.shape[-1]
    return x.roll(size // 2, -1) if halves else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _narrowed(factor: Tensor) -> Tensor:
    """Return a factor with dimensions of size 1 where all entries are alike: those of samples and heads."""
    for dim in range(factor.dim() - 1):
        first = factor.narrow(dim, 0, 1)
        factor = first if bool((factor == first).all()) else factor
    return factor


#: operations that multiply queries and keys
COMPLETING = {*ops.PRODUCTS, *ops.ATTENTION}
