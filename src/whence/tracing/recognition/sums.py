"""Sums in their usual form: ``x - (-f)``, ``x.clone() + f`` and ``(2 * x + 2 * f) / 2`` are ``x + f``.

Copies, multiples, selections and sums are followed back to the tensors that they combine. The operation as a function
of these is evaluated, which gives the factor of each. If all but one, the residual stream ``x``, are functions of that
one, the operation is run as ``c * (x + (f + g))``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..node import Node, walk
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, evaluate, remembered, restored, same, sample
from ..tensor_info import is_weight, node_of
from .assembled import parts_of

#: operations that may complete a sum
COMPLETING = {
    "add", "sub", "neg", "mul", "div", "sum", "mean", "einsum", "matmul", "linear", "cat", "stack", "scatter_add",
    "index_add", "getitem", "select", "cumsum", "copy", "setitem",
}  # fmt: skip
#: those that make a multiple of one tensor
SCALING = {"mul", "div", "neg"}
#: kinds of operations that copy, move, select, multiply and add
COMBINING = {"structural", "selecting", "scale", "add", "reduce", "identity", "linear", "shift", "shift-by-constant"}
#: how many operations are followed
REACH = 64
#: relative difference of a function from a multiple
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
#: difference up to which a factor counts as 0 or 1
ROUNDING = 1e-6


class Term(NamedTuple):
    """One tensor of a sum.

    Attributes:
        factor: what it is multiplied by.
        order: how its dimensions (without those of size 1) are permuted before it is reshaped; ``None``: not at all.
    """

    factor: float
    order: tuple[int, ...] | None

    def laid_out(self, tensor: Tensor, shape: torch.Size) -> Tensor:
        """Return a tensor in the shape of the sum."""
        dims = self._dims(tensor.shape, shape)
        if dims is not None:
            return tensor.permute(dims)
        moved = tensor if self.order is None else tensor.squeeze().permute(self.order)
        return moved if moved.shape == shape else moved.reshape(shape)

    def _dims(self, own: torch.Size, shape: torch.Size) -> list[int] | None:
        """Return the order of all dimensions of a tensor in a sum of a shape; ``None`` if their number differs."""
        if self.order is None or len(own) != len(shape):
            return None
        ones, others = ([i for i, n in enumerate(own) if (n == 1) is one] for one in (True, False))
        moved, kept = (others[i] for i in self.order), iter(ones)
        return [next(kept) if n == 1 else next(moved) for n in shape]

    def undone(self, tensor: Tensor, shape: torch.Size) -> Tensor:
        """Return a tensor of the sum's shape in the layout that the term has, of some shape."""
        dims = self._dims(shape, tensor.shape)
        if dims is not None:
            return tensor.permute([dims.index(i) for i in range(len(dims))])
        if self.order is not None:
            own = [n for n in shape if n != 1]
            back = [self.order.index(i) for i in range(len(own))]
            tensor = tensor.reshape([own[i] for i in self.order]).permute(back)
        return tensor if tensor.shape == shape else tensor.reshape(shape)


Terms = dict[Node, Term]


def usual_sum(call: Call) -> Callable[[], Tensor] | None:
    """Return a sum in its usual form; ``None`` if it has that form, or is no sum of a tensor and functions of it."""
    if not call.traced or (call.inplace and call.name not in ("add", "sub")):
        return None
    if call.name in ("add", "sub") and len(call.traced) == 1 and len(call.tensors) < 2:  # a number is added
        return None
    if call.name not in ("add", "sub") and any(map(is_weight, call.tensors)):  # learned weights of layers
        return None
    nodes = [node_of(t) for t in call.traced]
    if _is_usual(call, nodes):
        if call.inplace and nodes[0].seq < nodes[1].seq:  # what is overwritten may be the stream of further branches
            return functools.partial(torch.add, *call.args[:2])
        return _computed_before(call, nodes) or _bias_moved(call)
    if _is_plain(call, nodes):
        return _bias_moved(call)
    recipe = Recipe.of(call, {id(t): node for t, node in zip(call.traced, nodes, strict=True)}, 0)
    found = _terms(recipe, nodes, _size(call))
    if found is None or (call.name not in ("add", "sub") and not _joins(nodes, found[0])):
        return _bias_moved(call)
    stream = _stream(found[0])
    if stream is None:
        return _bias_moved(call)
    node, terms = stream
    if len(terms) == 1:
        return _single(call, node, terms[node], found[1], joined=len(found[0]) > 1)
    return _written(nodes, *_multiple(nodes, node, terms), found[1])


