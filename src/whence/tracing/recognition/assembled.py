"""Tensors that are put together from others and taken apart, in their usual form: concatenations of whole tensors.

A stack of all slices of a tensor is the tensor; ``F.pad(x) + F.pad(token)`` and an empty tensor into which ``x`` and
``token`` are written are concatenations; what a concatenation is split into are the tensors that it was made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..node import Node
from ..op_call import Call, tensors_in
from ..replay import evaluate, restored, sample
from ..tensor_info import node_of

Usual = Callable[[], Any]


def parts_of(node: Node) -> list[Node | Tensor] | None:
    """Return the parts of a stack or concatenation: nodes of those that depend on the input, other tensors."""
    if node.name not in ("stack", "cat") or node.recipe is None:
        return None
    given = node.recipe.args[0] if node.recipe.args else node.recipe.kwargs.get("tensors")
    return list(given) if isinstance(given, tuple | list) else None


def taken_apart(call: Call) -> Usual | None:
    """Return what a concatenation is split into as copies of the tensors that it was made of."""
    parts = parts_of(node_of(call.traced[0]))
    if parts is None or node_of(call.traced[0]).name != "cat":
        return None
    with torch.no_grad():
        shapes = [t.shape for t in tensors_in(call.func(*call.args, **call.kwargs))]
    if [part.shape for part in parts] != shapes:
        return None
    return lambda: tuple(torch.clone(restored(part) if isinstance(part, Node) else part) for part in parts)


def stacked_slices(call: Call) -> Usual | None:
    """Return a stack with all slices of a tensor in it as a concatenation with that tensor."""
    given = call.args[0] if call.args else call.kwargs.get("tensors")
    if not isinstance(given, tuple | list) or len(given) < 2:
        return None
    dim = call.argument(1, "dim", 0) % (given[0].dim() + 1)
    parts: list[Node | Tensor] = []
    left = list(given)
    while left:
        origin = _sliced_from(left[0])
        count = 0 if origin is None else origin.shape[dim] if len(origin.shape) == left[0].dim() + 1 else 0
        if origin is not None and 1 < count <= len(left) and _is_whole(left[:count], origin, dim):
            parts.append(origin)
            left = left[count:]
        else:
            parts.append(left.pop(0))
    if len(parts) == len(given):
        return None

    def run() -> Tensor:
        wide = [restored(part) if isinstance(part, Node) else part.unsqueeze(dim) for part in parts]
        return torch.clone(wide[0]) if len(wide) == 1 else torch.cat(wide, dim)

    return run


def _is_whole(slices: list[Tensor], origin: Node, dim: int) -> bool:
    """Return whether some slices are all of a tensor, in order, whatever its values."""
    if any(_sliced_from(t) is not origin for t in slices):
        return False
    value = sample(origin)
    with torch.no_grad():
        return torch.equal(torch.stack([evaluate(node_of(t), {origin: value}) for t in slices], dim), value)


def _sliced_from(tensor: Tensor) -> Node | None:
    """Return the tensor that another one is a slice of."""
    if not tensor.requires_grad:
        return None
    node = node_of(tensor)
    return node.flows[0] if node.name in ("unbind", "select", "getitem") and len(node.flows) == 1 else None


def padded_sum(call: Call) -> Usual | None:
    """Return the sum of a padded tensor and a constant that is 0 where the tensor is as a concatenation."""
    constants = [t for t in call.tensors if not t.requires_grad]
    if len(call.traced) != 1 or len(constants) != 1 or call.name != "add" or constants[0].is_meta:
        return None
    node, shape = node_of(call.traced[0]), call.traced[0].shape
    inner = node.flows[0] if node.name == "pad" and len(node.flows) == 1 else None
    sizes = None if node.recipe is None or len(node.recipe.args) < 2 else node.recipe.args[1]
    if inner is None or sizes is None or len(inner.shape) != len(shape):
        return None
    changed = [d for d in range(len(shape)) if inner.shape[d] != shape[d]]
    if len(changed) != 1:
        return None
    (dim,) = changed
    before = sizes[2 * (len(shape) - 1 - dim)]
    after = before + inner.shape[dim]
    constant = constants[0].expand(shape)
    if before < 0 or bool(constant.narrow(dim, before, after - before).any()):
        return None

    def run() -> Tensor:
        sides = constant.narrow(dim, 0, before), constant.narrow(dim, after, shape[dim] - after)
        return torch.cat([t for t in (sides[0], restored(inner), sides[1]) if t.shape[dim]], dim)

    return run


def written(call: Call) -> Usual | None:
    """Return a tensor that does not depend on the input, with one slice overwritten, as a concatenation."""
    base, index, value = call.args if len(call.args) == 3 else (None, None, None)
    if not isinstance(base, Tensor) or base.requires_grad or not isinstance(value, Tensor) or not value.requires_grad:
        return None
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(isinstance(item, slice) and item.step in (None, 1) for item in items) or len(items) > base.dim():
        return None
    ranges = [range(*item.indices(n)) for item, n in zip(items, base.shape, strict=False) if isinstance(item, slice)]
    cut = [d for d, places in enumerate(ranges) if len(places) != base.shape[d]]
    if len(cut) != 1 or not len(ranges[cut[0]]):
        return None
    (dim,) = cut
    places = ranges[dim]
    shape = (*base.shape[:dim], len(places), *base.shape[dim + 1 :])

    def run() -> Tensor:
        constant = base.detach().clone()
        sides = constant.narrow(dim, 0, places.start), constant.narrow(dim, places.stop, base.shape[dim] - places.stop)
        return torch.cat([t for t in (sides[0], value.expand(shape), sides[1]) if t.shape[dim]], dim)

    return run
