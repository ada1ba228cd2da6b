"""Embeddings by other names: rows of a learned table, looked up for the user's integers.

``table[ids]``, ``table.index_select(0, ids)``, ``one_hot(ids) @ table`` and ``embedding_bag`` of single entries are
``F.embedding(ids, table)``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from ..node import Node
from ..op_call import Call
from ..tensor_info import is_weight
from .contraction import align, summed, terms

#: operations that may look up rows
NAMES = {
    "getitem", "index_select", "gather", "take_along_dim", "embedding_bag", "matmul", "mm", "linear", "einsum",
    "tensordot",
}  # fmt: skip


def lookup(call: Call) -> Callable[[], Tensor] | None:
    """Return a lookup of rows of a learned table as an embedding; ``None`` if the call is something else."""
    if call.name not in NAMES or call.traced or len(call.tensors) != 2:
        return None
    known = [t for t, node in zip(call.tensors, call.nodes, strict=True) if node is not None and _is_given(node)]
    tables = [t for t in call.tensors if is_weight(t) and t.is_floating_point() and t.dim() == 2]
    if len(known) != 1 or len(tables) != 1 or known[0] is tables[0] or known[0].is_meta:
        return None
    found = _indices(call, known[0], tables[0])
    if found is None:
        return None
    make, turned = found
    table = tables[0].mT if turned else tables[0]

    def run() -> Tensor:
        ids = make()
        return F.embedding(ids, table)

    with torch.no_grad():
        expected = call.func(*call.args, **call.kwargs)
        return run if isinstance(expected, Tensor) and torch.equal(run(), expected) else None


def _is_given(node: Node) -> bool:
    """Return whether integers are the user's own, at most moved or as one-hot rows; not computed from them."""
    while node.parents and (node.kind in ("structural", "selecting") or node.name == "one_hot"):
        node = node.parents[0]
    return node.kind == "input"


def _indices(call: Call, index: Tensor, table: Tensor) -> tuple[Callable[[], Tensor], bool] | None:
    """Return the row of each place, and whether the table is transposed."""
    if call.name in ("gather", "take_along_dim"):
        by_rows = call.argument(1 if call.name == "gather" else 2, "dim") == 0 and index.dim() == 2
        return (lambda: index[:, 0], False) if by_rows and not index.is_floating_point() else None
    if call.name in ("getitem", "index_select"):
        return (lambda: index, False) if index.dtype in (torch.long, torch.int) and index.dim() else None
    if call.name == "embedding_bag":
        return (lambda: index[:, 0], False) if index.dim() == 2 and index.shape[1] == 1 else None
    found = terms(call)
    which = 0 if call.tensors[0] is index else 1
    over = [] if found is None else summed(found, which)
    if found is None or len(over) != 1 or not _is_one_hot(index, over[0]):
        return None
    places = "".join(c for i, c in enumerate(found[0][which]) if i != over[0])
    if found[1][:-1] != places:
        return None
    return lambda: align(index, found[0][which], places + found[0][which][over[0]]).argmax(-1), summed(
        found, 1 - which
    ) == [1]


def _is_one_hot(value: Tensor, dim: int) -> bool:
    return bool(((value == 0) | (value == 1)).all()) and bool((value.sum(dim) == 1).all())