def _is_usual(call: Call, nodes: list[Node]) -> bool:
    """Return whether a call adds a tensor and a function of it, neither of them taken apart any further."""
    if call.name != "add" or "alpha" in call.kwargs or len(nodes) != 2:
        return False
    x, f = sorted(nodes, key=lambda node: node.seq)
    if f.between(x) is None:
        return False
    own, parts = _parts([x], x.numel), _parts([f], f.numel, through=True)
    if own is None or parts is None or set(own) & set(parts):
        return own is None or parts is None
    nearest = _nearest(max(parts, key=lambda node: node.seq))
    return nearest is None or nearest.seq <= x.seq or not _summands(nearest) & set(parts)


def _summands(total: Node) -> set[Node]:
    """Return the tensors that a residual sum adds."""
    return set(_parts([total], total.numel, through=True) or ())


def _is_plain(call: Call, nodes: list[Node]) -> bool:
    """Return whether a call is no sum, or one of two tensors that are not taken apart and no residual sums."""
    parts = _parts(nodes, _size(call))
    if parts is None or (len(parts) == 1 and call.name not in ("add", "sub", "sum", *SCALING)):
        return True
    if parts != sorted(nodes, key=lambda node: node.seq):
        return False
    return len(nodes) == 1 or (call.name == "add" and "alpha" not in call.kwargs and not any(n.residual for n in nodes))


def _computed_before(call: Call, nodes: list[Node]) -> Callable[[], Tensor] | None:
    """Return a residual sum that the model has computed before as a copy of that."""
    total = max(nodes, key=lambda node: node.seq).sum
    tensor = None if total is None or call.inplace else total.tensor
    if total is None or tensor is None or not total.residual or set(total.flows) != set(nodes):
        return None
    return functools.partial(torch.clone, tensor)


def _joins(nodes: list[Node], terms: Terms) -> bool:
    """Return whether several tensors are added on the way, or a multiple of one is undone."""
    if len(terms) > 1:
        return True
    inner = walk(nodes, lambda node: () if node in terms else node.flows)
    return any(len(node.flows) > 1 for node in inner if node not in terms) or nodes[0] not in terms


def _single(call: Call, node: Node, term: Term, shape: torch.Size, joined: bool) -> Callable[[], Tensor] | None:
    """Return a multiple of one tensor as that, where what was added or multiplied cancels."""
    tensor = node.tensor
    if tensor is None or term.order is not None:
        return None
    undone = call.name in ("sum", *SCALING) and term.factor == 1
    added = call.name in ("add", "sub") and len(call.traced) > 1
    if not (joined or undone or added):
        return None
    return lambda: _times(tensor if tensor.shape == shape else tensor.reshape(shape), term.factor)


def _times(tensor: Tensor, factor: float) -> Tensor:
    return torch.clone(tensor) if factor == 1 else torch.mul(tensor, factor)


def _written(nodes: list[Node], stream: Node, terms: Terms, shape: torch.Size) -> Callable[[], Tensor] | None:
    """Return ``c * (x + (f + g))``, of a stream and the other terms; ``None`` if one of the tensors is gone."""
    own = terms[stream]
    x = _tensor(stream, nodes)
    others = []
    for node in sorted(terms, key=lambda node: node.seq):
        tensor = _tensor(node, nodes) if node is not stream else x
        if tensor is None or x is None or tensor.dtype != x.dtype:
            return None
        if node is not stream:
            others.append((tensor, terms[node]))
    assert x is not None

    def run() -> Tensor:
        branches = []
        for tensor, term in others:
            same_layout = term.order == own.order and tensor.shape == x.shape
            laid = tensor if same_layout else own.undone(term.laid_out(tensor, shape), x.shape)
            factor = term.factor / own.factor
            branches.append(laid if abs(factor - 1) < ROUNDING else torch.mul(laid, factor))
        total = torch.add(x, functools.reduce(torch.add, branches))
        total = total if own.factor == 1 else torch.mul(total, own.factor)
        return own.laid_out(total, shape)

    return run


