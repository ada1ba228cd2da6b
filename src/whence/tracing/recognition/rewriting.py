"""Operations in their usual form: the same value by the operations that rules and records are for.

Each pattern looks at one call, with the graph behind it, and returns the call in its usual form, to be run instead. The
trace compares the two values and keeps the model's own call where they differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...capture.tape import checking
from .. import operations as ops
from ..composites import SUMMING
from ..node import Node
from ..op_call import Call, tensors_in
from ..replay import UnknownFunctionError, restored
from ..tensor_info import is_weight, node_of
from . import assembled, elementwise, gates, products, rotations, softmax
from .attention_by_value import usual_attention, written_attention
from .constant_maps import constant_features, mixed_stack, usual_map
from .contraction import pairwise, separate
from .deviation import folded, own_statistics, stored_statistics
from .joined_attention import joined
from .merged_layers import merged_layers
from .origins import is_over_stack
from .softmax import log_softmax
from .sums import COMPLETING, gated_sum, undone, usual_sum

Usual = Callable[[], Any]
Pattern = Callable[[Call], Usual | tuple[Usual, list[Node]] | None]


class Form(NamedTuple):
    """A call in another form.

    Attributes:
        run: computes its value.
        replaces: products of maps and values, and residual sums, that are part of it and not of the model any more.
        pattern: by which it was found.
    """

    run: Usual
    replaces: list[Node]
    pattern: Pattern


#: relative difference up to which two forms of an operation count as equal
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def rewritten(call: Call, used: Sequence[Pattern] = ()) -> Iterator[Form]:
    """Yield the forms in which a call may be run instead: those that have its value.

    Args:
        call: the call.
        used: patterns of the forms that the call is part of, which are not applied again.
    """
    for pattern in _BY_NAME.get(call.name, ()):
        found = pattern(call) if pattern not in used else None
        if found is None:
            continue
        form = Form(*found, pattern) if isinstance(found, tuple) else Form(found, [], pattern)
        if _has_value(call, form.run):
            yield form


def _has_value(call: Call, usual: Usual) -> bool:
    with torch.no_grad(), checking():
        args = (call.args[0].detach().clone(), *call.args[1:]) if call.inplace else call.args
        expected = call.func(*args, **call.kwargs)
        expected = args[0] if expected is None else expected
        try:
            pairs = zip(tensors_in(usual()), tensors_in(expected), strict=True)
            return all(equal(made, own) for made, own in pairs)
        except (UnknownFunctionError, RuntimeError, ValueError):  # something that it needs is gone
            return False


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two forms of an operation have the same value."""
    if a.shape != b.shape or a.dtype != b.dtype or a.is_meta:
        return a.shape == b.shape and a.dtype == b.dtype
    if not b.is_floating_point():
        return torch.equal(a, b)
    tolerance = TOLERANCE.get(b.dtype, 2e-2)
    finite = b.isfinite()
    size = float(torch.where(finite, b, 0).abs().max()) if b.numel() else 0.0
    close = (a - b).abs() <= tolerance * size
    return bool((close | (~finite & ((a == b) | (a.isnan() & b.isnan())))).all())


def _summing(call: Call) -> Usual | None:
    """A sum fused with a product of two traced tensors, or with what it is added to (a residual connection)."""
    first = call.argument(0, "input")
    product = call.name != "index_add" and len(call.traced) > 1
    if not isinstance(first, Tensor) or not (first.requires_grad or product):
        return None
    if call.name == "index_add" and not call.argument(3, "source").requires_grad:
        return None
    return functools.partial(SUMMING[call.name], *call.args, **call.kwargs)


def _alpha(call: Call) -> Usual | None:
    """``torch.add(a, b, alpha=2)`` as a sum with a multiple."""
    alpha = call.kwargs.get("alpha", 1)
    if alpha == 1 or len(call.args) != 2:
        return None
    add = torch.sub if call.name == "sub" else torch.add
    return lambda: add(call.args[0], torch.mul(call.args[1], alpha))


def _times_one(call: Call) -> Usual | None:
    """A product with a constant that is 1 everywhere, such as the mask of a sample without padding, as a copy."""
    constants = [t for t in call.tensors if not t.requires_grad]
    if (
        call.inplace
        or len(call.traced) != 1
        or len(call.args) != 2
        or (call.args[0] is not call.traced[0] and call.name == "div")
    ):
        return None
    other = constants[0] if constants else next((a for a in call.args if not isinstance(a, Tensor)), 0)
    if isinstance(other, Tensor) and (is_weight(other) or other.is_meta or not bool((other == 1).all())):
        return None
    same = isinstance(other, Tensor) or other == 1
    return functools.partial(torch.clone, call.traced[0]) if same else None


def _one_branch(call: Call) -> Usual | None:
    """``torch.where`` with a condition that is true everywhere, or nowhere."""
    if len(call.args) != 3 or call.args[0].is_meta or call.args[0].requires_grad:
        return None
    condition, yes, no = call.args
    chosen = yes if bool(condition.all()) else no if not bool(condition.any()) else None
    if not isinstance(chosen, Tensor) or chosen.shape != torch.broadcast_shapes(condition.shape, chosen.shape):
        return None
    return functools.partial(torch.clone, chosen)


