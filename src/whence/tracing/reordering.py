"""Where tokens go in operations that move them: indices, pushed through the recorded operations.

A tensor that holds the number of each entry along one dimension is put in the place of the tensor that is moved. What
comes out tells, for every position, which entry it holds: whatever operation moved it.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .axes import Axes, Axis, Dim, ordered, size_of
from .node import Node
from .op_call import Call
from .operations import with_trait
from .replay import Recipe, UnknownFunctionError, dominator, evaluate, region
from .tensor_info import is_weight, node_of

#: operations that may move entries along a dimension
MOVING = with_trait("moves")
#: operations that write entries to places of another tensor
WRITING = {"setitem", "index_put", "scatter", "index_copy"}
#: operations that may put slices of one tensor together in another order
JOINING = with_trait("joins")


def moved_axes(call: Call, output: Tensor, batch: Axis) -> Axes | None:
    """Return the axes of a tensor that holds all entries of another one in some order; ``None`` if it does not."""
    if not _may_move(call) or output.is_meta:
        return None
    known = _operands(call)
    if call.name in JOINING and len(known) < 2:  # one tensor beside nothing (a cache not yet filled)
        return None
    root = _origin(list(known.values())) if known else None
    if root is None or root.numel != output.numel():
        return None
    recipe = Recipe.of(call, known, 0)
    try:
        with torch.no_grad():
            numbers = {d: _numbered(recipe, root, d) for d, dim in enumerate(root.axes) if dim}
            if call.kind == "linear" and not all(
                torch.equal(_numbered(recipe, root, d, 2), found**2) for d, found in numbers.items()
            ):
                return None  # a sum of entries, not one of them
    except (UnknownFunctionError, RuntimeError, TypeError):
        return None
    if any(found.shape != output.shape for found in numbers.values()):
        return None
    return _placed(numbers, root, output, batch)


def _operands(call: Call) -> dict[int, Node]:
    """Return what is moved, by ``id``: tensors that depend on the input, or else the user's integers."""
    if call.traced:
        return {id(t): node_of(t) for t in call.traced}
    given = list(zip(call.tensors, call.nodes, strict=True))[call.inplace :]
    pairs = [(t, node) for t, node in given if node is not None and node.kind != "discrete"]
    return {id(t): node for t, node in (pairs if call.name in JOINING else pairs[:1])}


def _may_move(call: Call) -> bool:
    if (call.inplace and call.name not in WRITING) or not any(node is not None for node in call.nodes):
        return False
    if call.kind == "linear":
        return not any(map(is_weight, call.tensors)) and call.name != "conv"
    if call.kind not in ("structural", "selecting"):
        return False
    if call.name == "getitem":
        items = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        return any(isinstance(i, Tensor | list) or (isinstance(i, slice) and i.step not in (None, 1)) for i in items)
    return call.name in MOVING or call.name in JOINING or call.name in ("matmul", "einsum", "bmm", "linear")


def _origin(nodes: list[Node]) -> Node | None:
    """Return the tensor of which some tensors are slices or copies."""
    root = nodes[0] if len(nodes) == 1 else dominator(nodes)
    if root is None or any(n.kind not in ("structural", "selecting") for node in nodes for n in region(node, root)):
        return None
    return root


def _numbered(recipe: Recipe, root: Node, dim: int, power: int = 1) -> Tensor:
    """Return the number along one dimension of the entry that each position holds, to some power."""
    shape = [1] * len(root.shape)
    shape[dim] = -1
    numbers = torch.arange(root.shape[dim], dtype=root.dtype, device=root.device).reshape(shape) ** power
    found = recipe.run(functools.partial(evaluate, given={root: numbers.expand(root.shape)}))
    return found.cpu().round().long()