def _tensor(node: Node, nodes: list[Node]) -> Tensor | None:
    """Return a tensor; if it is gone, its slice of the stack or concatenation that it is part of."""
    if node.tensor is not None:
        return node.tensor
    for whole in walk(nodes, lambda here: here.flows if here.seq > node.seq else ()):
        parts = parts_of(whole)
        if parts is None or node not in parts or whole.tensor is None or whole.name != "stack":
            continue
        recipe = whole.recipe
        assert recipe is not None
        dim = recipe.args[1] if len(recipe.args) > 1 else recipe.kwargs.get("dim", 0)
        return whole.tensor.select(dim, parts.index(node))
    return None


def _stream(terms: Terms) -> tuple[Node, Terms] | None:
    """Return the term of which all others are functions, and the terms; ``None`` if there is no such term.

    A residual sum among the terms of which others are no function is taken apart. Terms that an earlier residual sum
    has added are one term.
    """
    while True:
        first = min(terms, key=lambda node: node.seq)
        negative = [term.factor < 0 for term in terms.values()]
        turned = terms[first].factor < 0 and not all(negative)
        sums = [node for node in terms if node.residual and _summands(node) & set(terms)]
        if not sums and not turned and all(_is_branch(node, first) for node in terms if node is not first):
            return _collected(first, terms)
        sums = sums or [node for node in terms if node.residual]
        opened = _opened(max(sums, key=lambda node: node.seq), terms) if sums else None
        if not opened:
            return None
        terms = opened


def _is_branch(node: Node, stream: Node) -> bool:
    """Return whether a tensor is a function of a stream, and not of its single elements."""
    return node.root is not stream.root and stream.source_of(node) is not None


def _opened(total: Node, terms: Terms) -> Terms | None:
    """Return terms with one of them, a residual sum, replaced by its own terms."""
    found = None if total.recipe is None else _terms(total.recipe, list(total.flows), total.numel)
    if found is None:
        return None
    out = {node: term for node, term in terms.items() if node is not total}
    outer = terms[total]
    for node, term in found[0].items():
        factor = term.factor * outer.factor + (out[node].factor if node in out else 0.0)
        out[node] = Term(_rounded(factor), outer.order if term.order is None else term.order)
    return {node: term for node, term in out.items() if term.factor}


def _collected(first: Node, terms: Terms) -> tuple[Node, Terms]:
    """Return the stream and the terms, with those that the last residual sum has added as one term, that sum."""
    last = max(terms, key=lambda node: node.seq)
    opened = _opened(last, terms) if last.residual and last is not first else None  # perhaps a sum of branches
    if opened:
        stream, found = _collected(first, opened)
        if stream is not first:
            return stream, found
    for total in (last.sum, _nearest(last)):
        if total is None or not total.residual or total.seq <= first.seq or total.tensor is None:
            continue
        own: Terms | None = {total: Term(1.0, None)}
        while own and (unknown := [node for node in own if node not in terms]):
            newest = max(unknown, key=lambda node: node.seq)
            own = _opened(newest, own) if newest.residual else None
        if not own:
            continue
        ratios = [terms[node].factor / term.factor for node, term in own.items()]
        rest = {node: term for node, term in terms.items() if node not in own}
        if max(ratios) - min(ratios) < ROUNDING and all(_is_branch(node, total) for node in rest):
            return total, {**rest, total: Term(_rounded(ratios[0]), terms[first].order)}
    return first, terms


