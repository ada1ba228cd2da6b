"""Attention in a Python loop: products of maps and values, one for each head or block of queries, put together again.

What is joined is one attention: heads beside one another are one product of stacked maps and stacked values; blocks of
queries are one product of a longer map.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from ..node import Node
from ..op_call import Call
from ..replay import Recipe, restored
from ..tensor_info import node_of

#: operations between a product and where it is joined to others
MOVING = {
    "transpose", "permute", "reshape", "view", "flatten", "unsqueeze", "squeeze", "contiguous", "clone", "to",
    "getitem", "select",
}  # fmt: skip

Usual = Callable[[], Tensor]


def joined(call: Call) -> tuple[Usual, list[Node]] | None:
    """Return parts of an attention that are joined as one attention; ``None`` if they are no such parts.

    Returns:
        The attention, and the products that it replaces.
    """
    parts = call.args[0] if call.args else call.kwargs.get("tensors")
    if not isinstance(parts, tuple | list) or len(parts) < 2 or len(call.traced) != len(parts):
        return None
    products = [_product(node_of(t)) for t in parts]
    found = [p for p in products if p is not None]
    if len(found) != len(parts) or len({p.signature for p in found}) != 1:
        return None
    dim = call.argument(1, "dim", 0)
    shape = parts[0].shape
    if call.name == "stack" or dim % len(shape) == len(shape) - 1:
        run = _heads(found, call.name, dim)
    else:
        run = _blocks(found, dim % len(shape) == len(shape) - 2)
    return None if run is None else (run, [p.node for p in found])


class _Product:
    """A product of a map and values, or a fused attention of queries, keys and values, and what was done to it since.

    Attributes:
        node: of the product.
        rows: the map ``[..., queries, keys]``, or the queries.
        columns: the values ``[..., keys, features]``; the keys before them, where it is fused.
        options: of a fused attention.
        moves: recipes that were applied to the product, in order.
    """

    def __init__(self, node: Node, operands: list[Any], options: dict[str, Any], moves: list[Recipe]) -> None:
        self.node = node
        self.rows, *self.columns = operands
        self.options = options
        self.moves = moves

    @property
    def signature(self) -> tuple[Any, ...]:
        """What parts of one attention have in common."""
        moves = tuple(f"{move.func.__name__} {move.args[1:]} {move.kwargs}" for move in self.moves)
        shapes = tuple(t.shape for t in self.columns)
        return len(self.rows.shape), self.rows.shape[-1], shapes, str(self.options), moves

    def moved(self, value: Tensor) -> Tensor:
        """Return another product, moved in the same way."""
        for move in self.moves:
            value = move.run(functools.partial(_first, value))
        return value

    def again(self, rows: Tensor, columns: list[Tensor]) -> Tensor:
        """Return the same product of other operands."""
        if len(columns) == 1:
            return torch.matmul(rows, columns[0])
        key, value = columns
        return F.scaled_dot_product_attention(rows, key, value, **self.options)


def _first(value: Tensor, _: Node) -> Tensor:
    return value


def _value(operand: Node | Tensor) -> Tensor:
    return restored(operand) if isinstance(operand, Node) else operand


def _product(node: Node) -> _Product | None:
    """Return the product of a map and values that a tensor is, at most moved."""
    node, moves = _mixed(node)
    if node.recipe is None:
        return None
    args, options = node.recipe.args, dict(node.recipe.kwargs)
    if node.kind == "mix" and node.name in ("matmul", "bmm", "mm") and len(args) == 2:
        return _Product(node, list(args), {}, moves)
    if node.kind == "attention" and len(args) == 3 and options.get("attn_mask") is None:
        return _Product(node, list(args), options, moves)
    return None


def _mixed(node: Node) -> tuple[Node, list[Recipe]]:
    """Return what a tensor was before it was moved, and the moves."""
    moves: list[Recipe] = []
    while node.name in MOVING and len(node.flows) == 1 and node.recipe is not None:
        moves.insert(0, node.recipe)
        node = node.flows[0]
    return node, moves


def _heads(found: list[_Product], name: str, dim: int) -> Usual | None:
    """Join heads: stacked in a dimension of their own, or put side by side as features."""
    first = found[0]
    if any(p.rows.shape != first.rows.shape for p in found):
        return None
    if name == "cat" and all(p.rows is first.rows for p in found):  # the features of one head, in parts
        if len(first.columns) > 1:
            return None
        return lambda: first.moved(
            first.again(_value(first.rows), [torch.cat([_value(p.columns[0]) for p in found], -1)])
        )

    def run() -> Tensor:
        rows = torch.stack([_value(p.rows) for p in found], -3)
        columns = [torch.stack([_value(p.columns[i]) for p in found], -3) for i in range(len(first.columns))]
        each = [first.moved(t) for t in first.again(rows, columns).unbind(-3)]
        return torch.stack(each, dim) if name == "stack" else torch.cat(each, dim)

    return run


def _blocks(found: list[_Product], of_queries: bool) -> Usual | None:
    """Join blocks of queries, which read the same keys and values."""
    first = found[0]
    if not of_queries or first.options.get("is_causal") or any(p.moves for p in found):
        return None
    if any(mine is not other for p in found for mine, other in zip(p.columns, first.columns, strict=True)):
        return None
    return lambda: first.again(torch.cat([_value(p.rows) for p in found], -2), [_value(t) for t in first.columns])
