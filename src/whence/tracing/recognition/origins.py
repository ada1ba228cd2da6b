"""What tensors are computed from by elementwise operations, products, joins and slices."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..node import Node

#: kinds of elementwise operations, and of those that join or cut tensors
PASSING = {
    "shift", "activation", "gated", "function", "ratio", "identity", "discrete", "structural", "selecting", "gate",
    "add",
}  # fmt: skip
#: operations that join the entries of a stack
OVER_STACKS = {"softmax", "sum", "prod", "logsumexp"}
#: how many tensors such a stack has
MOST = 3
#: how many operations are followed
REACH = 48


def origins(nodes: list[Node], stream: Node | None = None) -> list[Node]:
    """Return the tensors that some tensors are computed from by elementwise operations, joins and slices.

    A number that is added to all of a tensor before anything else is done with it is part of it, like a bias.

    Args:
        nodes: the tensors.
        stream: one that is not taken apart.
    """
    steps = {step.seq: step for node in nodes for step in between(node, stream)}
    readers: dict[Node, list[Node]] = {}
    for step in steps.values():
        for operand in _operands(step) if step is not stream and _passes(step, stream) else []:
            readers.setdefault(operand, []).append(step)
    found = {}
    for step in steps.values():
        if step is stream or not _passes(step, stream):
            own = readers.get(step, [])
            while len(own) == 1 and own[0].kind == "shift" and step is not stream and step not in nodes:
                (step,) = own
                own = readers.get(step, [])
            found[step.seq] = step
    return [found[seq] for seq in sorted(found)]


def between(end: Node, stream: Node | None = None) -> Iterator[Node]:
    """Yield a tensor and those that it is computed from, down to its origins."""
    seen: set[int] = set()
    stack = [end]
    while stack and len(seen) < REACH:
        node = stack.pop()
        if node.seq not in seen:
            seen.add(node.seq)
            yield node
            stack += _operands(node) if node is not stream and _passes(node, stream) else []


def _operands(node: Node) -> list[Node]:
    """Return the tensors that a tensor is computed from, masks among them."""
    return [] if node.recipe is None else node.recipe.nodes()


def _passes(node: Node, stream: Node | None = None) -> bool:
    """Return whether a tensor is an elementwise function, a product, a join or a slice of others.

    So is a residual sum, where the stream that it adds to is known.
    """
    if node.recipe is None or (node.residual and stream is None) or node.learned or not _operands(node):
        return False
    if node.kind in ("structural", "selecting"):
        return not _is_slice(node)
    if node.name in OVER_STACKS:
        return is_over_stack(node)
    if node.kind == "scale":
        return all(not isinstance(a, Tensor) or a.numel() == 1 for a in node.recipe.args)
    if node.kind == "normalise":
        return node.name == "div" and all(n.moved_from().numel == node.numel for n in node.flows)
    return node.kind in PASSING


def _is_slice(node: Node) -> bool:
    """Return whether a tensor is a slice of one that is no function of others, or lays it out in another shape.

    A half of a packed projection is one; so is what the heads of an attention read, side by side.
    """
    inner = node.flows[0].layout() if len(node.flows) == 1 else None
    if inner is None or inner.shape == node.shape or inner.numel < node.numel:
        return False
    return not _passes(inner)


def is_over_stack(node: Node) -> bool:
    """Return whether an operation joins two or three tensors of a stack, such as the sigmoid as softmax of two."""
    recipe = node.recipe
    if node.name not in OVER_STACKS or recipe is None or len(node.flows) != 1:
        return False
    dim = recipe.args[1] if len(recipe.args) > 1 else recipe.kwargs.get("dim")
    inner = node.flows[0]
    if not isinstance(dim, int) or not 1 < inner.shape[dim] <= MOST:
        return False
    while inner.name not in ("stack", "cat") and inner.kind in ("structural", "selecting") and len(inner.flows) == 1:
        inner = inner.flows[0]
    return inner.name in ("stack", "cat")