def _multiple(nodes: list[Node], stream: Node, terms: Terms) -> tuple[Node, Terms]:
    """Return the stream and the terms; for the stream, its last multiple or copy of which all others are functions."""
    others = {node: term for node, term in terms.items() if node is not stream}
    inner = walk(nodes, lambda node: () if node in terms else node.flows)
    for node in sorted(inner, key=lambda node: -node.seq):
        if node in terms or len(node.flows) != 1 or node.recipe is None or node.shape != stream.shape:
            continue
        if any(other.between(node) is None for other in others) or node.tensor is None:
            continue
        found = _terms(node.recipe, list(node.flows), node.numel)
        if found is not None and list(found[0]) == [stream] and found[0][stream].order is None:
            factor = _rounded(terms[stream].factor / found[0][stream].factor)
            return node, {**others, node: Term(factor, terms[stream].order)}
    return stream, terms


def _nearest(node: Node) -> Node | None:
    """Return the last residual sum that a tensor is computed from."""
    found = walk([node], lambda here: () if here.residual and here is not node else here.flows)
    return max((here for here in found if here.residual and here is not node), key=lambda n: n.seq, default=None)


def _terms(recipe: Recipe, nodes: list[Node], size: int) -> tuple[Terms, torch.Size] | None:
    """Return the tensors of which an operation is a sum of multiples, and its shape; ``None`` if it is none."""
    parts = _parts(nodes, size)
    if parts is None or parts[0].device.type == "meta" or any(p.numel != parts[0].numel for p in parts):
        return None
    found = remembered("sum", nodes, parts, lambda: _factors(recipe, parts), recipe)
    if found is None:
        return None
    factors, shape = found
    terms = {part: term for part, term in zip(parts, factors, strict=True) if term.factor}
    return (terms, shape) if terms else None


def _factors(recipe: Recipe, parts: list[Node]) -> tuple[list[Term], torch.Size] | None:
    """Return the factor and the layout of each tensor in an operation that is linear in them."""
    values = [sample(part, i) for i, part in enumerate(parts)]
    nothing = {part: torch.zeros_like(value) for part, value in zip(parts, values, strict=True)}
    out = []
    try:
        with torch.no_grad():
            for part, value in zip(parts, values, strict=True):
                found = recipe.run(functools.partial(evaluate, given={**nothing, part: value}))
                term = _term(found, value)
                if term is None:
                    return None
                out.append(term)
    except (UnknownFunctionError, RuntimeError, IndexError):
        return None
    return out, found.shape


def _term(found: object, value: Tensor) -> Term | None:
    """Return how a tensor becomes another one by a factor and another layout; ``None`` if it is something else."""
    if not isinstance(found, Tensor) or found.numel() != value.numel() or not found.is_floating_point():
        return None
    if not bool(found.any()):
        return Term(0.0, None)
    dims = [n for n in value.shape if n != 1]
    wanted = [n for n in found.shape if n != 1]
    orders = itertools.permutations(range(len(dims))) if 1 < len(dims) <= 5 and len(wanted) == len(dims) else ()
    matching = [order for order in orders if [dims[i] for i in order] == wanted and list(order) != sorted(order)]
    tolerance = TOLERANCE.get(value.dtype, 2e-2)
    for order in (None, *matching):
        own = Term(1.0, order).laid_out(value, found.shape).double()
        factor = float((own * found).sum() / (own * own).sum())
        if math.isfinite(factor) and same(found.double(), factor * own, tolerance):
            return Term(_rounded(factor), order)
    return None


def _rounded(factor: float) -> float:
    near = round(factor)
    return float(near) if abs(factor - near) < ROUNDING else factor


def _parts(nodes: Sequence[Node], size: int, through: bool = False) -> list[Node] | None:
    """Return the tensors that others are combined of, first one first; ``None`` if they are too many.

    Args:
        nodes: the others.
        size: how many elements the combination has; residual sums and slices of that size are not taken apart.
        through: whether those among the others that are residual sums are taken apart.
    """
    parts: dict[int, Node] = {}
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.seq in seen:
            continue
        seen.add(node.seq)
        whole = node.numel == size and (_selects(node) or (node.residual and not (through and node in nodes)))
        if _combines(node) and not whole and not _is_rearranged(node):
            stack += node.flows
        else:
            parts[node.seq] = node
        if len(seen) > REACH:
            return None
    return [parts[seq] for seq in sorted(parts)]


