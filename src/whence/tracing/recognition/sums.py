"""Sums in their usual form: ``x - (-f)``, ``x.clone() + f`` and ``(2 * x + 2 * f) / 2`` are ``x + f``.

Copies, multiples, selections and sums are followed back to the tensors that they are made of. Where these are two, and
the operation as a function of them is their sum, it is run as that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from .. import operations as ops
from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, evaluate, remembered, restored, same, sample
from ..tensor_info import is_weight, node_of

#: operations that may complete a sum
COMPLETING = {
    "add", "sub", "neg", "mul", "div", "sum", "mean", "einsum", "matmul", "linear", "cat", "stack", "scatter_add",
    "index_add", "getitem", "select", "cumsum", "copy", "setitem", *ops.LAYOUT,
}  # fmt: skip
#: operations that put slices together or cut them: of one tensor alone they are no sum
SELECTING = {"cat", "stack", "getitem", "select", "setitem", "copy", "sum", "mean"}
#: kinds of operations that copy, move, select, multiply and add
COMBINING = {"structural", "selecting", "scale", "add", "reduce", "identity", "linear", "shift", "shift-by-constant"}
#: how many operations are followed
REACH = 64
#: relative difference of a function from a sum
TOLERANCE = 1e-4


def usual_sum(call: Call) -> Callable[[], Tensor] | None:
    """Return a sum in its usual form; ``None`` if it has that form, or is no sum of two tensors."""
    if not call.traced or call.inplace:
        return None
    if call.name in ("add", "sub") and len(call.traced) == 1 and len(call.tensors) < 2:  # a number is added
        return None
    nodes = [node_of(t) for t in call.traced]
    if call.name in ops.LAYOUT and not (nodes[0].residual and nodes[0].kind == "add"):
        return None
    if len(nodes) == 1 and call.name not in ("add", "sub") and not _may_undo(call, nodes[0]):
        return None
    return _sum_of(call, nodes)


def _may_undo(call: Call, node: Node) -> bool:
    """Return whether an operation on one tensor may complete a sum: the tensor is combined of others, evenly scaled."""
    constants = [t for t in call.tensors if not t.requires_grad] if call.name in ("mul", "div") else []
    return _combines(node) and not any(map(_varies, constants))


def _sum_of(call: Call, nodes: list[Node]) -> Callable[[], Tensor] | None:
    """Return a sum of some tensors, or combinations of them, in its usual form."""
    through = len(nodes) == 1 and call.name in ("mul", "div", "neg", *ops.LAYOUT)
    for least in (math.inf, 2, 1):
        found = _summands(nodes, through, least)
        form = None if found is None else _usual_form(call, nodes, *found)
        if form is not None:
            return form
    return _bias_moved(call)


def _usual_form(call: Call, nodes: list[Node], parts: list[Node], joins: bool) -> Callable[[], Tensor] | None:
    """Return a combination of one or two tensors as a copy or a sum; ``None`` if it is none, or has that form."""
    if call.name in ("add", "sub"):
        if call.name == "add" and "alpha" not in call.kwargs and {p.seq for p in parts} == {n.seq for n in nodes}:
            return None
    elif (not joins and len(nodes) < 2) or (len(parts) == 1 and call.name in SELECTING):
        return None
    if len(parts) == 2 and parts[1].between(parts[0]) is None:  # no residual connection
        return None
    tensors = [part.tensor for part in parts]
    given = [t for t in tensors if t is not None]
    if len(given) != len(parts) or any(t.numel() != given[0].numel() or t.dtype != given[0].dtype for t in given):
        return None
    shape = _shape_of_sum(call, parts)
    own = {seq for node in nodes for seq in (node.seq, node.layout().seq)}
    laid_out = call.name == "add" and all(part.seq in own for part in parts)
    if laid_out and any(part.shape != shape for part in parts):  # it is their sum, as they are laid out for it
        return None
    if shape is None or (len(nodes) == 1 and not _undoes(call, nodes[0], parts, shape)):
        return None
    return functools.partial(_total, given, shape)


def _total(tensors: list[Tensor], shape: torch.Size) -> Tensor:
    """Return the sum of one or two tensors, in some shape."""
    laid = [t if t.shape == shape else t.reshape(shape) for t in tensors]
    return torch.clone(laid[0]) if len(laid) == 1 else torch.add(*laid)


def _undoes(call: Call, node: Node, parts: list[Node], shape: torch.Size) -> bool:
    """Return whether an operation on a residual sum brings it to the form of its summands, not away from it."""
    if not node.residual:
        return True
    if call.name in ops.LAYOUT:
        return shape == parts[0].shape != node.shape
    return _shape_of_sum(call, [node]) is None


def _summands(nodes: list[Node], through: bool, least: float) -> tuple[list[Node], bool] | None:
    """Return the one or two tensors that others are combined of, and whether they are joined on the way.

    Args:
        nodes: the tensors.
        through: whether the first of them is taken apart even if it is a residual sum.
        least: how many readers a tensor has that is not taken apart: the input of a block is one tensor, whatever it
            was put together from. One that is about to be read has one less.
    """
    parts: dict[int, Node] = {}
    joins = False
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.seq in seen:
            continue
        seen.add(node.seq)
        if (
            _combines(node)
            and not _is_one(node, least if node in nodes else max(least, 2))
            and (not node.residual or (through and node is nodes[0]))
        ):
            joins = joins or len(node.flows) > 1
            stack += node.flows
        else:
            parts[node.seq] = node
        if len(parts) > 2 or len(seen) > REACH:
            return None
    return [parts[seq] for seq in sorted(parts)], joins


def _is_one(node: Node, least: float) -> bool:
    """Return whether so many operations read a tensor, or it is put together from tensors that nothing else reads."""
    if least == math.inf or node.linear_uses + node.other_uses >= least:
        return least < math.inf
    parts = [part.layout() for part in node.flows] if node.name in ("cat", "stack") else []
    return len(parts) > 1 and all(part.linear_uses + part.other_uses < 2 for part in parts)


def _combines(node: Node) -> bool:
    """Return whether a tensor is a copy, selection, multiple or sum of others, without weights of the model."""
    if node.kind not in COMBINING or not node.flows or node.recipe is None or node.weighted or node.learned:
        return False
    if node.kind.startswith("shift"):
        return all(isinstance(a, Node) or _is_zero(a) for a in node.recipe.args)
    return node.kind != "scale" or not any(is_weight(t) or _varies(t) for t in _constants(node.recipe))


def _varies(constant: Tensor) -> bool:
    """Return whether a constant multiplies entries with different numbers: a rotation of queries, for instance."""
    return constant.numel() > 1 and (constant.is_meta or bool((constant != constant.flatten()[0]).any()))


def _is_zero(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.is_meta and not is_weight(value) and not bool(value.any())
    return isinstance(value, int | float) and value == 0


def _constants(recipe: Recipe) -> list[Tensor]:
    return [a for a in recipe.args if isinstance(a, Tensor)]


def _shape_of_sum(call: Call, parts: list[Node]) -> torch.Size | None:
    """Return the shape of a call that, as a function of some tensors, is their sum; ``None`` if it is not."""
    if parts[0].device.type == "meta":
        return None
    nodes = [node_of(t) for t in call.traced]
    recipe = Recipe.of(call, {id(t): node for t, node in zip(call.traced, nodes, strict=True)}, 0)
    return remembered("sum", nodes, parts, lambda: _tried_as_sum(recipe, parts), recipe)


def _tried_as_sum(recipe: Recipe, parts: list[Node]) -> torch.Size | None:
    """Return the shape of an operation whose value at some samples is their sum; ``None`` if it is not."""
    values = {part: sample(part, i) for i, part in enumerate(parts)}
    try:
        with torch.no_grad():
            found = recipe.run(functools.partial(evaluate, given=values))
    except (UnknownFunctionError, RuntimeError):
        return None
    if not isinstance(found, Tensor) or found.numel() != parts[0].numel:
        return None
    total = functools.reduce(torch.add, (value.reshape(found.shape) for value in values.values()))
    return found.shape if same(found.double(), total.double(), TOLERANCE) else None


def _bias_moved(call: Call) -> Callable[[], Tensor] | None:
    """Return ``(x + f) + b`` and ``(x + b) + f`` as ``x + (f + b)``: a bias that is added late is one of the branch."""
    if call.name not in ("add", "sub") or "alpha" in call.kwargs or len(call.args) != 2:
        return None
    if len(call.traced) == 1:
        return _bias_after(call)
    if call.name == "sub":
        return None
    for mine, other in ((0, 1), (1, 0)):
        node, branch = call.nodes[mine], call.nodes[other]
        if node is None or branch is None or node.kind != "shift-by-constant" or node.name != "add":
            continue
        bias = next(iter(_constants(node.recipe)), None) if node.recipe is not None else None
        x, f = node.flows[0].tensor, call.tensors[other]
        if bias is None or x is None or not _is_bias(bias, node) or branch.between(node) is not None:
            continue
        if branch.between(node.flows[0].layout()) is not None:
            return functools.partial(_biased, x, f, bias)
    return None


def _bias_after(call: Call) -> Callable[[], Tensor] | None:
    """Return ``(x + f) + b`` as ``x + (f + b)``."""
    bias = next((t for t in call.tensors if not t.requires_grad), None)
    total = node_of(call.traced[0])
    total = total.flows[0] if total.name == "contiguous" else total
    read = total.linear_uses + total.other_uses > 0  # before the bias was added
    if bias is None or read or not total.residual or not _is_bias(bias, total) or len(total.flows) != 2:
        return None
    x, f = (node.tensor for node in sorted(total.flows, key=lambda node: node.seq))
    if x is None or f is None or (call.name == "sub" and call.args[0] is bias):
        return None
    return functools.partial(_biased, x, f, bias, torch.sub if call.name == "sub" else torch.add)


def _biased(x: Tensor, f: Tensor, bias: Tensor, add: Callable[..., Tensor] = torch.add) -> Tensor:
    return torch.add(x, add(f, bias))


def _is_bias(constant: Tensor, node: Node) -> bool:
    """Return whether a constant is a weight of the model with one value for each feature."""
    return is_weight(constant) and constant.dim() == 1 and constant.shape == node.shape[-1:]


def undone(call: Call) -> Callable[[], Tensor] | None:
    """Return a constant that is added and subtracted again, ``(x + b) - b``, as the tensor itself."""
    node = node_of(call.traced[0]) if len(call.traced) == 1 and len(call.args) == 2 else None
    if node is None or node.kind != "shift-by-constant" or node.flows[0].shape != node.shape or call.traced[0].is_meta:
        return None
    inner, recipe = node.flows[0], Recipe.of(call, {id(call.traced[0]): node}, 0)
    value = sample(inner)
    try:
        with torch.no_grad():
            found = recipe.run(functools.partial(evaluate, given={inner: value}))
            if not same(found.double(), value.double(), TOLERANCE):
                return None
    except (UnknownFunctionError, RuntimeError):
        return None
    return lambda: torch.clone(restored(inner))
