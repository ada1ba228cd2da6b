"""Recorded operations computed again from other values: what a region of the graph is as a function.

A node's recipe holds the operation that made it, with nodes in the place of the tensors that depend on the input. So
the function from one tensor of the graph to another can be evaluated at any value, and its values answer questions
about it: is it homogeneous, does it equal another function?
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .node import Node
from .op_call import Call, map_tensors, tensors_in
from .tensor_info import is_weight

#: how many operations a region may span
REACH = 48


class Recipe(NamedTuple):
    """An operation to be repeated.

    Attributes:
        func: the torch function.
        args, kwargs: its arguments, with nodes in the place of tensors that depend on the input.
        output: which of the tensors that it returns.
        inplace: whether it writes into its first argument.
    """

    func: Callable[..., Any]
    args: Any
    kwargs: Any
    output: int
    inplace: bool

    @staticmethod
    def of(call: Call, known: dict[int, Node], output: int) -> Recipe:
        """Return the recipe of one output of a call, whose traced operands have these nodes (by ``id``)."""

        args = tuple([_placed(value, known) for value in call.args])
        kwargs = {k: _placed(value, known) for k, value in call.kwargs.items()} if call.kwargs else call.kwargs
        return Recipe(call.func, args, kwargs, output, call.inplace)

    def nodes(self) -> list[Node]:
        """Return the nodes among the arguments."""
        found: list[Node] = []

        def note(node: Node) -> Any:
            found.append(node)

        self.filled(note)
        return found

    def filled(self, values: Callable[[Node], Tensor]) -> tuple[Any, Any]:
        """Return the arguments with values in the place of nodes."""
        return _filled(self.args, values), _filled(self.kwargs, values)

    def run(self, values: Callable[[Node], Tensor]) -> Tensor:
        """Repeat the operation with other values."""
        args, kwargs = self.filled(values)
        if self.inplace:
            args = (args[0].clone(), *args[1:])
        found = self.func(*args, **kwargs)
        return args[0] if self.inplace and not isinstance(found, Tensor) else tensors_in(found)[self.output]


def _placed(value: Any, known: dict[int, Node]) -> Any:
    """Put nodes in the place of tensors."""
    if isinstance(value, Tensor):
        return known.get(id(value), value)
    if isinstance(value, tuple | list | dict):
        inner: Any = known.get  # nodes take the place of tensors, which the annotation of `map_tensors` does not know
        return map_tensors(value, lambda tensor: inner(id(tensor), tensor))
    return value


def _filled(value: Any, values: Callable[[Node], Tensor]) -> Any:
    if isinstance(value, Node):
        return values(value)
    if isinstance(value, tuple | list):
        out = [_filled(v, values) for v in value]
        return type(value)(*out) if hasattr(value, "_fields") else type(value)(out)
    if isinstance(value, dict):
        return {k: _filled(v, values) for k, v in value.items()}
    return value


class UnknownFunctionError(Exception):
    """A tensor is not a function of the given ones, as far as recipes tell."""


def evaluate(node: Node, given: dict[Node, Tensor]) -> Tensor:
    """Return the value of a tensor if some of those that it is made of had other values.

    Args:
        node: the tensor.
        given: the values; every path from the input to the tensor must pass one of them.
    """
    return _Values(given).of(node)


class _Values:
    """Values of tensors, from those of others. (A function that calls itself would keep them alive.)"""

    def __init__(self, given: dict[Node, Tensor]) -> None:
        self._known = dict(given)
        self._lowest = min(node.seq for node in given)

    def of(self, node: Node) -> Tensor:
        """Return the value of a tensor."""
        if node not in self._known:
            if node.recipe is None or node.seq < self._lowest:
                raise UnknownFunctionError
            self._known[node] = node.recipe.run(self.of)
        return self._known[node]


def restored(node: Node, reach: int = 6) -> Tensor:
    """Return a tensor, recomputed from those that it is made of if it is gone.

    Raises:
        UnknownFunctionError: if these are gone as well.
    """
    tensor = node.tensor
    if tensor is not None:
        return tensor
    if node.recipe is None or node.recipe.inplace or not reach:
        raise UnknownFunctionError
    return node.recipe.run(lambda parent: restored(parent, reach - 1))


def dominator(nodes: Iterable[Node], reach: int = REACH) -> Node | None:
    """Return the nearest tensor that every path from the input to some tensors passes; ``None`` if it is far away."""
    queue = list({-node.seq: node for node in nodes}.items())
    heapq.heapify(queue)
    for _ in range(reach):
        _, node = heapq.heappop(queue)
        if not queue:
            return node
        if not node.flows:
            return None
        for parent in node.flows:
            if (-parent.seq, parent) not in queue:
                heapq.heappush(queue, (-parent.seq, parent))
    return None


def region(end: Node, root: Node) -> list[Node]:
    """Return the nodes between a root and what is computed from it, without the root, in the order of the forward."""
    found: dict[int, Node] = {}
    stack = [end]
    while stack:
        node = stack.pop()
        if node is not root and node.seq not in found and node.seq > root.seq:
            found[node.seq] = node
            stack += node.flows
    return [found[seq] for seq in sorted(found)]


#: answers to questions about regions, by their structure
_ANSWERS: dict[Hashable, Any] = {}
ANSWERS = 4096

T = TypeVar("T")


def remembered(
    question: str, ends: Sequence[Node], roots: Sequence[Node], answer: Callable[[], T], last: Recipe | None = None
) -> T:
    """Return the answer to a question about the function from some tensors to others.

    It depends on the operations between them alone, so that it is given once for all blocks of a model, and for all
    explanations. Where constants that are no weights are part of the function it is found anew each time.

    Args:
        question: its name.
        ends: the tensors that are functions of others.
        roots: the others.
        answer: finds the answer.
        last: an operation on the ends that the question is about.
    """
    key = _structure(ends, roots, last)
    if key is None:
        return answer()
    if (question, key) not in _ANSWERS:
        if len(_ANSWERS) >= ANSWERS:
            _ANSWERS.clear()
        _ANSWERS[question, key] = answer()
    found: T = _ANSWERS[question, key]
    return found


def _structure(ends: Sequence[Node], roots: Sequence[Node], last: Recipe | None) -> Hashable:
    """Return the operations from some tensors to others, as a value that can be compared; ``None`` if it cannot."""
    numbers = {root: -1 - i for i, root in enumerate(roots)}
    inner: dict[int, Node] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node not in numbers and node.seq not in inner:
            inner[node.seq] = node
            stack += node.flows
            if len(inner) > REACH:
                return None
    numbers |= {inner[seq]: i for i, seq in enumerate(sorted(inner))}
    out: list[Hashable] = [(root.shape, root.dtype, root.device) for root in roots]
    recipes = [inner[seq].recipe for seq in sorted(inner)] + ([] if last is None else [last])
    for recipe in recipes:
        parts = _UNKNOWN if recipe is None else _described((recipe.args, recipe.kwargs), numbers)
        if recipe is None or parts is _UNKNOWN:
            return None
        out += [recipe.func, recipe.output, parts]
    return (*out, tuple(numbers[end] for end in ends))


_UNKNOWN = object()


def _described(value: Any, numbers: dict[Node, int]) -> Hashable:
    """Return an argument as a value that can be compared."""
    if isinstance(value, Node):
        return ("node", numbers[value]) if value in numbers else _UNKNOWN
    if isinstance(value, Tensor):
        if value.numel() == 1 and value.device.type == "cpu":
            return "constant", value.item()
        return ("weight", value.shape) if value.numel() > 1 and is_weight(value) else _UNKNOWN
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, tuple | list):
        inner = tuple(_described(v, numbers) for v in value)
        return _UNKNOWN if _UNKNOWN in inner else inner
    if isinstance(value, slice):
        return "slice", value.start, value.stop, value.step
    return value if isinstance(value, Hashable) else _UNKNOWN


def sample(node: Node, seed: int = 0) -> Tensor:
    """Return a value at which to try functions of a tensor: of its shape and type, the same every time, nowhere 0."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(node.shape, generator=generator, dtype=torch.float64)
    return value.to(device=node.device, dtype=node.dtype)


def same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Return whether two tensors are equal up to a tolerance, relative to the largest value; never if not finite."""
    if a.shape != b.shape or not a.numel():
        return a.shape == b.shape
    return bool((a.isfinite() & ((a - b).abs() <= tolerance * b.abs().max())).all())