def _size(call: Call) -> int:
    """Return how many elements a call makes, at least if it is a sum."""
    sizes = [t.numel() for t in call.tensors]
    return sum(sizes) if call.name in ("cat", "stack") else sizes[0] if call.name in ("setitem", "copy") else max(sizes)


def _combines(node: Node) -> bool:
    """Return whether a tensor is a copy, selection, multiple or sum of others, without weights of the model."""
    if node.kind not in COMBINING or not node.flows or node.recipe is None or node.weighted or node.learned:
        return False
    if node.kind.startswith("shift"):
        return all(isinstance(a, Node) or _is_zero(a) for a in node.recipe.args)
    if node.kind in ("scale", "linear") and any(map(_is_zero, node.recipe.args)):  # still an operation of the model
        return False
    return node.kind != "scale" or not any(is_weight(t) or _varies(t) for t in _constants(node.recipe))


def _is_rearranged(node: Node) -> bool:
    """Return whether a tensor is another one in a layout that cannot be undone: that one is gone, or merged axes."""
    whole = node.layout()
    if whole is node or (_combines(whole) and not whole.residual):
        return False
    if whole.tensor is None or whole.device.type == "meta":
        return node.tensor is not None
    return not remembered("layout", [node], [whole], lambda: _is_simple(node, whole))


def _is_simple(node: Node, whole: Node) -> bool:
    value = sample(whole)
    try:
        with torch.no_grad():
            return _term(evaluate(node, {whole: value}), value) is not None
    except (UnknownFunctionError, RuntimeError):
        return False


def _selects(node: Node) -> bool:
    """Return whether a tensor is a slice of another one that is not put together of several."""
    if len(node.flows) != 1:
        return False
    (whole,) = node.flows
    return whole.numel > node.numel and (whole.residual or not _combines(whole))


def _varies(constant: Tensor) -> bool:
    """Return whether a constant multiplies entries with different numbers: a rotation of queries, for instance."""
    return constant.numel() > 1 and (constant.is_meta or bool((constant != constant.flatten()[0]).any()))