def _placed(numbers: dict[int, Tensor], root: Node, output: Tensor, batch: Axis) -> Axes | None:
    """Return the axis of each dimension of the output, from the numbers that it holds of each of the root's."""
    entries = [entry for d, found in numbers.items() for entry in _apart(d, root.axes[d], found, batch)]
    varying = [(d, dim, found, _varying(found)) for d, dim, found in entries]
    sample = next((js[0] for _, dim, _, js in varying if dim == (batch,) and len(js) == 1), None)
    out: list[Dim] = [()] * output.dim()
    for d, held, numbered, along in varying:
        if not along and size_of(held) == 1:  # a batch of one
            own_places = [
                j for j in (d, *range(output.dim())) if j < output.dim() and output.shape[j] == 1 and not out[j]
            ]
            if own_places:
                out[own_places[0]] = held
            elif held != (batch,):  # else a sample by itself
                return None
            continue
        own = [j for j in along if j != sample] if held != (batch,) else along
        if len(own) != 1:
            return None
        found = _index(numbered, own[0], sample if sample in along and sample != own[0] else None)
        dim = _ordered_in_batch(held, found, batch)
        if dim is None or out[own[0]]:
            return None
        out[own[0]] = dim
    return tuple(out) if all(dim or n == 1 for dim, n in zip(out, output.shape, strict=True)) else None


def _apart(d: int, dim: Dim, found: Tensor, batch: Axis) -> list[tuple[int, Dim, Tensor]]:
    """Return the numbers along a dimension; of one that is merged with the batch, and is not any more, two numbers."""
    if dim[0] is not batch or len(dim) == 1 or len(_varying(found)) < 2:
        return [(d, dim, found)]
    own = size_of(dim[1:])
    return [(d, (batch,), found // own), (d, dim[1:], found % own)]


def _varying(found: Tensor) -> list[int]:
    return [dim for dim in range(found.dim()) if _varies(found, dim)]


def _varies(found: Tensor, dim: int) -> bool:
    return bool((found != found.narrow(dim, 0, 1)).any())


def _index(found: Tensor, dim: int, sample: int | None) -> Tensor:
    """Return the numbers along a dimension, ``[entries]`` or ``[batch, entries]``."""
    kept = [dim] if sample is None else [sample, dim]
    others = [j for j in range(found.dim()) if j not in kept]
    moved = found.permute(*kept, *others)
    return moved.reshape(*moved.shape[: len(kept)], -1)[..., 0]


def _ordered_in_batch(dim: Dim, index: Tensor, batch: Axis) -> Dim | None:
    """Return an axis in some order; of one that is merged with the batch, the order of each sample's own entries."""
    if batch.size > 1 and dim[:1] == (batch,) and len(dim) > 1 and index.dim() == 1:
        own = size_of(dim[1:])
        samples = torch.arange(batch.size).repeat_interleave(own)
        if len(index) != len(samples) or not torch.equal(index // own, samples):
            return None
        inner = ordered(dim[1:], (index % own).reshape(batch.size, own))
        return None if inner is None else (batch, *inner)
    return ordered(dim, index)


def selected_tokens(selection: Node, whole: Node) -> tuple[Dim, Tensor] | None:
    """Return the axis of a tensor along which another one selects, and which of its entries, ``[entries]``.

    Args:
        selection: slices of the tensor.
        whole: the tensor.

    Returns:
        ``None`` if entries are selected along several axes, or others in each sample.
    """
    cut = [d for d, dim in enumerate(whole.token_axes) if dim and dim not in selection.token_axes]
    if len(cut) != 1 or whole.device.type == "meta" or selection.recipe is None:
        return None
    try:
        with torch.no_grad():
            numbers = _numbered(selection.recipe, whole, cut[0])
    except (UnknownFunctionError, RuntimeError, TypeError):
        return None
    along = _varying(numbers)
    if len(along) > 1:
        return None
    places = _index(numbers, along[0], None) if along else numbers.flatten()[:1]
    return (whole.token_axes[cut[0]], places) if len(places.unique()) == len(places) else None
