"""Products of two tensors that are summed over, in one notation: that of einsum.

``matmul``, ``bmm``, ``F.linear``, ``inner``, ``tensordot`` and ``einsum`` are the same operation with other letters.
With letters it can be told which dimension of an attention map is summed over (the keys), and which is not (the
queries).
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..axes import Dim
from ..einsum_axes import letters
from ..op_call import Call

#: the letters of each operand, and of the result
Terms = tuple[list[str], str]


def terms(call: Call, tensors: Sequence[Tensor] | None = None) -> Terms | None:
    """Return the letters of a product's operands and of its result; ``None`` if it is not known as such a product.

    Args:
        call: the product.
        tensors: its two operands, where it has others (a bias).
    """
    known = _TERMS.get(call.name)
    operands = call.tensors if tensors is None else tensors
    if known is None or len(operands) != 2:
        return None
    found = known(call, *operands)
    return found if found is not None and [len(t) for t in found[0]] == [t.dim() for t in operands] else None


def summed(found: Terms, which: int) -> list[int]:
    """Return the dimensions of an operand of two that are summed over together with the other one."""
    mine, other = found[0][which], found[0][1 - which]
    return [i for i, letter in enumerate(mine) if letter in other and letter not in found[1]]


def free(found: Terms, which: int) -> list[int]:
    """Return the dimensions of an operand of two that the other one does not have."""
    mine, other = found[0][which], found[0][1 - which]
    return [i for i, letter in enumerate(mine) if letter not in other and letter in found[1]]


def summed_axes(call: Call) -> list[Dim]:
    """Return the axes that a product is summed over."""
    found = equation(call) if call.name == "einsum" else terms(call)
    if found is None:
        return []
    pairs = zip(call.nodes, found[0], strict=False)
    return [node.axes[i] for node, own in pairs if node is not None for i, c in enumerate(own) if c not in found[1]]


def equation(call: Call) -> Terms | None:
    """Return the letters of an einsum, ``...`` replaced by letters, the result's added where it is not given."""
    text = call.args[0] if call.args else call.kwargs.get("equation")
    return letters(text, [t.dim() for t in call.tensors])


def pairwise(call: Call) -> Callable[[], Tensor] | None:
    """Return an einsum of three or more operands as products of two, from the left.

    A product of three tensors that depend on the input stays as it is, unless one of them is an attention map.
    """
    found = equation(call)
    if found is None or len(found[0]) < 3 or any(len(set(t)) < len(t) for t in found[0]):
        return None
    if len(call.traced) > 2 and not any(node is not None and node.softmax is not None for node in call.nodes):
        return None
    every, out = found
    tensors = call.tensors

    def run() -> Tensor:
        letters, made = every[0], tensors[0]
        for i in range(1, len(every)):
            needed = set(out).union(*every[i + 1 :])
            kept = "".join(dict.fromkeys(c for c in letters + every[i] if c in needed))
            kept = out if i == len(every) - 1 else kept
            made = torch.einsum(f"{letters},{every[i]}->{kept}", made, tensors[i])
            letters = kept
        return made

    return run


def separate(call: Call) -> Callable[[], Tensor] | None:
    """Return an einsum in which no product is summed as sums and products of elements: ``"bnd,bd->bnd"`` is ``mul``."""
    found = equation(call)
    if found is None or any(len(set(t)) < len(t) for t in found[0]):
        return None
    every, out = found
    letters = "".join(every)
    if set(out) - set(letters) or any(letters.count(c) > 1 and c not in out for c in letters):
        return None
    return lambda: functools.reduce(torch.mul, (align(t, own, out) for t, own in zip(call.tensors, every, strict=True)))


def align(tensor: Tensor, letters: str, out: str) -> Tensor:
    """Return a tensor with the dimensions of ``out`` in order: summed over the others, of size 1 where missing."""
    over = [i for i, c in enumerate(letters) if c not in out]
    left = "".join(c for c in letters if c in out)
    made = tensor.sum(over) if over else tensor
    order = sorted(range(len(left)), key=lambda i: out.index(left[i]))
    made = made if order == list(range(len(left))) else made.permute(order)
    sizes = dict(zip(sorted(left, key=out.index), made.shape, strict=True))
    return made if len(left) == len(out) else made.reshape([sizes.get(c, 1) for c in out])


def _matmul(call: Call, first: Tensor, second: Tensor) -> Terms | None:
    a, b = first.dim(), second.dim()
    if not a or not b:
        return None
    batch = string.ascii_uppercase[: max(a, b) - 2] if max(a, b) > 2 else ""
    mine = batch[len(batch) - max(a - 2, 0) :] + "m" * (a > 1) + "k"
    other = batch[len(batch) - max(b - 2, 0) :] + "k" + "n" * (b > 1)
    return [mine, other], batch + "m" * (a > 1) + "n" * (b > 1)


def _linear(call: Call, first: Tensor, second: Tensor) -> Terms | None:
    rows = string.ascii_uppercase[: first.dim() - 1]
    return ([rows + "k", "nk"], rows + "n") if second.dim() == 2 else None


def _inner(call: Call, first: Tensor, second: Tensor) -> Terms | None:
    rows, columns = string.ascii_uppercase[: first.dim() - 1], string.ascii_lowercase[: second.dim() - 1]
    return [rows + "z", columns + "z"], rows + columns


def _tensordot(call: Call, first: Tensor, second: Tensor) -> Terms | None:
    a, b = first.dim(), second.dim()
    dims = call.argument(2, "dims", 2)
    if isinstance(dims, int):
        over = (list(range(a - dims, a)), list(range(dims)))
    elif isinstance(dims, Tensor):
        return None
    else:
        over = ([d % a for d in _listed(dims[0])], [d % b for d in _listed(dims[1])])
    mine = list(string.ascii_uppercase[:a])
    other = list(string.ascii_lowercase[:b])
    for i, j in zip(*over, strict=True):
        other[j] = mine[i]
    out = [c for i, c in enumerate(mine) if i not in over[0]] + [c for j, c in enumerate(other) if j not in over[1]]
    return ["".join(mine), "".join(other)], "".join(out)


def _listed(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


_TERMS: dict[str, Callable[[Call, Tensor, Tensor], Terms | None]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _matmul),
    "linear": _linear,
    "inner": _inner,
    "tensordot": _tensordot,
    "einsum": lambda call, first, second: equation(call),
}
