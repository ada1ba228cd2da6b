"""Attention in a Python loop: products of maps and values, one for each head or block of queries, put together again.

What is joined is one attention: heads beside one another are one product of stacked maps and stacked values; blocks of
queries are one product of a longer map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..node import Node, node_of
from ..op_call import Call
from ..replay import Recipe

#: operations between a product and where it is joined to others
MOVING = {"transpose", "permute", "reshape", "view", "flatten", "unsqueeze", "squeeze", "contiguous", "clone", "to"}


def joined(call: Call) -> Callable[[], Tensor] | None:
    """Return parts of an attention that are joined as one attention; ``None`` if they are no such parts."""
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
        return _heads(found, call.name, dim, parts)
    return _blocks(found, dim, parts)


def products(call: Call) -> list[Node]:
    """Return the nodes of the products that a call joins."""
    parts = call.args[0] if call.args else call.kwargs["tensors"]
    return [_mixed(node_of(t))[0] for t in parts]


class _Product:
    """A product of a map ``[..., queries, keys]`` and values ``[..., keys, features]``, and what was done to it since.

    Attributes:
        map, values: the operands.
        moves: recipes that were applied to the product, in order.
    """

    def __init__(self, map: Tensor, values: Tensor, moves: list[Recipe]) -> None:
        self.map = map
        self.values = values
        self.moves = moves

    @property
    def signature(self) -> tuple[Any, ...]:
        """What parts of one attention have in common."""
        moves = tuple(f"{move.func.__name__} {move.args[1:]} {move.kwargs}" for move in self.moves)
        return self.map.dim(), self.map.shape[-1], self.values.shape, moves

    def moved(self, value: Tensor) -> Tensor:
        """Return another product, moved in the same way."""
        for move in self.moves:
            value = move.run(lambda _, made=value: made)
        return value


def _product(node: Node) -> _Product | None:
    """Return the product of a map and values that a tensor is, at most moved."""
    node, moves = _mixed(node)
    if node.kind != "mix" or node.name not in ("matmul", "bmm", "mm") or node.recipe is None:
        return None
    operands = [a.tensor if isinstance(a, Node) else a for a in node.recipe.args[:2]]
    if len(operands) != 2 or any(t is None for t in operands):
        return None
    return _Product(operands[0], operands[1], moves)


def _mixed(node: Node) -> tuple[Node, list[Recipe]]:
    """Return what a tensor was before it was moved, and the moves."""
    moves: list[Recipe] = []
    while node.name in MOVING and len(node.flows) == 1 and node.recipe is not None:
        moves.insert(0, node.recipe)
        node = node.flows[0]
    return node, moves


def _heads(found: list[_Product], name: str, dim: int, parts: Any) -> Callable[[], Tensor] | None:
    """Join heads: stacked in a dimension of their own, or put side by side as features."""
    if any(p.map.shape != found[0].map.shape for p in found):
        return None

    if name == "cat" and all(p.map is found[0].map for p in found):  # the features of one head, in parts
        return lambda: found[0].moved(torch.matmul(found[0].map, torch.cat([p.values for p in found], -1)))

    def run() -> Tensor:
        maps = torch.stack([p.map for p in found], -3)
        values = torch.stack([p.values for p in found], -3)
        made = torch.matmul(maps, values)
        each = [found[0].moved(t) for t in made.unbind(-3)]
        return torch.stack(each, dim) if name == "stack" else torch.cat(each, dim)

    return run


def _blocks(found: list[_Product], dim: int, parts: Any) -> Callable[[], Tensor] | None:
    """Join blocks of queries, which read the same values."""
    if any(p.moves or p.values is not found[0].values for p in found) or dim % parts[0].dim() != parts[0].dim() - 2:
        return None
    return lambda: torch.matmul(torch.cat([p.map for p in found], -2), found[0].values)