def _is_zero(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.is_meta and not is_weight(value) and not bool(value.any())
    return isinstance(value, int | float) and value == 0


def _constants(recipe: Recipe) -> list[Tensor]:
    return [a for a in recipe.args if isinstance(a, Tensor)]


def gated_sum(call: Call) -> Callable[[], Tensor] | None:
    """Return ``x + w * (f - x)``, with a weight ``w`` of the model, as ``(1 - w) * x + w * f``: no residual sum."""
    if call.name not in ("add", "sub") or len(call.traced) != 2 or "alpha" in call.kwargs:
        return None
    for mine, other in ((0, 1), (1, 0)):
        x, product = call.nodes[mine], call.nodes[other]
        if x is None or product is None or product.kind != "scale" or (call.name == "sub" and mine):
            continue
        factors = [] if product.recipe is None or product.name != "mul" else list(product.recipe.args[:2])
        for difference, gate in (factors, factors[::-1]) if len(factors) == 2 else ():
            f = _replaces(x, difference, -1 if call.name == "sub" else 1)
            if f is not None and isinstance(gate, Tensor):
                return functools.partial(_mixed, call.tensors[mine], f, gate)
    return None


def _mixed(x: Tensor, f: Tensor, w: Tensor) -> Tensor:
    return torch.add(w * f, (1 - w) * x)


def _replaces(x: Node, difference: object, sign: int) -> Tensor | None:
    """Return ``f``, if a tensor is ``f - x`` (or, by the sign, ``x - f``)."""
    if not isinstance(difference, Node) or difference.kind != "add" or difference.recipe is None:
        return None
    found = _terms(difference.recipe, list(difference.flows), difference.numel)
    whole = None if x.recipe is None or not x.flows or x.residual else _terms(x.recipe, list(x.flows), x.numel)
    own = {x: Term(1.0, None)} if whole is None or not _combines(x) else whole[0]
    if found is None or any(node not in found[0] for node in own):
        return None
    factors = [(node, term.factor + (sign * own[node].factor if node in own else 0)) for node, term in found[0].items()]
    left = [(node, factor) for node, factor in factors if abs(factor) > ROUNDING]
    if len(left) != 1 or left[0][1] != sign or any(term.order is not None for term in found[0].values()):
        return None
    return left[0][0].tensor if left[0][0].shape == x.shape else None


def _bias_moved(call: Call) -> Callable[[], Tensor] | None:
    """Return ``(x + f) + b`` and ``(x + b) + f`` as ``x + (f + b)``: a bias that is added late is one of the branch."""
    if call.name not in ("add", "sub") or "alpha" in call.kwargs or len(call.args) != 2:
        return None
    if len(call.traced) == 1:
        return _bias_after(call)
    if call.name == "sub":
        return None
    for mine, other in ((0, 1), (1, 0)):
        node, branch = call.nodes[mine], call.nodes[other]
        if node is None or branch is None or node.kind != "shift-by-constant" or node.name != "add":
            continue
        bias = next(iter(_constants(node.recipe)), None) if node.recipe is not None else None
        x, f = node.flows[0].tensor, call.tensors[other]
        if bias is None or x is None or not _is_bias(bias, node) or branch.between(node) is not None:
            continue
        if branch.between(node.flows[0].layout()) is not None:
            return functools.partial(_biased, x, f, bias)
    return None


def _bias_after(call: Call) -> Callable[[], Tensor] | None:
    """Return ``(x + f) + b`` as ``x + (f + b)``."""
    bias = next((t for t in call.tensors if not t.requires_grad), None)
    last = node_of(call.traced[0])
    total = last.layout()
    if bias is None or not total.residual or not _is_bias(bias, total):
        return None
    inner = [node for node in walk([last], lambda node: () if node is total else node.flows) if node is not last]
    read = last.linear_uses + last.other_uses > 0 or any(n.linear_uses + n.other_uses > 1 for n in inner)
    if read or len(total.flows) != 2:  # before the bias was added
        return None
    if call.name == "sub" and call.args[0] is bias:
        return None
    try:
        x, f = (restored(node) for node in sorted(total.flows, key=lambda node: node.seq))
    except (UnknownFunctionError, RuntimeError):
        return None
    add = torch.sub if call.name == "sub" else torch.add
    return lambda: _biased(x, f, bias, add).reshape(last.shape)


def _biased(x: Tensor, f: Tensor, bias: Tensor, add: Callable[..., Tensor] = torch.add) -> Tensor:
    return torch.add(x, add(f, bias))


def _is_bias(constant: Tensor, node: Node) -> bool:
    """Return whether a constant is a weight of the model with one value for each feature."""
    return is_weight(constant) and constant.dim() == 1 and constant.shape == node.shape[-1:]


def undone(call: Call) -> Callable[[], Tensor] | None:
    """Return a constant that is added and subtracted again, ``(x + b) - b``, as the tensor itself."""
    node = node_of(call.traced[0]) if len(call.traced) == 1 and len(call.args) == 2 else None
    if node is None or node.kind != "shift-by-constant" or node.flows[0].shape != node.shape or call.traced[0].is_meta:
        return None
    inner, recipe = node.flows[0], Recipe.of(call, {id(call.traced[0]): node}, 0)
    value = sample(inner)
    try:
        with torch.no_grad():
            found = recipe.run(functools.partial(evaluate, given={inner: value}))
            if not same(found.double(), value.double(), TOLERANCE.get(value.dtype, 2e-2)):
                return None
    except (UnknownFunctionError, RuntimeError):
        return None
    return lambda: torch.clone(restored(inner))
