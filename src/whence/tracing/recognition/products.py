"""Contractions in several steps as one: products that are summed afterwards, block by block, or divided afterwards.

``(A.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)``, ``A[..., :4] @ v[..., :4, :] + A[..., 4:] @ v[..., 4:, :]`` and
``(e @ v) / e.sum(-1, keepdim=True)`` are products with an attention map.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..node import Node
from ..op_call import Call, map_tensors, tensors_in
from ..replay import Recipe, UnknownFunctionError, restored
from ..tensor_info import inform, is_weight, node_of
from .contraction import Terms, align, free, summed, terms
from .softmax import is_map_along

Usual = Callable[[], Tensor]

#: kinds of operations that are products of two tensors
CONTRACTIONS = ("mix", "matmul", "linear")
#: how many products one sum may join
MOST = 64


def recorded(node: Node) -> Call | None:
    """Return the operation that made a tensor, with its operands restored; ``None`` if some are gone."""
    if node.recipe is None:
        return None
    nodes: dict[int, Node] = {}

    def restore(parent: Node) -> Tensor:
        tensor = restored(parent)
        nodes[id(tensor)] = parent
        return tensor

    try:
        args, kwargs = node.recipe.filled(restore)
    except (UnknownFunctionError, RuntimeError):
        return None
    tensors = tensors_in(args, kwargs)
    traced = [t for t in tensors if id(t) in nodes]
    return Call(
        node.name,
        node.kind,
        node.recipe.func,
        args,
        kwargs,
        node.batch,
        tensors,
        [nodes.get(id(t)) for t in tensors],
        traced,
    )


def again(call: Call, swap: dict[int, Tensor]) -> Tensor:
    """Run a recorded operation with some operands (by ``id``) replaced."""
    args, kwargs = map_tensors((call.args, call.kwargs), lambda t: swap.get(id(t), t))
    out: Tensor = call.func(*args, **kwargs)
    return out


def summed_product(call: Call) -> Usual | None:
    """Return a sum over a product of broadcast tensors as an einsum, if one of them is a map or a weight."""
    x, dims = call.traced[0], call.argument(1, "dim")
    node = node_of(x)
    if dims is None or "dtype" in call.kwargs or node.name != "mul" or node.kind not in ("gate", "scale"):
        return None
    over = {d % x.dim() for d in ([dims] if isinstance(dims, int) else dims)}
    factors = () if node.recipe is None else node.recipe.args
    if len(factors) != 2 or not all(isinstance(f, Node | Tensor) for f in factors) or len(over) != 1:
        return None
    (key,) = over
    shapes = [(1,) * (x.dim() - len(f.shape)) + tuple(f.shape) for f in factors]
    if any(shape[key] < 2 for shape in shapes) or not _is_contracted(factors, shapes, key):
        return None
    letters = string.ascii_letters[: x.dim()]
    kept = [[i for i in range(x.dim()) if shape[i] > 1 or x.shape[i] == 1] for shape in shapes]
    texts = ["".join(letters[i] for i in own) for own in kept]
    sizes = [[shape[i] for i in own] for shape, own in zip(shapes, kept, strict=True)]
    out = letters.replace(letters[key], "")

    def run() -> Tensor:
        a, b = (
            (restored(f) if isinstance(f, Node) else f).reshape(size) for f, size in zip(factors, sizes, strict=True)
        )
        made = torch.einsum(f"{texts[0]},{texts[1]}->{out}", a, b)
        return made.unsqueeze(key) if call.argument(2, "keepdim", False) else made

    return run


def distributed(call: Call) -> Usual | None:
    """Return ``q (k + r)`` as ``q k + q r``, if ``r`` is a constant for each pair of query and key (its distance).

    In the same way, a sum of maps times values is a sum of attentions: ``(A + B) v``, ``(A + 1) v``.
    """
    product = recorded(node_of(call.traced[0])) if call.name == "sum" and len(call.traced) == 1 else call
    if product is None or len(product.traced) != 2 or product.name not in ("mul", "einsum", "matmul", "bmm"):
        return None
    for t, node in zip(product.tensors, product.nodes, strict=True):
        if node is None or node.recipe is None or node.kind not in ("shift-by-constant", "add") or node.residual:
            continue
        parts = [a for a in node.recipe.args if isinstance(a, Node | Tensor)]
        wider = node.kind == "shift-by-constant" and node.flows[0].numel < node.numel
        if len(parts) == 2 and (wider or any(flow.softmax is not None for flow in node.flows)):
            return functools.partial(
                _distributed, call, product, t, parts, torch.sub if node.name == "sub" else torch.add
            )
    return None


def _distributed(call: Call, product: Call, operand: Tensor, parts: list[Any], add: Callable[..., Tensor]) -> Tensor:
    given = [restored(part, 12) if isinstance(part, Node) else part for part in parts]
    given = [t if t.shape == operand.shape else t.expand(operand.shape) for t in given]
    made = [again(product, {id(operand): t}) for t in given]
    return add(*(made if product is call else [call.func(t, *call.args[1:], **call.kwargs) for t in made]))


def _is_contracted(factors: Any, shapes: list[tuple[int, ...]], key: int) -> bool:
    """Return whether a product that is summed is one of matrices, or one with a map or a weight."""
    for mine, other in ((0, 1), (1, 0)):
        node, rest = factors[mine], factors[other]
        if isinstance(node, Tensor):
            if is_weight(node):
                return True
            continue
        features = [d for d, (m, n) in enumerate(zip(shapes[mine], shapes[other], strict=True)) if m == 1 and n > 1]
        queries = [d for d, (m, n) in enumerate(zip(shapes[mine], shapes[other], strict=True)) if m > 1 and n == 1]
        along = key - len(shapes[mine])
        if features and queries and isinstance(rest, Node):  # a product of matrices
            return True
        if not features or not isinstance(rest, Node) or not (queries or node.axes[along] == rest.axes[along]):
            continue
        if _is_map(node, along):
            return True
    return False


def _is_map(node: Node, dim: int) -> bool:
    try:
        with torch.no_grad():
            value = restored(node).detach()
    except (UnknownFunctionError, RuntimeError):
        return False
    return not value.is_meta and not bool((value < 0).any()) and is_map_along(value, dim)


def pooled(call: Call) -> Usual | None:
    """Return a product of values and a map without queries, over the same tokens, as one with a single query."""
    found = terms(call)
    if found is None or len(call.traced) != 2:
        return None
    for which in (0, 1):
        value, node, values = call.tensors[which], call.nodes[which], call.nodes[1 - which]
        over, beside = summed(found, which), free(found, which)
        alone = not beside or (which == 1 and all(value.shape[d] == 1 for d in beside))
        if not alone or len(over) != 1 or node is None or values is None or value.shape[over[0]] < 2:
            continue
        same = values.axes[summed(found, 1 - which)[0]] == node.axes[over[0]]
        if same and free(found, 1 - which) and _is_map(node, over[0]):
            return functools.partial(_one_query, call, found, which)
    return None


def _one_query(call: Call, found: Terms, which: int) -> Tensor:
    """Return a product as ``[..., 1, keys] @ [..., keys, features]``."""
    mine, other = found[0][which], found[0][1 - which]
    key = mine[summed(found, which)[0]]
    batch = "".join(c for c in found[1] if c in mine and c in other)
    features = "".join(c for c in other if c not in mine)
    map_ = align(call.tensors[which], mine, batch + key)
    values = align(call.tensors[1 - which], other, batch + key + features)
    made = torch.matmul(map_.unsqueeze(-2), values.flatten(len(batch) + 1)).squeeze(-2)
    return align(made.reshape(*made.shape[:-1], *values.shape[len(batch) + 1 :]), batch + features, found[1])


def summed_later(call: Call) -> Usual | None:
    """Return a sum over a product with a weight, ``einsum("bhsd,ohd->bsho").sum(2)``, as one product."""
    dims = call.argument(1, "dim")
    node = node_of(call.traced[0])
    node = node.flows[0] if node.name == "contiguous" else node
    if node.kind != "linear" or not node.weighted or dims is None or "dtype" in call.kwargs:
        return None
    product = recorded(node)
    found = None if product is None or call.argument(2, "keepdim", False) else terms(product)
    if product is None or found is None:
        return None
    over = {found[1][d] for d in ([dims] if isinstance(dims, int) else dims)}
    if not all(letter in term for letter in over for term in found[0]):
        return None
    out = "".join(c for c in found[1] if c not in over)
    return functools.partial(torch.einsum, f"{found[0][0]},{found[0][1]}->{out}", *product.tensors)


def projected_later(call: Call) -> Usual | None:
    """Return ``A (v W)`` as ``(A v) W``, if ``v`` is a projection itself, which the map ``A`` is not computed from."""
    found = terms(call)
    if found is None or len(call.traced) != 2 or len(call.nodes) != 2:
        return None
    for which in (0, 1):
        map_, values = call.nodes[which], call.nodes[1 - which]
        if map_ is None or values is None or not values.weighted or len(values.flows) != 1:
            continue
        inner = values.flows[0]
        layer = recorded(values) if inner.tensor is not None and _is_projection(inner) else None
        own = None if layer is None else terms(layer)
        over = summed(found, which)
        if layer is None or own is None or len(over) != 1 or map_.paths(inner) or not _is_map(map_, over[0]):
            continue
        names = dict(zip(own[1], found[0][1 - which], strict=True))  # letters of the layer -> letters of the product
        others = iter(c for c in string.ascii_letters if c not in found[0][0] + found[0][1])
        names |= {c: next(others) for term in own[0] for c in term if c not in names}
        operands = ["".join(names[c] for c in term) for term in own[0]]
        v, weight = (0, 1) if layer.nodes[0] is not None else (1, 0)
        letters = [found[0][which], operands[v], operands[weight], found[1]]
        return functools.partial(_projected, letters, call.tensors[which], layer.tensors[v], layer.tensors[weight])
    return None


def _is_projection(node: Node) -> bool:
    """Return whether a tensor is what a linear layer made, at most cut, moved or with its bias added afterwards."""
    node = node.moved_from()
    while node.kind == "shift-by-constant" and len(node.flows) == 1:
        node = node.flows[0].moved_from()
    return node.weighted


def _projected(letters: list[str], map_: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    first, second, third, out = letters
    kept = "".join(dict.fromkeys(c for c in first + second if c in third + out))
    mixed = torch.einsum(f"{first},{second}->{kept}", map_, values)
    made = torch.einsum(f"{kept},{third}->{out}", mixed, weight).contiguous()
    return inform(made, roots=(mixed,))  # heads may be summed next


def scaled_later(call: Call) -> Usual | None:
    """Return ``(c A) v`` as ``c (A v)``, if ``A`` is a map and ``c`` is the same for all keys (a gate of each head)."""
    found = terms(call)
    if found is None or len(call.traced) != 2 or len(call.nodes) != 2:
        return None
    for which in (0, 1):
        node, over = call.nodes[which], summed(found, which)
        inner = node.flows[0] if node is not None and node.kind == "scale" and len(node.flows) == 1 else None
        if node is None or node.recipe is None or inner is None or inner.softmax is None or len(over) != 1:
            continue
        ones = torch.ones(inner.shape, dtype=inner.dtype, device=inner.device)
        with torch.no_grad():
            factor = node.recipe.run(functools.partial(_ones, ones))
        if factor.shape == ones.shape and bool((factor == factor.narrow(over[0], 0, 1)).all()):
            return functools.partial(
                _scaled, call, which, inner, align(factor.narrow(over[0], 0, 1), found[0][which], found[1])
            )
    return None


def _ones(value: Tensor, _: Node) -> Tensor:
    return value


def _scaled(call: Call, which: int, inner: Node, factor: Tensor) -> Tensor:
    made = again(call, {id(call.tensors[which]): restored(inner)})
    return made if bool((factor == 1).all()) else made * factor


def summed_slices(call: Call) -> Usual | None:
    """Return a sum of all slices of a tensor, or of a multiple of each, as a sum over a dimension."""
    if len(call.traced) != 2 or call.name != "add":
        return None
    leaves: list[Node] = []
    for tensor in call.traced:
        _collect(node_of(tensor), leaves)
    leaves.sort(key=lambda leaf: leaf.seq)
    slices = [leaf.flows[0] if leaf.kind == "scale" and len(leaf.flows) == 1 else leaf for leaf in leaves]
    origins = [node.flows[0] for node in slices if node.name in ("getitem", "select", "unbind") and node.flows]
    factors = [factor for leaf in leaves if leaf.kind == "scale" for factor in _number(leaf)]
    if len(origins) < len(leaves) or len(leaves) < 3 or any(origin is not origins[0] for origin in origins):
        return None
    whole, shape = origins[0], call.traced[0].shape
    dims = [
        d for d, n in enumerate(whole.shape) if n == len(leaves) and whole.shape[:d] + whole.shape[d + 1 :] == shape
    ]
    if len(dims) != 1 or len(factors) not in (0, len(leaves)):
        return None

    def run() -> Tensor:
        x = restored(whole)
        if not factors:
            return x.sum(dims[0])
        weight = torch.stack([factor.reshape(()) for factor in factors])
        return (x * weight.reshape(-1, *(1,) * (x.dim() - dims[0] - 1))).sum(dims[0])

    return run


def _number(leaf: Node) -> list[Tensor]:
    """Return the one number that a tensor is multiplied by."""
    given = () if leaf.recipe is None or leaf.name != "mul" else leaf.recipe.args
    return [a for a in given if isinstance(a, Tensor) and a.numel() == 1]


def divided_later(call: Call) -> Usual | None:
    """Return ``(e @ v) / e.sum()`` as ``(e / e.sum()) @ v``, if ``e / e.sum()`` is an attention map."""
    if len(call.traced) != 2 or len(call.args) != 2:
        return None
    above, below = call.nodes[:2]
    product = None if above is None or above.kind not in ("mix", "matmul") else recorded(above)
    found = None if product is None else terms(product)
    if product is None or found is None or below is None or call.args[1].dim() != call.args[0].dim():
        return None
    for which in (0, 1):
        mine = found[0][which]
        over = summed(found, which)
        wide = [n for c, n in zip(found[1], call.args[1].shape, strict=True) if c not in mine]
        if len(over) != 1 or any(n > 1 for n in wide):
            continue
        e = product.tensors[which]
        total = align(call.args[1], found[1], mine)
        with torch.no_grad():
            map_ = e.detach() / total.detach()
            if map_.shape != e.shape or bool((map_ < 0).any()) or not is_map_along(map_, over[0]):
                continue
        return functools.partial(_divided_first, product, e, call.args[1], found[1], mine)
    return None


def _divided_first(product: Call, e: Tensor, total: Tensor, out: str, mine: str) -> Tensor:
    return again(product, {id(e): e / align(total, out, mine)})


def blocks(call: Call) -> tuple[Usual, list[Node]] | None:
    """Return a sum of products of slices that together are a whole tensor as one product.

    The other operands are slices of a tensor, too, or put side by side: values beside a learned memory, heads that are
    projected one by one.

    Returns:
        The product, and the products that it replaces.
    """
    if len(call.traced) != 2 or call.name != "add":
        return None
    leaves: list[Node] = []
    for tensor in call.traced:
        _collect(node_of(tensor), leaves)
    leaves.sort(key=lambda leaf: leaf.seq)  # slices in order, whatever the order of the summands
    if not 2 <= len(leaves) <= MOST or any(leaf.kind not in CONTRACTIONS for leaf in leaves):
        return None
    if _one_product(leaves) is None:
        return None
    read = [node for leaf in leaves if leaf.kind == "linear" for node in leaf.flows]  # heads that are projected
    return functools.partial(_sum_of_blocks, leaves), leaves + read


def _sum_of_blocks(leaves: list[Node]) -> Tensor:
    found = _one_product(leaves)
    if found is None:
        raise UnknownFunctionError
    return again(*found)


def _one_product(leaves: list[Node]) -> tuple[Call, dict[int, Tensor]] | None:
    """Return the first of some products, and the operands by which it becomes the sum of all."""
    products = [product for product in map(recorded, leaves) if product is not None]
    found = [terms(product) for product in products]
    if len(products) != len(leaves) or found[0] is None or any(other != found[0] for other in found):
        return None
    sides = [([p.tensors[i] for p in products], [p.nodes[i] for p in products], summed(found[0], i)) for i in (0, 1)]
    if any(len(dims) != 1 for _, _, dims in sides):
        return None
    whole = [_whole(*side) for side in sides]
    if whole == [None, None]:
        return None
    given = [
        w if w is not None else _side_by_side(parts, dims[0]) for w, (parts, _, dims) in zip(whole, sides, strict=True)
    ]
    first = products[0]
    return first, {id(first.tensors[i]): given[i] for i in (0, 1)}


def _side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    """Return some tensors put together along a dimension; constants may be the same for all samples."""
    shapes = [torch.Size((*part.shape[:dim], 1, *part.shape[dim + 1 :])) for part in parts]
    common = torch.broadcast_shapes(*shapes)
    pairs = zip(parts, shapes, strict=True)
    wide = [p if own == common else p.expand(*common[:dim], -1, *common[dim + 1 :]) for p, own in pairs]
    return torch.cat(wide, dim)


def _collect(node: Node, leaves: list[Node]) -> None:
    """Collect the summands of a sum."""
    if len(leaves) > MOST:
        return
    if node.kind == "add" and node.name == "add" and not node.residual:
        for parent in node.flows:
            _collect(parent, leaves)
    elif node.kind == "shift" and _adds_zero(node.recipe):
        _collect(node.flows[0], leaves)
    else:
        leaves.append(node)


def _adds_zero(recipe: Recipe | None) -> bool:
    return recipe is not None and any(isinstance(a, int | float) and a == 0 for a in recipe.args)


def _whole(parts: list[Tensor], nodes: list[Node | None], dims: list[int]) -> Tensor | None:
    """Return the tensor or weight that some slices are cut from, if they are all of it, in order."""
    if all(node is None for node in nodes):
        return torch.cat(parts, dims[0]) if _is_whole_weight(parts) else None
    origins = [node.flows[0] for node in nodes if node is not None and len(node.flows) == 1]
    if len(origins) != len(parts) or any(origin is not origins[0] for origin in origins):
        return None
    try:
        whole = restored(origins[0])
        with torch.no_grad():
            return whole if torch.equal(torch.cat(parts, dims[0]), whole) else None
    except (UnknownFunctionError, RuntimeError):
        return None


def _is_whole_weight(parts: list[Tensor]) -> bool:
    """Return whether some constants are different slices of one weight, and together all of it."""
    memory = {part.untyped_storage().data_ptr() for part in parts}
    size = sum(part.numel() * part.element_size() for part in parts)
    apart = len({part.data_ptr() for part in parts}) == len(parts)
    return all(map(is_weight, parts)) and len(memory) == 1 and apart and size == parts[0].untyped_storage().nbytes()


def as_matmul(call: Call) -> Usual | None:
    """Return a product of two matrices with a map by another name (``F.linear``, ``tensordot``) as a matrix product."""
    found = terms(call)
    if found is None or len(call.traced) != 2 or any(t.dim() != 2 for t in call.tensors):
        return None
    if not any(
        _is_map(node, summed(found, i)[0]) for i, node in enumerate(call.nodes) if node is not None and summed(found, i)
    ):
        return None
    (key,) = (c for c in found[0][0] if c not in found[1])
    rows, columns = found[1][0], found[1][1]
    first = 0 if rows in found[0][0] else 1
    left, right = call.tensors[first], call.tensors[1 - first]
    return lambda: torch.matmul(
        align(left, found[0][first], rows + key), align(right, found[0][1 - first], key + columns)
    )
