"""Softmax, however it is computed: exponentials of scores, times constant weights, over their own sum.

``exp(z) / exp(z).sum()``, with or without the largest score subtracted first, ``log_softmax(z).exp()``,
``exp(z - logsumexp(z))``, ``exp(z) * mask / sum``, ``exp(z) / (1 + sum)``, and probabilities that are masked or cut and
divided by their sum again. The scores are found by value: logarithms of the result change with them, up to one number
for each row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...capture.tape import checking
from .. import operations as ops
from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, region, restored, sample

#: operations whose operand is kept until the next residual addition, as that of every exponential: a softmax may be a
#: function of it
LOGARITHMIC = {"log_softmax", "logsumexp", "amax", "max"}
#: how far sums may be from 1
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
#: what a sum may leave of 0
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6}
#: types in which a function that is nearly a softmax (with capped scores) cannot be told from one: scores of these
#: types are tried in double precision, and further apart
HALF = {torch.float16, torch.bfloat16}
WIDE = 3.0
#: operations that may be the last step of a softmax
COMPLETING = {"div", "mul", "exp", "exp2", *ops.SOFTMAX}
#: how many tensors between a softmax and its scores are tried
CHAIN = 12
#: kinds of operations whose results are scores, or made before these
LAYERS = ("linear", "convolution", "matmul", "mix", "attention", "input")


class Scores(NamedTuple):
    """In which way a softmax is a function of scores.

    Attributes:
        dim: the dimension along which it is taken, from the end.
        factor: what multiplies the scores: 1, or log 2 under ``exp2``.
        bias: ``[*scores]``, what is added to them: logarithms of the weights of exponentials, up to a number for each
            row; 0 where there are none, minus infinity where they are masked.
    """

    dim: int
    factor: float
    bias: Tensor

    def covers(self, earlier: Scores) -> bool:
        """Return whether earlier scores differ from these by no more than a mask and numbers added to whole rows."""
        seen = earlier.bias.isfinite()
        alike = bool((seen <= self.bias.isfinite()).all()) and earlier.factor == self.factor and earlier.dim == self.dim
        return alike and bool((torch.where(seen, earlier.bias - self.bias, 0.0).abs() < 1e-6).all())

    @property
    def biased(self) -> bool:
        """Whether more than a mask is added to the scores."""
        seen = self.bias.isfinite()
        return bool((seen & (self.bias.abs() > 1e-6)).any())


class _Function(NamedTuple):
    """A softmax: its scores, in which way it is a function of them, and the tensor between them that comes next."""

    node: Node
    form: Scores
    exponential: Node | None


def softmax(call: Call) -> Call | None:
    """Return a softmax in several steps as one operation on its scores; ``None`` if the call does not complete one."""
    nodes = _operands(call)
    if not nodes:
        return None
    value = _nonnegative(call)
    if value is None:
        return None
    found = _scores(call, nodes, alive=True)
    if found is None and call.name in ops.SOFTMAX:
        return None
    root, dim = (_nearest(nodes, value), sums_to_one(value)) if found is None else (found.node, found.form.dim)
    x = None if root is None else root.tensor
    if root is None or x is None or dim is None or value.numel() != root.numel:
        return None
    again = functools.partial(_again, _recipe(call), root)
    try:
        with torch.no_grad():
            again(x.detach(), dim)
    except (UnknownFunctionError, RuntimeError):
        return None
    name = "softmax" if found is not None else "normalised scores"
    return Call(name, "softmax", again, (x, dim), {}, call.batch, [x], [root], [x], composed=True)


def usual_softmax(call: Call) -> Callable[[], Tensor] | None:
    """Return ``exp(z) * exp(b) / sum`` as ``softmax(z + b)``.

    ``None`` if nothing but a mask multiplies exponentials, and the scores are there for it to be run as one operation.
    """
    nodes = _operands(call)
    if not nodes or _nonnegative(call) is None:
        return None
    found = _scores(call, nodes)
    if found is None or not (found.form.biased or found.node.tensor is None):
        return None
    form = found.form._replace(bias=_logarithm(call, found))
    return lambda: softmax_of(restored(found.node), form)


def softmax_of(z: Tensor, found: Scores) -> Tensor:
    """Return the softmax of scores with a factor and a bias; a row that is masked altogether is 0."""
    scores = z if found.factor == 1 else z * found.factor
    seen = found.bias.isfinite()
    if found.biased:
        scores = scores + torch.where(seen, found.bias, 0.0).to(z.dtype)
    if bool(seen.all()):
        return torch.softmax(scores, found.dim)
    made = torch.softmax(scores.masked_fill(~seen, -math.inf), found.dim)
    blind = ~seen.any(found.dim, keepdim=True)
    return made.masked_fill(blind, 0.0) if bool(blind.any()) else made


def _logarithm(call: Call, found: _Function) -> Tensor:
    """Return the logarithm of what multiplies exponentials; where these are not told apart, 0 at its largest."""
    bias, dim = found.form.bias, found.form.dim
    above = [n for t, n in zip(call.tensors, call.nodes, strict=True) if n is not None and t.numel() == bias.numel()]
    if not above:
        return bias
    inner, number = (found.node, 0.0) if found.exponential is None else (found.exponential, 1.0)
    given = torch.full(inner.shape, number, dtype=inner.dtype, device=inner.device)
    try:
        with torch.no_grad():
            made = evaluate(above[0], {inner: given}).double().log()
    except (UnknownFunctionError, RuntimeError):
        return bias
    seen = bias.isfinite()
    apart = torch.where(seen, made - bias, 0.0)
    mean = apart.sum(dim, keepdim=True) / seen.sum(dim, keepdim=True).clamp(min=1)
    off = torch.where(seen, apart - mean, 0.0)
    return bias + mean if bool((off.abs() < 1e-5).all()) else bias


def _operands(call: Call) -> list[Node]:
    """Return the traced operands of a call that may complete a softmax; none if it cannot."""
    nodes = [node for t, node in zip(call.tensors, call.nodes, strict=True) if t.requires_grad and node is not None]
    if call.inplace or call.name not in COMPLETING or not nodes:
        return []
    if call.name in ops.SOFTMAX:
        return nodes if len(nodes) == 1 and _is_shifted(nodes[0], call.argument(1, "dim", -1)) else []
    if call.name not in ("div", "mul"):
        return nodes if nodes[0].name == "log_softmax" or _is_shifted(nodes[0]) else []
    root = dominator(nodes) if len(call.traced) == 2 and len(nodes) > 1 else None
    inner = [] if root is None else [n for node in nodes for n in region(node, root)]
    if root is None or not any(n.numel < root.numel or n.name == "log_softmax" for n in inner):
        return []
    return [] if any(n.weighted and n.numel >= root.numel for n in inner) else nodes


def _is_there(node: Node) -> bool:
    """Return whether a tensor is there, or can be recomputed."""
    if node.tensor is not None:
        return not node.tensor.is_meta
    try:
        with torch.no_grad():
            return not restored(node).is_meta
    except (UnknownFunctionError, RuntimeError):
        return False


def _is_shifted(node: Node, dim: object = -1, reach: int = 3) -> bool:
    """Return whether numbers were added that may be the same for all of a row, perhaps before a mask."""
    if _adds_to_rows(node, dim):
        return True
    masked = node.kind in ("structural", "shift-by-constant") and len(node.flows) == 1
    return masked and reach > 0 and node.flows[0].shape == node.shape and _is_shifted(node.flows[0], dim, reach - 1)


def _adds_to_rows(node: Node, dim: object) -> bool:
    if node.kind in ("add", "center"):
        return any(parent.moved_from().numel < node.numel for parent in node.flows)
    if node.kind != "shift-by-constant" or node.recipe is None or not isinstance(dim, int):
        return False
    constants = [a for a in node.recipe.args if isinstance(a, Tensor)]
    return any(t.dim() == len(node.shape) and t.shape[dim] == 1 for t in constants)


def _nonnegative(call: Call) -> Tensor | None:
    """Return the value of a call, if it is nowhere negative."""
    with torch.no_grad(), checking():
        value = call.func(*call.args, **call.kwargs)
        return None if value.is_meta or bool((value < 0).any()) else value


def _nearest(nodes: list[Node], value: Tensor) -> Node | None:
    """Return the nearest tensor of which a map is a function: numbers that are divided by their sum."""
    root = dominator(nodes)
    return root if root is not None and root.numel == value.numel() else None


def _recipe(call: Call) -> Recipe:
    pairs = zip(call.tensors, call.nodes, strict=True)
    return Recipe.of(call, {id(t): node for t, node in pairs if t.requires_grad and node is not None}, 0)


def _again(recipe: Recipe, root: Node, x: Tensor, dim: int) -> Tensor:
    """Compute the softmax from other scores, with its plain derivative."""
    return recipe.run(lambda node: evaluate(node, {root: x}))


def _scores(call: Call, nodes: list[Node], alive: bool = False) -> _Function | None:
    """Return the scores that a call is a softmax of: without a mask of exponentials, or numbers added to whole rows.

    Args:
        call: the call.
        nodes: its operands.
        alive: whether the tensor of the scores must still be there.
    """
    recipe = _recipe(call)
    found: _Function | None = None
    last: Node | None = None
    node = dominator(nodes)
    for _ in range(CHAIN):
        if node is None:
            break
        if _is_there(node) and not (alive and node.tensor is None):
            tried = _tried(functools.partial(_again, recipe, node), node)
            if found is not None and (tried is None or not found.form.covers(tried)):
                break
            if tried is not None:
                found = _Function(node, tried, last if found is None else found.exponential)
        if node.kind in LAYERS or not node.flows:
            break
        last, node = node, dominator(node.flows)
    named = call.name in ops.SOFTMAX and found is not None and found.node is nodes[0]
    return None if named else found


def _tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, 3e-2)


def _tried(function: Callable[[Tensor, int], Tensor], node: Node) -> Scores | None:
    """Return in which way a function of a tensor is a softmax of it; ``None`` if it is not."""
    values = [sample(node, 0), sample(node, 1)]
    if node.dtype in HALF:
        values = [WIDE * x.double() for x in values]
    try:
        with torch.no_grad():
            made = [function(x, -1) for x in values]
    except (UnknownFunctionError, RuntimeError):
        return None
    if any(m.shape != node.shape for m in made):
        return None
    dims = [dim for dim in range(-1, -len(node.shape) - 1, -1) if node.shape[dim] > 1]
    dtype = made[0].dtype
    return next((found for dim in dims if (found := softmax_in(values, made, dim, dtype)) is not None), None)


def softmax_in(scores: list[Tensor], maps: list[Tensor], dim: int, dtype: torch.dtype) -> Scores | None:
    """Return in which way two maps are the softmax of two scores; ``None`` if they are not.

    Args:
        scores: the scores.
        maps: the maps.
        dim: the dimension of keys.
        dtype: the type in which maps were rounded.
    """
    x, made = [t.double() for t in scores], [t.double() for t in maps]
    if any(bool((m < 0).any()) for m in made):  # a masked key may be left with a rounding error
        made = [torch.where(m.abs() < ROUNDING.get(dtype, 1e-2), 0.0, m) for m in made]
    seen = made[0] > 0
    if not all(bool((m >= 0).all()) for m in made) or not torch.equal(seen, made[1] > 0) or not bool(seen.any()):
        return None
    logs = [torch.where(seen, m, 1.0).log() for m in made]
    change, apart = (_centred(seen, a - b, dim) for a, b in (logs, x))
    size = float(apart.square().sum())
    allowed = _tolerance(dtype) * (1 if dtype in HALF and scores[0].dtype not in HALF else 10)
    factor = float((change * apart).sum()) / size if size else 0.0
    if factor <= 0 or not bool(((change - factor * apart).abs() < allowed).all()):
        return None
    factor = 1.0 if abs(factor - 1) < _tolerance(dtype) else factor
    bias = torch.where(seen, logs[0] - factor * x[0], -math.inf)
    largest = bias.amax(dim, keepdim=True)
    bias = bias - torch.where(largest.isfinite(), largest, 0.0)
    sums = [(factor * value + bias).exp().sum(dim) for value in x]
    return Scores(dim, factor, bias) if _is_normalised(made, sums, dim, dtype) else None


def _centred(seen: Tensor, value: Tensor, dim: int) -> Tensor:
    """Return values minus their mean along a dimension, of those that are seen alone."""
    kept = torch.where(seen, value, 0.0)
    mean = kept.sum(dim, keepdim=True) / seen.sum(dim, keepdim=True).clamp(min=1)
    return torch.where(seen, kept - mean, 0.0)


def _is_normalised(made: list[Tensor], sums: list[Tensor], dim: int, dtype: torch.dtype) -> bool:
    """Return whether exponentials are divided by their sum, or by that and a constant (softmax with a sink)."""
    totals = [m.sum(dim) for m in made]
    seen = totals[0] > 0
    if all(bool(((t - 1).abs() < 1e-2)[seen].all()) for t in totals):  # a small number may be added to the sum
        return True
    first, second = ((1 / t[seen] - 1) * s[seen] for t, s in zip(totals, sums, strict=True))
    return bool((first >= 0).all()) and bool(((first - second).abs() <= _tolerance(dtype) * 10 * first.abs()).all())


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