def _masked_product(call: Call) -> Usual | None:
    """``torch.where(g > 0, g * u, 0)``, where ``g * u`` is a product of several functions, as ``(g * u) * (g > 0)``."""
    if len(call.args) != 3 or len(call.traced) != 1 or call.nodes[0] is None or not elementwise.is_mask(call.nodes[0]):
        return None
    condition, yes, no = call.args
    kept, rest = (yes, no) if yes is call.traced[0] else (no, yes)
    if node_of(call.traced[0]).kind != "gate" or bool(torch.as_tensor(rest).any()):
        return None
    return lambda: torch.mul(kept, condition if kept is yes else torch.logical_not(condition))


def _unbound(call: Call) -> Usual | None:
    """The entries of a softmax over a stack of two or three tensors, one by one."""
    x, dim = call.traced[0], call.argument(1, "dim", 0)
    if not 1 < x.shape[dim] <= 3 or not is_over_stack(node_of(x).moved_from()):
        return None
    return lambda: tuple(x.select(dim, i) for i in range(x.shape[dim]))


def _multiplied(call: Call) -> Usual | None:
    """A product over a dimension of two or three entries as products of tensors."""
    x, dim = call.traced[0], call.argument(1, "dim")
    if not isinstance(dim, int) or not 1 < x.shape[dim] <= 3 or call.argument(2, "keepdim", False):
        return None
    node = node_of(x)
    parts = assembled.parts_of(node)
    if parts is not None and node.recipe is not None:
        along = node.recipe.args[1] if len(node.recipe.args) > 1 else node.recipe.kwargs.get("dim", 0)
        if along % x.dim() == dim % x.dim():
            return lambda: functools.reduce(torch.mul, [restored(p) if isinstance(p, Node) else p for p in parts])
    return lambda: functools.reduce(torch.mul, x.unbind(dim))


def _quotient(call: Call) -> Usual | None:
    """``x * (1 / y)`` as ``x / y``."""
    if len(call.traced) != 2:
        return None
    for mine, other in ((0, 1), (1, 0)):
        node = node_of(call.traced[mine])
        inverse = node.name == "reciprocal" or (node.name == "pow" and _exponent(node) == -1)
        below = node.flows[0].tensor if inverse and node.flows else None
        if below is not None and below.dim() and below.numel() < call.traced[other].numel():
            return functools.partial(torch.div, call.traced[other], below)
    return None


def _exponent(node: Node) -> object:
    """Return the exponent of a power."""
    recipe = node.recipe
    return None if recipe is None else recipe.args[1] if len(recipe.args) > 1 else recipe.kwargs.get("exponent")


_PATTERNS: list[tuple[Set[str], Pattern]] = [
    ({"addmm", "addmv", "index_add"}, _summing),
    ({"add", "sub"}, merged_layers),
    ({"add", "sub"}, gated_sum),
    (COMPLETING, usual_sum),
    ({"sub"}, log_softmax),
    ({"add", "sub"}, undone),
    ({"add", "sub"}, _alpha),
    (softmax.COMPLETING, softmax.usual_softmax),
    (rotations.COMPLETING, rotations.usual_rotation),
    ({"add", "sub", "mul", "div", *ops.PRODUCTS}, usual_attention),
    ({*ops.LAYOUT, "contiguous", "clone", "getitem"}, written_attention),
    ({"where"}, _one_branch),
    ({"mul", "div"}, _times_one),
    ({"where"}, _masked_product),
    ({"add", "sub"}, elementwise.constant_multiple),
    ({"add", "sub"}, folded),
    (gates.COMPLETING, gates.usual_gate),
    ({"mul"}, elementwise.shifted_gate),
    ({"reciprocal", "mul", "div", "add", "sub"}, elementwise.shifted_argument),
    ({"prod"}, _multiplied),
    ({"unbind"}, _unbound),
    ({"mul"}, _quotient),
    ({"sum", "einsum", "matmul", "bmm"}, products.distributed),
    ({"sum"}, products.summed_product),
    ({"sum"}, products.summed_later),
    ({"div"}, products.divided_later),
    ({"add"}, products.blocks),
    ({"add"}, products.summed_slices),
    (ops.PRODUCTS, products.scaled_later),
    ({"einsum", "matmul"}, gates.paired),
    ({"einsum"}, separate),
    ({"einsum"}, pairwise),
    ({*ops.PRODUCTS, "linear"}, mixed_stack),
    ({*ops.PRODUCTS, "linear", *ops.CONVOLUTIONS}, usual_map),
    ({*ops.PRODUCTS, "linear"}, products.pooled),
    (ops.PRODUCTS, products.projected_later),
    ({"linear", "tensordot", "inner"}, products.as_matmul),
    ({"linear", "matmul", "mm"}, constant_features),
    ({"cat", "stack"}, joined),
    ({"cat", "stack"}, usual_attention),
    ({"stack"}, assembled.stacked_slices),
    ({"split", "chunk", "tensor_split", "split_with_sizes"}, assembled.taken_apart),
    ({"add"}, assembled.padded_sum),
    ({"setitem"}, assembled.written),
    ({"batch_norm"}, stored_statistics),
    ({"batch_norm", "native_batch_norm", "instance_norm"}, own_statistics),
]

_BY_NAME: dict[str, list[Pattern]] = {}
for _names, _pattern in _PATTERNS:
    for _name in _names:
        _BY_NAME.setdefault(_name, []).append(_pattern)
