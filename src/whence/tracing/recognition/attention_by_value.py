"""Attention in several steps that are no softmax and no single product: recognised by what it computes.

A running softmax over blocks of keys, blocks that are merged by their log-sums, a column of ones beside the values as
denominator, ``v.mean() + A @ (v - v.mean())``, heads and queries in a loop: each is a function of queries, keys and
values. Values that are 1 at one key and 0 at all others show the map, and the map at two samples of queries and keys
shows whether it is their softmax.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from .. import operations as ops
from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, restored, sample
from .softmax import HALF, WIDE, Scores, softmax_in, softmax_of

Usual = Callable[[], Tensor]

#: operations of which some attention in steps must be made
EXPONENTIAL = {"exp", "exp2", "softmax", "log_softmax", "logsumexp"}
#: operations that write into a tensor
WRITING = {"setitem", "index_copy", "index_put", "slice_scatter", "copy", "scatter"}
#: how many operations an attention may have
REACH = 400


class _Operands(NamedTuple):
    """Queries, keys and values.

    Attributes:
        query: ``[..., heads, queries, features]``.
        key: ``[..., heads, keys, features]``, or ``[..., heads, features, keys]`` if ``flat``.
        value: ``[..., heads, keys, values]``.
        flat: see ``key``.
        times: how many heads of queries share one of keys and values.
    """

    query: Node
    key: Node
    value: Node
    flat: bool
    times: int

    @property
    def roots(self) -> tuple[Node, ...]:
        """What scores are computed from."""
        return self.query, self.key

    @property
    def size(self) -> int:
        """How many entries the map has."""
        return self.query.shape[:-1].numel() * self.value.shape[-2]

    def scores(self, *roots: Tensor) -> Tensor:
        """Return scores, not scaled."""
        query, key = roots
        return torch.matmul(query, self.repeated(key if self.flat else key.mT))

    def repeated(self, tensor: Tensor) -> Tensor:
        """Return keys or values for each head of queries."""
        return tensor if self.times == 1 else tensor.repeat_interleave(self.times, -3)


class _Pooling(NamedTuple):
    """Scores and values of one query that is no tensor, such as those of a linear layer with one output.

    Attributes:
        score: ``[..., keys]``, with dimensions of size 1 anywhere.
        value: ``[..., keys, values]``.
    """

    score: Node
    value: Node

    @property
    def roots(self) -> tuple[Node, ...]:
        """What scores are computed from."""
        return (self.score,)

    def scores(self, *roots: Tensor) -> Tensor:
        """Return scores."""
        return roots[0].reshape(self.value.shape[:-1])

    def repeated(self, tensor: Tensor) -> Tensor:
        """Return values as they are."""
        return tensor


class _Region(NamedTuple):
    """The operations of an attention.

    Attributes:
        inner: all of them.
        products: the two operands of each product that makes scores.
        values: what else it begins with.
    """

    inner: list[Node]
    products: list[tuple[Node, Node]]
    values: list[Node]

    @property
    def fused(self) -> bool:
        """Whether it is made of fused attentions."""
        return any(node.kind == "attention" for node in self.inner)


def usual_attention(call: Call) -> tuple[Usual, list[Node]] | None:
    """Return an attention that a call completes as a product of a softmax and values.

    Returns:
        The attention, and the products that it replaces.
    """
    if call.inplace or not call.traced:
        return None
    keys = math.inf if call.name not in ops.PRODUCTS else _most_keys(call)
    known = {id(t): node for t, node in zip(call.tensors, call.nodes, strict=True) if t.requires_grad and node}
    return None if not keys else _attention(list(known.values()), Recipe.of(call, known, 0).run, keys)


def written_attention(call: Call) -> tuple[Usual, list[Node]] | None:
    """Return a copy of a tensor into which slices of an attention were written as one of that attention."""
    node = call.nodes[0] if call.nodes else None
    if node is None or call.inplace or node.name not in WRITING or node.recipe is None:
        return None
    found = _attention(list(node.flows), node.recipe.run)
    if found is None:
        return None
    run, region = found
    return (lambda: call.func(run(), *call.args[1:], **call.kwargs)), region


def _most_keys(call: Call) -> float:
    """Return how many keys the usual form of a product with a map may have; none if it has its usual form.

    A map that was multiplied sums to 1 in its usual form; one that leaves keys out for all queries has fewer of them.
    """
    node, map_ = call.nodes[0], call.tensors[0].detach()
    if len(call.traced) == 2 and node is not None and node.softmax is not None and not _has_usual_scores(node):
        return math.inf
    if (
        len(call.traced) != 2
        or node is None
        or node.softmax is None
        or call.name == "einsum"
        or map_.is_meta
        or map_.dim() < 2
    ):
        return 0
    total = map_.sum(-1)
    if node.kind == "scale" and bool((((total - 1).abs() > 1e-3) & (total != 0)).any()):
        return math.inf
    return map_.shape[-1] - 1 if bool((map_.flatten(0, -2).amax(0) == 0).any()) else 0


def _has_usual_scores(node: Node) -> bool:
    """Return whether a map is a softmax of one product, at most scaled, masked and moved."""
    while node.kind in ("softmax", "scale", "shift", "shift-by-constant", "structural", "selecting", "identity"):
        if len(node.flows) != 1:
            return False
        node = node.flows[0]
    return node.kind in ("matmul", "linear")


def _attention(
    nodes: list[Node], run: Callable[..., Tensor], keys: float = math.inf
) -> tuple[Usual, list[Node]] | None:
    """Return a function of some tensors as an attention of so many keys at most, and what it replaces."""
    if max(len(node.shape) for node in nodes) < 2:
        return None
    region = _walk(nodes)
    if region is None or not any(map(_is_exponential, region.inner)):
        return None
    for operands in _candidates(region):
        if operands.value.shape[-2] > keys:
            continue
        try:
            with torch.no_grad():
                found = _tried(run, operands)
        except (UnknownFunctionError, RuntimeError, IndexError):
            continue
        if found is not None:
            return functools.partial(_attend, operands, found, region.fused), region.inner
    return None


def _attend(operands: _Operands | _Pooling, found: Scores, fused: bool) -> Tensor:
    value = operands.repeated(restored(operands.value))
    roots = [restored(node) for node in operands.roots]
    if isinstance(operands, _Pooling):
        return torch.matmul(softmax_of(operands.scores(*roots), found).unsqueeze(-2), value).squeeze(-2)
    query, key = roots
    if fused and not found.biased:
        key = operands.repeated(key.mT if operands.flat else key)
        seen = found.bias.isfinite()
        return F.scaled_dot_product_attention(query, key, value, None if bool(seen.all()) else seen, scale=found.factor)
    return torch.matmul(softmax_of(operands.scores(query, key), found), value)


def _walk(nodes: list[Node]) -> _Region | None:
    """Return the operations behind some tensors back to layers; ``None`` if they are too many, or no attention."""
    inner: dict[int, Node] = {}
    products: list[tuple[Node, Node]] = []
    values: list[Node] = []
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.seq in seen:
            continue
        seen.add(node.seq)
        if node.kind == "attention" and len(node.flows) == 3:
            inner[node.seq] = node
            products.append(node.flows[:2])
            stack.append(node.flows[2])
        elif node.kind == "matmul" and len(node.flows) == 2 and not _has_behind(node, _is_exponential):
            products.append(node.flows)
        elif (
            not node.flows
            or node.kind == "norm"
            or _is_sliced(node)
            or (node.residual and not _has_behind(node, _is_product))
        ):
            values.append(node)
        else:
            inner[node.seq] = node
            stack += node.flows
        if len(inner) > REACH:
            return None
    return _Region(list(inner.values()), products, values) if values else None


def _is_sliced(node: Node) -> bool:
    """Return whether a tensor is what a layer made, or a slice of it."""
    while node.kind in ("structural", "selecting") and len(node.flows) == 1 and node.flows[0].numel >= node.numel:
        node = node.flows[0]
    return node.weighted


def _is_product(node: Node) -> bool:
    return node.kind == "matmul"


def _is_exponential(node: Node) -> bool:
    return node.name in EXPONENTIAL or node.kind == "attention"


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


def _candidates(region: _Region) -> Iterator[_Operands | _Pooling]:
    """Yield tensors that may be queries, keys and values."""
    given = _apart(region) if not region.products else _of_products(region)
    if len(given) == 2:
        for score, value in itertools.permutations(given, 2):
            if _without_ones(score.shape) == _without_ones(value.shape[:-1]):
                yield _Pooling(score, value)
    if len(given) != 3:
        return
    first, second, third = given
    widest = max(node.numel for node in region.inner if _is_exponential(node))
    for a, b, c in (
        itertools.permutations(given) if not region.products else ((first, second, third), (second, first, third))
    ):
        for query, key, values, flat in itertools.product(_moved(a), _moved(b), _moved(c), (False, True)):
            operands = _fitting(query, key, values, flat)
            if operands is not None and (region.products or widest >= operands.size):  # no window of a few keys
                yield operands


def _of_products(region: _Region) -> list[Node]:
    """Return the tensors that all products are made of, and the one that all values are; none if there are several."""
    found = [dominator(pair[i] for pair in region.products) for i in (0, 1)] + [dominator(region.values)]
    return [node for node in found if node is not None]


def _apart(region: _Region) -> list[Node]:
    """Return the tensors that a region without products begins with, one for each layer or slice of a layer."""
    groups: dict[int, list[Node]] = {}
    for node in region.values:
        groups.setdefault(node.layout().seq, []).append(node)
    found = [dominator(group) for group in groups.values()]
    return [node for node in found if node is not None]


def _moved(node: Node) -> list[Node]:
    """Return a tensor, and those that it was before it was padded, cut or laid out differently."""
    out = [node]
    while node.kind in ("structural", "selecting") and len(node.flows) == 1 and len(out) < 4:
        node = node.flows[0]
        out.append(node)
    return out


def _fitting(query: Node, key: Node, value: Node, flat: bool) -> _Operands | None:
    """Return queries, keys and values of shapes that fit."""
    if not len(query.shape) == len(key.shape) == len(value.shape) > 2:
        return None
    width, keys = (key.shape[-2], key.shape[-1]) if flat else (key.shape[-1], key.shape[-2])
    if width != query.shape[-1] or keys != value.shape[-2] or key.shape[:-2] != value.shape[:-2]:
        return None
    times, left = divmod(query.shape[-3], key.shape[-3])
    return None if left or query.shape[:-3] != key.shape[:-3] else _Operands(query, key, value, flat, times)


def _without_ones(shape: torch.Size) -> list[int]:
    return [n for n in shape if n != 1]


def _tried(run: Callable[..., Tensor], operands: _Operands | _Pooling) -> Scores | None:
    """Return in which way a function is an attention of some queries, keys and values; ``None`` if it is not."""
    if operands.value.dtype in HALF:
        with contextlib.suppress(RuntimeError):  # of a product with what the model has cast to half precision
            return _tried_in(run, operands, torch.float64, WIDE**0.5)
    return _tried_in(run, operands, operands.value.dtype, 1.0)


def _tried_in(
    run: Callable[..., Tensor], operands: _Operands | _Pooling, dtype: torch.dtype, scale: float
) -> Scores | None:
    """Return the same, tried with numbers of some type and size."""
    roots = operands.roots
    samples = [{root: scale * sample(root, i + 2 * j).to(dtype) for j, root in enumerate(roots)} for i in (0, 1)]
    scores = [operands.scores(*(given[root] for root in roots)) for given in samples]
    maps = [_map(run, operands.value, given, made.shape, dtype) for given, made in zip(samples, scores, strict=True)]
    found = [map_ for map_ in maps if map_ is not None]
    return softmax_in(scores, found, -1, found[0].dtype) if len(found) == 2 else None


def _map(
    run: Callable[..., Tensor], value: Node, roots: dict[Node, Tensor], shape: torch.Size, dtype: torch.dtype
) -> Tensor | None:
    """Return the map of an attention: what it makes of values that are 1 at one key, 0 at all others."""
    keys, width = value.shape[-2:]
    columns = []
    for start in range(0, keys, width):
        one = torch.zeros(keys, width, dtype=dtype, device=value.device)
        count = min(width, keys - start)
        one[start : start + count, :count] = torch.eye(count, dtype=dtype, device=value.device)
        made = run(functools.partial(evaluate, given={**roots, value: one.expand(value.shape)}))
        if made.shape != (*shape[:-1], width):
            return None
        columns.append(made[..., :count])
    return torch.cat(columns, -1)
