"""Linear maps with a constant that is no projection: a mean, a selection, a scaling, a centring.

What such a map does is told by the values of the constant: a product with ``[1/n, ..., 1/n]`` is a mean, one with a
diagonal matrix a scaling, one with a row of the identity a selection.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from .. import operations as ops
from ..node import Node
from ..op_call import Call
from ..replay import evaluate, restored, sample
from ..tensor_info import info_of, is_weight, node_of
from .assembled import parts_of
from .contraction import Terms, align, summed, terms

#: how many entries a constant may have to be looked at
LARGEST = 2**16

Along = Callable[[Tensor, int], Tensor]  # what is done to a tensor along a dimension, which stays


def usual_map(call: Call) -> Callable[[], Tensor] | None:
    """Return a linear map with a constant as a mean, selection, scaling or centring, if it is one of these."""
    if len(call.traced) != 1:
        return None
    if call.name in ops.CONVOLUTIONS:
        return _convolution(call)
    bias = call.argument(2, "bias") if call.name == "linear" else None
    tensors = [t for t in call.tensors if t is not bias]
    found = terms(call, tensors)
    if found is None or len(tensors) != 2:
        return None
    which = 0 if tensors[0] is call.traced[0] else 1
    x, constant = tensors[which], tensors[1 - which]
    over = summed(found, which)
    if len(over) != 1 or info_of(constant).parameter is not None or not _is_small(constant):
        return None
    matrix, free = _matrix(constant, found, which)
    along = None if matrix is None else _along(matrix, not free, is_weight(constant))
    (dim,) = over
    letters = found[0][which]
    if along is None and not is_weight(constant) and _is_one_output(constant, found, which):
        weights = align(constant, found[0][1 - which], letters)
        along = lambda x, dim: (x * weights).sum(dim, keepdim=True)  # noqa: E731  # one of several
    if along is None:
        return None
    letters = letters[:dim] + (free or "-") + letters[dim + 1 :]

    def run() -> Tensor:
        made = along(x, dim)
        kept = made if free else made.squeeze(dim)
        moved = kept.permute([letters.replace("-", "").index(letter) for letter in found[1]])
        return moved if bias is None else moved + bias

    return run if set(found[1]) == set(letters) - {"-"} else None


def _is_one_output(constant: Tensor, found: Terms, which: int) -> bool:
    """Return whether a constant has one weight for each entry of a tensor: a weighted sum of tokens."""
    mine, other = found[0][1 - which], found[0][which]
    return all(c in other or size == 1 for c, size in zip(mine, constant.shape, strict=True))


def _is_small(constant: Tensor) -> bool:
    return constant.is_floating_point() and not constant.is_meta and constant.numel() <= LARGEST


def _matrix(constant: Tensor, found: Terms, which: int) -> tuple[Tensor | None, str]:
    """Return a constant as a matrix ``[outputs, inputs]``, and the letter of its outputs, if it has one."""
    mine, other = found[0][1 - which], found[0][which]
    free = "".join(c for c in mine if c not in other)
    (over,) = (c for c in mine if c in other and c not in found[1])
    if len(free) > 1:
        return None, free
    matrix = constant.permute([*(mine.index(c) for c in mine if c not in free + over), *map(mine.index, free + over)])
    matrix = matrix.reshape(-1, matrix.shape[-2] if free else 1, matrix.shape[-1])
    alike = len(matrix) > 0 and bool((matrix == matrix[:1]).all())  # for every sample
    return (matrix[0] if alike else None), free


def _along(matrix: Tensor, vector: bool, learned: bool) -> Along | None:
    """Return what a product with a matrix ``[outputs, inputs]`` does along a dimension."""
    outputs, inputs = matrix.shape
    if outputs == inputs and not vector and not bool((matrix - matrix.diagonal().diag()).any()):
        scale = matrix.diagonal()
        return lambda x, dim: x * scale.reshape(-1, *(1,) * (x.dim() - dim % x.dim() - 1))
    if learned or inputs < 2:
        return None
    if outputs == 1 and bool(matrix[0, 0]) and bool((matrix == matrix[0, 0]).all()):
        factor = float(matrix[0, 0]) * inputs
        return lambda x, dim: (
            x.mean(dim, keepdim=True) if abs(factor - 1) < 1e-6 else x.mean(dim, keepdim=True) * factor
        )
    if outputs > 1 and bool(matrix[0, 0]) and bool((matrix == matrix[0, 0]).all()):  # a mean, several times
        total = _along(matrix[:1], vector, learned)
        return (
            None if total is None else lambda x, dim: total(x, dim).expand(*x.shape[:dim], outputs, *x.shape[dim + 1 :])
        )
    if bool(((matrix == 0) | (matrix == 1)).all()) and bool((matrix.sum(1) == 1).all()):
        index = matrix.argmax(1)
        return lambda x, dim: x.index_select(dim, index)
    if outputs == inputs and _centres(matrix):
        factor = float(matrix[0, 0] - matrix[0, 1])
        return lambda x, dim: _times(x - x.mean(dim, keepdim=True), factor)
    return None


def _times(x: Tensor, factor: float) -> Tensor:
    return x if abs(factor - 1) < 1e-6 else x * factor


def _centres(matrix: Tensor) -> bool:
    """Return whether a matrix subtracts the mean: a multiple of the identity and a number, rows that sum to 0."""
    number = float(matrix[0, 1])
    rest = matrix - number - torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) * (matrix[0, 0] - number)
    size = float(matrix.abs().max())
    return number != 0 and bool((rest.abs() <= 1e-6 * size).all()) and bool((matrix.sum(1).abs() <= 1e-5 * size).all())


def _convolution(call: Call) -> Callable[[], Tensor] | None:
    """Return a convolution of every channel by itself as a scaling (kernel of 1) or a mean (a uniform, full kernel).

    One with a kernel of 1 and a constant that is no weight may also be a selection or a mean of channels.
    """
    x, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    space = x.dim() - 2
    if call.name.startswith("conv_") or x is not call.traced[0] or not _is_small(weight):
        return None
    wide = (-1, *(1,) * space)
    groups = call.argument(6, "groups", 1)
    along = None
    if groups == 1 and weight.shape[2:].numel() == 1 and not is_weight(weight):
        along = _along(weight.flatten(1), False, False)
    if along is not None:
        scaled = lambda: along(x, 1)  # noqa: E731  # one of three
    elif weight.shape[1] != 1 or groups != len(weight) or len(weight) != x.shape[1]:
        return None
    elif weight.shape[2:].numel() == 1:
        scaled = lambda: x * weight.reshape(wide)  # noqa: E731
    elif weight.shape[2:] == x.shape[2:] and not is_weight(weight) and bool((weight == weight.flatten()[0]).all()):
        factor = float(weight.flatten()[0]) * weight.shape[2:].numel()
        scaled = lambda: _times(x.mean(tuple(range(2, x.dim())), keepdim=True), factor)  # noqa: E731
    else:
        return None
    return scaled if bias is None else lambda: scaled() + bias.reshape(wide)


def mixed_stack(call: Call) -> Callable[[], Tensor] | None:
    """Return a product of a stack with one number for each of its tensors (a mix of layers) as a sum of multiples."""
    tensors = call.tensors[:2]
    found = terms(call, tensors)
    if found is None or len(call.traced) != 1 or len(call.tensors) != 2:
        return None
    which = 0 if tensors[0] is call.traced[0] else 1
    x, constant = tensors[which], tensors[1 - which]
    over = summed(found, which)
    stack = node_of(x).layout()
    parts = parts_of(stack) if stack.name == "stack" and stack.recipe is not None else None
    if parts is None or stack.recipe is None or len(over) != 1 or constant.numel() != len(parts):
        return None
    along = stack.recipe.args[1] if len(stack.recipe.args) > 1 else stack.recipe.kwargs.get("dim", 0)
    (dim,) = over
    whole = x.shape == stack.shape and along % x.dim() == dim
    if not whole and not (along == dim == 0 and x.shape[0] == len(parts)):
        return None
    rest = (*x.shape[:dim], *x.shape[dim + 1 :])
    shape = call.func(*call.args, **call.kwargs).shape

    def run() -> Tensor:
        given = [restored(part) if isinstance(part, Node) else part for part in parts]
        multiples = [part.reshape(rest) * c for part, c in zip(given, constant.flatten().unbind(), strict=True)]
        return functools.reduce(torch.add, multiples).reshape(shape)

    return run if shape.numel() == math.prod(rest) else None


def constant_features(call: Call) -> Callable[[], Tensor] | None:
    """Return a linear layer of a tensor with constant features beside its own as one with a larger bias."""
    x, weight = call.args[0], call.argument(1, "weight")
    bias = call.argument(2, "bias") if call.name == "linear" else None
    node = node_of(call.traced[0])
    if len(call.traced) != 1 or x is not call.traced[0] or node.name not in ("pad", "cat") or len(node.flows) != 1:
        return None
    inner = node.flows[0]
    extra = x.shape[-1] - inner.shape[-1]
    if x.is_meta or inner.shape[:-1] != x.shape[:-1] or extra < 1 or weight is None or weight.dim() != 2:
        return None
    weight = weight if call.name == "linear" else weight.mT
    value = sample(inner)
    with torch.no_grad():
        own = (evaluate(node, {inner: value}) == evaluate(node, {inner: value + 1})).reshape(-1, x.shape[-1])
    constant = x.detach().reshape(-1, x.shape[-1])[:, own[0]]
    if not bool((own == own[0]).all()) or int(own[0].sum()) != extra or not bool((constant == constant[:1]).all()):
        return None
    features = weight[:, ~own[0]]
    return lambda: F.linear(restored(inner), features, F.linear(constant[0], weight[:, own[0]], bias))
