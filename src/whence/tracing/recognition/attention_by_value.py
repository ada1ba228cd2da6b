"""Attention in several steps that are no softmax and no single product: recognised by what it computes.

A running softmax over blocks of keys, blocks that are merged by their log-sums, a column of ones beside the values as
denominator, ``v.mean() + A @ (v - v.mean())``: each is a function of queries, keys and values. Values that are 1 at one
key and 0 at all others show the map, and the map at two samples of queries and keys shows whether it is their softmax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, restored, sample
from .softmax import Scores, softmax_in, softmax_of

Usual = Callable[[], Tensor]

#: operations of which some attention in steps must be made
EXPONENTIAL = {"exp", "exp2", "softmax", "log_softmax", "logsumexp"}
#: how many operations an attention may have
REACH = 400


class _Operands(NamedTuple):
    """Queries, keys and values; keys ``[..., features, keys]`` are ``flat``."""

    query: Node
    key: Node
    value: Node
    flat: bool

    def product(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scores, not scaled."""
        return torch.matmul(query, key if self.flat else key.mT)


def usual_attention(call: Call) -> tuple[Usual, list[Node]] | None:
    """Return an attention that a call completes as a product of a softmax and values.

    Returns:
        The attention, and the products that it replaces.
    """
    nodes = [node for t, node in zip(call.tensors, call.nodes, strict=True) if t.requires_grad and node is not None]
    if call.inplace or not nodes or len(nodes[0].shape) < 3:
        return None
    region, products, values = _walk(nodes)
    if not products or not values or not any(node.name in EXPONENTIAL for node in region):
        return None
    known = {id(t): node for t, node in zip(call.tensors, call.nodes, strict=True) if t.requires_grad and node}
    recipe = Recipe.of(call, known, 0)
    for operands in _candidates(products, values):
        try:
            with torch.no_grad():
                found = _tried(recipe, operands)
        except (UnknownFunctionError, RuntimeError, IndexError):
            continue
        if found is not None:
            return functools.partial(_attend, operands, found), region
    return None


def _attend(operands: _Operands, found: Scores) -> Tensor:
    scores = operands.product(restored(operands.query), restored(operands.key))
    return torch.matmul(softmax_of(scores, found), restored(operands.value))


def _walk(nodes: list[Node]) -> tuple[list[Node], list[Node], list[Node]]:
    """Return the operations behind some tensors, the products that scores are made by, and what else they begin with.

    Nothing is returned if they are too many, or if an attention is no part of them.
    """
    inner: dict[int, Node] = {}
    products: dict[int, Node] = {}
    values: dict[int, Node] = {}
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.seq in inner or node.seq in products or node.seq in values:
            continue
        if node.kind == "matmul" and not _has_behind(node, _is_exponential):
            products[node.seq] = node
        elif not node.flows or _is_sliced(node) or (node.residual and not _has_behind(node, _is_product)):
            values[node.seq] = node
        else:
            inner[node.seq] = node
            stack += node.flows
        if len(inner) > REACH:
            return [], [], []
    return list(inner.values()), list(products.values()), list(values.values())


def _is_sliced(node: Node) -> bool:
    """Return whether a tensor is what a layer made, or a slice of it."""
    while node.kind in ("structural", "selecting") and len(node.flows) == 1 and node.flows[0].numel >= node.numel:
        node = node.flows[0]
    return node.weighted


def _is_product(node: Node) -> bool:
    return node.kind == "matmul"


def _is_exponential(node: Node) -> bool:
    return node.name in EXPONENTIAL


def _has_behind(node: Node, test: Callable[[Node], bool]) -> bool:
    """Return whether some operation is behind a tensor, with no layer between them."""
    stack, seen = list(node.flows), set[int]()
    while stack and len(seen) < REACH:
        inner = stack.pop()
        if test(inner):
            return True
        if inner.seq not in seen and not inner.weighted and inner.kind != "norm":
            seen.add(inner.seq)
            stack += inner.flows
    return False


def _candidates(products: list[Node], values: list[Node]) -> list[_Operands]:
    """Return which tensors may be queries, keys and values."""
    if any(len(product.flows) != 2 for product in products):
        return []
    first, second = (dominator(product.flows[i] for product in products) for i in (0, 1))
    value = dominator(values)
    if first is None or second is None or value is None or min(len(n.shape) for n in (first, second, value)) < 2:
        return []
    out = []
    for query, key in ((first, second), (second, first)):
        for flat in (False, True):
            width, keys = (key.shape[-2], key.shape[-1]) if flat else (key.shape[-1], key.shape[-2])
            if width == query.shape[-1] and keys == value.shape[-2]:
                out.append(_Operands(query, key, value, flat))
    return out


def _tried(recipe: Recipe, operands: _Operands) -> Scores | None:
    """Return in which way a call is an attention of some queries, keys and values; ``None`` if it is not."""
    samples = [(sample(operands.query, i), sample(operands.key, i + 2)) for i in (0, 1)]
    maps = [map_ for query, key in samples if (map_ := _map(recipe, operands, query, key)) is not None]
    if len(maps) < 2:
        return None
    scores = [operands.product(query, key) for query, key in samples]
    return softmax_in(scores, maps, -1, operands.query.dtype)


def _map(recipe: Recipe, operands: _Operands, query: Tensor, key: Tensor) -> Tensor | None:
    """Return the map of an attention: what it makes of values that are 1 at one key, 0 at all others."""
    value = operands.value
    keys, width = value.shape[-2:]
    columns = []
    for start in range(0, keys, width):
        one = torch.zeros(keys, width, dtype=value.dtype, device=value.device)
        count = min(width, keys - start)
        one[start : start + count, :count] = torch.eye(count, dtype=value.dtype, device=value.device)
        given = {operands.query: query, operands.key: key, value: one.expand(value.shape)}
        made = recipe.run(functools.partial(evaluate, given=given))
        if made.shape[:-1] != query.shape[:-1] or made.shape[-1] != width:
            return None
        columns.append(made[..., :count])
    return torch.cat(columns, -1)
