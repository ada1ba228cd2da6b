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

from ..node import Node
from ..op_call import Call
from ..replay import Recipe, UnknownFunctionError, evaluate, restored, same
from .elementwise import FAR, ElementwiseFunction, functions, known_operands
from .origins import between, origins

#: operations that may complete a gated unit
COMPLETING = {"mul", "div", "add", "sub", "where", "masked_fill"}
#: relative difference of a function from one that is proportional to a tensor
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

Function = Callable[[Tensor, Tensor], Tensor]


def usual_gate(call: Call) -> Callable[[], Tensor] | None:
    """Return a gated unit as values times a function of the gate; ``None`` if it has that form, or is none."""
    nodes = functions(call)
    if not call.traced or call.traced[0].is_meta or not _may_gate(call, nodes):
        return None
    roots = origins(nodes)
    if len(roots) != 2 or roots[0].shape != roots[1].shape or roots[0].dtype != roots[1].dtype:
        return None
    try:
        with torch.no_grad():
            return _as_gate(call, roots)
    except (UnknownFunctionError, RuntimeError):
        return None


def _may_gate(call: Call, nodes: list[Node]) -> bool:
    """Return whether an operation may complete a gated unit that is not in its usual form."""
    if call.name == "mul" and len(nodes) == 2:
        mine, other = (origins([node]) for node in nodes)
        return any(a is b for a in mine for b in other)
    return call.name == "div" or any(node.kind == "gate" for end in nodes for node in between(end))


def _as_gate(call: Call, roots: list[Node]) -> Callable[[], Tensor] | None:
    recipe = Recipe.of(call, known_operands(call), 0)
    here = [restored(root).detach() for root in roots]
    for gate, values in ((0, 1), (1, 0)):

        def at(g: Tensor, u: Tensor, gate: int = gate, values: int = values) -> Tensor:
            return recipe.run(functools.partial(evaluate, given={roots[gate]: g, roots[values]: u}))

        def swapped(u: Tensor, g: Tensor, at: Function = at) -> Tensor:
            return at(g, u)

        g, u = here[gate], here[values]
        if at(g, u).shape == u.shape and is_proportional(at, g, u) and not is_proportional(swapped, u, g):
            return _form(call, roots[gate], roots[values], at, g)
    return None


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
    kept = torch.rand(u.shape, generator=torch.Generator().manual_seed(0)).to(u.device) < 0.5
    again = at(torch.where(kept, g, 0.5 * g), torch.where(kept, u, 0.5 * u)).double()
    return same(torch.where(kept, again, made), made, tolerance)
