"""Gated units: a tensor times an elementwise function of another one, whatever torch calls it is written with.

Copies, joins, slices, elementwise functions and products are followed back to the tensors that they are computed from.
Where these are two, ``g`` and ``u``, and the operation as a function of them is elementwise and proportional to ``u``,
it is run as ``u * f(g)``: ``(u * g) * sigmoid(g)``, ``F.glu(cat([g * u, g], -1))`` and
``.5 * g * u + .5 * g * u * tanh(g / 2)`` are ``u * silu(g)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ...capture.tape import checking
from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, dominator, evaluate, restored, same, sample
from ..tensor_info import node_of
from .contraction import Terms, align, summed, terms
from .elementwise import FAR, ElementwiseFunction, functions, known_operands
from .origins import between, is_over_stack, origins

#: operations that may complete a gated unit
COMPLETING = {"mul", "div", "add", "sub", "where", "masked_fill"}
#: relative difference of a function from one that is proportional to a tensor
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

#: how many operations back the tensor is looked for that all factors are computed from
DISTANCE = 256

Form = tuple[Callable[[], Tensor], list[Node]]
Function = Callable[[Tensor, Tensor], Tensor]


def usual_gate(call: Call) -> Form | None:
    """Return a gated unit as values times a function of the gate; ``None`` if it has that form, or is none.

    Sums on the way, such as ``f - x`` in ``x + g * (f - x)``, are no residual sums.
    """
    nodes = functions(call)
    if not call.traced or call.traced[0].is_meta:
        return None
    stream = dominator(nodes, DISTANCE) if len(nodes) > 1 else None
    if stream is not None and stream.kind == "structural" and len(stream.moved_from().flows) > 1:
        stream = None  # a stack of tensors, of which these are slices
    parts = [origins([node], stream) for node in nodes]
    roots = list({root: root for part in parts for root in part})
    shared = len(roots) < sum(map(len, parts))
    alike = len({root.shape for root in roots}) == 1 or call.name in ("add", "sub")
    if len({root.dtype for root in roots}) != 1 or not alike or not _may_gate(call, nodes, stream, shared):
        return None
    try:
        with torch.no_grad(), checking():
            mixture = len(roots) == 3 and shared
            run = _as_gate(call, roots) if len(roots) == 2 else _as_mixture(call, roots) if mixture else None
    except (UnknownFunctionError, RuntimeError):
        return None
    sums = [step for node in nodes for step in between(node, stream) if step.residual and step not in roots]
    return None if run is None else (run, sums)


def _may_gate(call: Call, nodes: list[Node], stream: Node | None, shared: bool) -> bool:
    """Return whether an operation may complete a gated unit that is not in its usual form."""
    if call.name == "mul" and len(nodes) == 2:
        return shared
    return call.name == "div" or any(node.kind == "gate" for end in nodes for node in between(end, stream))


def _as_gate(call: Call, roots: list[Node]) -> Callable[[], Tensor] | None:
    recipe = Recipe.of(call, known_operands(call), 0)
    here = [restored(root).detach() for root in roots]
    for gate, values in ((0, 1), (1, 0)):

        def at(g: Tensor, u: Tensor, gate: int = gate, values: int = values) -> Tensor:
            return recipe.run(functools.partial(evaluate, given={roots[gate]: g, roots[values]: u}))

        def swapped(u: Tensor, g: Tensor, at: Function = at) -> Tensor:
            return at(g, u)

        g, u = here[gate], here[values]
        if not _fits(roots[gate], roots[values]) or at(g, u).shape != u.shape:
            continue
        if is_proportional(at, g, u) and not is_proportional(swapped, u, g):
            found = _form(call, roots[gate], roots[values], at, g)
            if found is not None or roots[gate].between(roots[values]) is not None:  # a residual sum
                return found
        if call.name in ("add", "sub"):
            return _as_product(roots[gate], roots[values], at)
    return None


def _as_product(gate: Node, values: Node, at: Function) -> Callable[[], Tensor] | None:
    """Return a sum that is a product of functions of two tensors as that: ``u * f(g) + f(g)`` is ``(u + 1) * f(g)``."""
    tolerance = TOLERANCE.get(values.dtype, 2e-2)
    (g, u), (h, v) = ((sample(gate, i), sample(values, i)) for i in (0, 1))
    kept = torch.rand(g.shape, generator=torch.Generator().manual_seed(0)).to(u.device) < 0.5
    mixed = at(torch.where(kept, g, h), torch.where(kept, u, v))
    rows = same(at(g, u) * at(h, v), at(g, v) * at(h, u), tolerance)
    if not rows or not same(torch.where(kept, mixed, 0), torch.where(kept, at(g, u), 0), tolerance):
        return None
    g, u = torch.ones_like(g), torch.ones_like(u)
    size = float(at(g, u).flatten()[0])
    if not size or not same(at(g, u), torch.full_like(u, size), tolerance):
        return None
    parts = [_factor(gate, lambda x: at(x, torch.ones_like(x)) / size), _factor(values, lambda x: at(g, x))]
    return lambda: torch.mul(*(part() for part in parts))


def _factor(root: Node, function: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """Return a function of a tensor as a sum with a number, if it is that up to a factor, or as one operation."""
    ones = torch.ones_like(sample(root))
    start, slope = (float(t.flatten()[0]) for t in (function(0 * ones), function(ones) - function(0 * ones)))
    if not slope or abs(float(function(3 * ones).flatten()[0]) - start - 3 * slope) > 1e-6 * abs(slope):
        return lambda: ElementwiseFunction(function).applied(restored(root))
    return lambda: _times(restored(root) + start / slope if start else restored(root), slope)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if abs(factor - 1) < 1e-6 else x * factor


def _as_mixture(call: Call, roots: list[Node]) -> Callable[[], Tensor] | None:
    """Return a sum of two tensors with functions of a gate as factors as ``x * a(g) + f * b(g)``: a highway."""
    recipe = Recipe.of(call, known_operands(call), 0)
    for gate in roots:
        values = [root for root in roots if root is not gate]
        alike = values[0].shape == values[1].shape and _fits(gate, values[0])
        found = _mixture(recipe, gate, values) if alike else None
        if found is not None:
            return found
    return None


def _mixture(recipe: Recipe, gate: Node, values: list[Node]) -> Callable[[], Tensor] | None:
    g, *here = (restored(node).detach() for node in (gate, *values))
    tolerance = TOLERANCE.get(g.dtype, 2e-2)
    products = [functools.partial(_term, recipe, gate, values, node) for node in values]
    if not all(is_proportional(at, g, u) for at, u in zip(products, here, strict=True)):
        return None
    whole = recipe.run(functools.partial(evaluate, given=dict(zip((gate, *values), (g, *here), strict=True))))
    factors = [_at_one(at) for at in products]
    alone = [all(same(f.at(c * g), torch.ones_like(g), tolerance) for c in (1.0, -0.5)) for f in factors]
    if all(alone) or not same(products[0](g, here[0]) + products[1](g, here[1]), whole, tolerance):
        return None
    return functools.partial(_mixed, gate, values, factors, alone)


def _term(recipe: Recipe, gate: Node, values: list[Node], of: Node, g: Tensor, u: Tensor) -> Tensor:
    """Return what a sum is for some gate and one of its values, where all others are 0."""
    given = {gate: g, **{node: u if node is of else torch.zeros_like(u) for node in values}}
    return recipe.run(functools.partial(evaluate, given=given))


def _at_one(function: Function) -> ElementwiseFunction:
    """Return what multiplies values in a function that is proportional to them."""
    return ElementwiseFunction(lambda g: function(g, torch.ones_like(g)))


def _fits(gate: Node, values: Node) -> bool:
    """Return whether a gate has one entry for each value, or for several."""
    sizes = zip(gate.shape, values.shape, strict=False)
    return len(gate.shape) == len(values.shape) and all(size in (1, whole) for size, whole in sizes)


def _mixed(gate: Node, values: list[Node], factors: list[ElementwiseFunction], alone: list[bool]) -> Tensor:
    given = zip(map(restored, values), factors, alone, strict=True)
    return torch.add(*(v if one else v * factor.applied(restored(gate)) for v, factor, one in given))


def paired(call: Call) -> Callable[[], Tensor] | None:
    """Return a product with a softmax over two or three stacked tensors, summed over these, as a sum of products."""
    found = terms(call)
    if found is None or len(call.traced) != 2:
        return None
    for which in (0, 1):
        node, over = node_of(call.tensors[which]).moved_from(), summed(found, which)
        if node.kind != "softmax" or not is_over_stack(node) or len(over) != 1:
            continue
        if call.tensors[which].shape[over[0]] == node.flows[0].shape[_dim(node)]:
            return functools.partial(_summed, call, found, found[0][which][over[0]])
    return None


def _summed(call: Call, found: Terms, letter: str) -> Tensor:
    """Return a product of two tensors that is summed over a letter as a sum of products, one for each entry."""
    pairs = list(zip(call.tensors, found[0], strict=True))
    sizes = {c: n for t, own in pairs for c, n in zip(own, t.shape, strict=True)}
    out = "".join(c for c in found[1] if sizes[c] > 1)

    def entry(t: Tensor, own: str, i: int) -> Tensor:
        chosen, left = t.select(own.index(letter), i), own.replace(letter, "")
        narrow = [d for d, c in enumerate(left) if c not in out]
        return align(chosen.squeeze(narrow) if narrow else chosen, "".join(c for c in left if c in out), out)

    products = [torch.mul(*(entry(t, own, i) for t, own in pairs)) for i in range(sizes[letter])]
    made = functools.reduce(torch.add, products)
    shape = [sizes[c] for c in found[1]]
    return made if list(made.shape) == shape else made.reshape(shape)


def _dim(node: Node) -> int:
    """Return the dimension of a softmax."""
    recipe = node.recipe
    assert recipe is not None
    dim: int = recipe.args[1] if len(recipe.args) > 1 else recipe.kwargs["dim"]
    return dim


def _form(call: Call, gate: Node, values: Node, at: Function, g: Tensor) -> Callable[[], Tensor] | None:
    """Return ``u * f(g)``, or ``u + u * (f(g) - 1)`` for a bounded function that is 1 at 0."""

    def factor(x: Tensor) -> Tensor:
        return at(x, torch.ones_like(x))

    def above_one(x: Tensor) -> Tensor:
        return factor(x) - 1

    far = torch.full_like(g, FAR)
    ends = [float(factor(sign * far).abs().max()) for sign in (1, -1)]
    middle = factor(torch.zeros_like(g))
    bounded = max(ends) < FAR / 2
    if bounded and min(ends) > 1e-6 and bool(((middle - 1).abs() < 1e-6).all()):
        shifted = ElementwiseFunction(above_one)
        return lambda: (lambda u: u + u * shifted.applied(restored(gate)))(restored(values))
    if call.name in ("add", "sub") and (min(ends) > 1e-6 if bounded else bool((middle.abs() > 1e-6).any())):
        return None  # a sum with a multiple of itself
    function = ElementwiseFunction(factor)
    return lambda: torch.mul(restored(values), function.applied(restored(gate)))


def is_proportional(at: Function, g: Tensor, u: Tensor) -> bool:
    """Return whether a function of two tensors is elementwise, and proportional to the second one."""
    made = at(g, u).double()
    tolerance = TOLERANCE.get(u.dtype, 2e-2)
    if not all(same(at(g, c * u).double(), c * made, tolerance) for c in (0.5, -0.25)):
        return False
    kept = torch.rand(g.shape, generator=torch.Generator().manual_seed(0)).to(u.device) < 0.5
    again = at(torch.where(kept, g, 0.5 * g), torch.where(kept, u, 0.5 * u)).double()
    return same(torch.where(kept, again, made), made, tolerance)
