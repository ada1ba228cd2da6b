"""What the trace knows of a tensor: where it came from, what its dimensions are, what it is a function of."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import operations as ops
from .axes import Axes, Axis, Dim, plain

if TYPE_CHECKING:
    from .op_call import Call
    from .replay import Recipe


class Node:
    """One tensor's entry in the trace. It holds no tensor, so it keeps no memory alive.

    Attributes:
        seq: its place in the order of operations.
        kind: the kind of operation that made it.
        parents: the tensors it was made from.
        flows: those of them that depend on the input.
        live: those of them that still receive gradient or relevance through it.
        name: the canonical name of the operation that made it.
        recipe: how it was made, so that it can be computed from other values; ``None`` where that is not known.
        shape, dtype, device: of the tensor.
        differentiable: whether the tensor requires a gradient.
        weighted: whether it was made by a linear layer or convolution with weights of the model.
        deviation: whether some norm divides by it.
        shifted: whether a number was added to an activation on the way from its root.
        axes: its dimensions.
        batch: the batch axis of the trace it belongs to.
        linear: whether it is a constant multiple of its root.
        activated: whether an activation lies between its root and it.
        softmax: the axis over which it sums to one, if it is a softmax.
        exponential: whether it is made of exponentials of scores, if it is a softmax; not of scores over their sum.
        linear_uses, other_uses: how many linear layers, and how many other operations, read it.
        kept: whether a rule still needs the value that it has now.
        moved: whether the tensor was given other memory before it was overwritten.
        residual: whether it is the sum of a trunk and a branch of its own.
        learned: whether it is made of tokens of the model's own, such as DETR's queries, at most moved or scaled.
        made_of: for a product with a constant, the parameters (by ``id``) that the constant is made of.
        mixed: whether it is what an attention has read, at most moved or scaled.
        hidden: whether it was made while gradients were switched off, perhaps inside a custom autograd function.
        inside: the attention (by index) that it was made for: queries, keys, values, scores, probabilities.
        projection: whether it is made by a linear layer of an attention: of queries, keys, values or what was read.
    """

    live: tuple[Node, ...]
    flows: tuple[Node, ...] = ()
    name = ""
    shape = torch.Size()
    dtype = torch.float32
    device = torch.device("cpu")
    differentiable = False
    weighted = False
    shifted = False
    deviation = False
    recipe: Recipe | None = None
    linear = True
    activated = False
    softmax: Dim | None = None
    exponential = True
    linear_uses = 0
    other_uses = 0
    kept = False
    moved = False
    residual = False
    mixed = False
    learned = False
    made_of: frozenset[int] = frozenset()
    hidden = False
    inside: int | None = None
    projection = False

    def __init__(self, seq: int, kind: str, parents: tuple[Node, ...], axes: Axes, batch: Axis) -> None:
        self.seq = seq
        self.kind = kind
        self.parents = self.live = parents
        self.axes = axes
        self.batch = batch
        self._root: Node | None = None  # another than itself: no node is to keep itself alive
        self._tensor: weakref.ref[Tensor] | None = None
        self._sum: weakref.ref[Node] | None = None

    @property
    def sum(self) -> Node | None:
        """The residual sum that adds it to a stream, while something keeps that alive."""
        return None if self._sum is None else self._sum()

    def add_to(self, total: Node) -> None:
        """Note the residual sum that adds it to a stream."""
        self._sum = weakref.ref(total)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor itself, while something else keeps it alive and it has not been overwritten."""
        found = None if self._tensor is None else self._tensor()
        known = getattr(found, "_whence", None)
        return found if known is not None and known.node is self else None

    def refers_to(self, tensor: Tensor, anew: bool = False) -> None:
        """Remember, without keeping it alive, the tensor that this is the entry of; copies and aliases come later.

        Args:
            tensor: the tensor.
            anew: whether it takes the place of another one, which is about to be overwritten.
        """
        if self._tensor is None or anew:
            self._tensor = weakref.ref(tensor)
            self.shape = tensor.shape
            self.dtype = tensor.dtype
            self.device = tensor.device
            self.differentiable = tensor.requires_grad

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return self.shape.numel()

    @property
    def root(self) -> Node:
        """The tensor of which it is an elementwise function; where there is none, itself."""
        return self if self._root is None else self._root

    @property
    def token_axes(self) -> Axes:
        """Its dimensions, whatever the order in which they hold their entries."""
        return plain(self.axes)

    def describe(
        self,
        name: str,
        flows: tuple[Node, ...],
        weighted: bool = False,
        recipe: Recipe | None = None,
        live: tuple[Node, ...] | None = None,
        made_of: frozenset[int] = frozenset(),
    ) -> None:
        """Set what made the tensor; see the attributes."""
        self.recipe = recipe
        self.name = name
        self.flows = flows
        self.weighted = weighted
        self.live = self.parents if live is None else live
        self.made_of = made_of

    def read_by(self, kind: str) -> int:
        """Count an operation that reads the tensor; return how many have so far."""
        if kind == "linear":
            self.linear_uses += 1
        else:
            self.other_uses += 1
        return self.linear_uses + self.other_uses

    def inherit(self, call: Call) -> None:
        """Take over what the operation that made it leaves true of its main operand."""
        main = call.nodes[0] if call.composed else next(iter(self.flows or self.parents), None)
        if main is None:
            return
        kind = call.kind
        if kind == "softmax":
            dim = call.argument(1, "dim", -1)
            self.softmax = self.axes[dim if isinstance(dim, int) else -1]
            self.exponential = call.name in ops.SOFTMAX
        elif kind in ("structural", "identity", "scale", "selecting") or call.name in ops.CLIPPING:
            self.softmax, self.exponential = main.softmax, main.exponential
            self.mixed = main.mixed
            self.learned = main.learned
        elif kind == "linear" and main.softmax in self.axes:  # heads that are mixed (talking heads): weights of keys
            self.softmax = main.softmax
        self.mixed = self.mixed or kind in ("mix", "attention")
        self.projection = kind == "linear" and main.mixed
        self._inherit_function(call, main)

    def _inherit_function(self, call: Call, main: Node) -> None:
        """Take over of which tensor it is an elementwise function, and which one."""
        kind = call.kind
        if call.name in ops.COMPARING and len(call.tensors) == 1:
            self._root = main.root
        elif kind in ("scale", "identity") or self._is_copy(call):
            self._root = main.root
            self.linear = main.linear
            self.activated = main.activated
            self.shifted = main.shifted
        elif kind in ("structural", "selecting") and len(self.flows) == 1:
            self.activated = main.activated  # wherever it is moved
        elif kind in ("activation", "gated", "function", "shift") or (
            kind == "add" and len({id(n.root) for n in self.flows}) == 1
        ):
            self._root = main.root
            self.linear = False
            self.activated = main.activated or (kind != "shift" and not call.clips())
            self.shifted = kind == "shift" and (main.activated or main.shifted)

    def _is_copy(self, call: Call) -> bool:
        """Return whether it is a copy of one tensor, perhaps written over another one."""
        written = call.name == "copy" and len(self.flows) == 1 and self.flows[0].shape == self.shape
        return not call.composed and (call.name in ops.COPYING or written)

    def divides(self) -> None:
        """Mark it, before it was moved or cut, as a deviation that a norm divides by."""
        self.moved_from().mark(deviation=True)

    def mark(
        self, deviation: bool = False, residual: bool = False, learned: bool = False, hidden: bool = False
    ) -> None:
        """Set what is found out about it after it was made; see the attributes."""
        self.deviation = self.deviation or deviation
        self.residual = self.residual or residual
        self.learned = self.learned or learned
        self.hidden = self.hidden or hidden

    def withdraw(self) -> None:
        """Take back that it is a residual sum."""
        self.residual = False

    def keep_value(self) -> None:
        """Note that the backward pass needs the value that the tensor has now."""
        self.kept = True

    def move(self) -> None:
        """Note that the tensor was given other memory before it was overwritten."""
        self.moved = True

    def moved_from(self) -> Node:
        """Return the tensor that it was before it was moved, cut or copied."""
        node = self
        while node.kind in ("structural", "selecting") and len(node.flows) == 1:
            node = node.flows[0]
        return node

    def layout(self) -> Node:
        """Return the tensor that it was before it was copied or laid out differently, with all its elements."""
        node = self
        while node.kind == "structural" and len(node.flows) == 1 and node.flows[0].numel == node.numel:
            node = node.flows[0]
        return node

    def source_of(self, branch: Node) -> Node | None:
        """Return what it is, up to its layout or as a selection of tokens, if another tensor is a function of that."""
        found = [node for node in (self, self.layout()) if branch.between(node) is not None]
        if found:
            return next((node for node in found if branch.paths(node)), found[0])
        whole = self._selected_from(branch)
        if whole is None:
            return None
        kept = [dim in whole.token_axes for dim in self.token_axes]
        pairs = zip(kept, self.token_axes, branch.token_axes, strict=False)
        known = len(branch.axes) == len(kept) and all(known or dim == other for known, dim, other in pairs)
        return whole if known else None

    def _selected_from(self, branch: Node) -> Node | None:
        """Return the last tensor that it is selected from and that another is computed from, by layers of the model."""
        node = self
        while node.kind in ("structural", "selecting") and len(node.flows) == 1:
            node = node.flows[0]
            if any(step.weighted for step in branch.paths(node)):  # no statistic of it
                return node
        return None

    def paths(self, ancestor: Node) -> list[Node]:
        """Return this node and those on the way to it from an ancestor; none if it does not derive from it."""
        between = sorted(
            walk([self], lambda node: [parent for parent in node.flows if parent.seq > ancestor.seq]),
            key=lambda node: node.seq,
        )
        found = {ancestor.seq}
        for node in between:
            if any(parent.seq in found for parent in node.flows):
                found.add(node.seq)
        return [node for node in between if node.seq in found] if self.seq in found else []

    def between(self, ancestor: Node) -> list[Node] | None:
        """Return this node and those between it and an ancestor; ``None`` if it is no ancestor."""
        nodes = list(walk([self], lambda node: [parent for parent in node.parents if parent.seq > ancestor.seq]))
        return nodes if any(ancestor in node.parents for node in nodes) else None

    def claim(self, attention: int) -> None:
        """Mark it and all it derives from, back to the nearest linear layers, as made for an attention."""

        def unclaimed(nodes: Iterable[Node]) -> list[Node]:
            return [node for node in nodes if not node.residual and node.inside != attention]

        for node in walk(unclaimed([self]), lambda node: () if node.kind == "linear" else unclaimed(node.parents)):
            node.enter(attention)

    def enter(self, attention: int) -> None:
        """Mark it as made for an attention."""
        self.inside = attention
        self.projection = self.projection or self.kind == "linear"

    def descends(self, from_: set[int]) -> bool:
        """Return whether it is one of some tensors (by ``seq``) or was made from one."""
        return any(node.seq in from_ for node in walk([self]))

    def ancestors(self) -> set[int]:
        """Return the ``seq`` of this tensor and of all that it was made from."""
        return {node.seq for node in walk([self])}

    def reachable(self, end: Container[int] = ()) -> set[int]:
        """Return the ``seq`` of every tensor that relevance can reach from this one, not passing some ``end``."""
        return {node.seq for node in walk([self], lambda node: () if node.seq in end else node.live)}

    def readers(self) -> dict[int, tuple[float, float]]:
        """Return, for each tensor that relevance can reach from this one, how many operations pass relevance to it.

        Linear layers and other operations are counted separately, by ``seq``. A slice counts for its share of the
        entries, so that a tensor that is split has one reader.
        """
        found: dict[int, tuple[float, float]] = {}
        for node in walk([self], lambda node: node.live):
            for parent in {parent.seq: parent for parent in node.live}.values():
                linear, other = found.get(parent.seq, (0.0, 0.0))
                cut = node.kind in ("structural", "selecting") and 0 < node.numel < parent.numel
                share = node.numel / parent.numel if cut else 1.0
                found[parent.seq] = (linear + share, other) if node.kind == "linear" else (linear, other + share)
        return found

    def edges(self) -> set[tuple[int, int]]:
        """Return, by ``seq``, each tensor that relevance can reach from this one, and where it goes from there."""
        return {(node.seq, parent.seq) for node in walk([self], lambda node: node.live) for parent in node.live}


def _parents(node: Node) -> tuple[Node, ...]:
    return node.parents


def walk(starts: Iterable[Node], step: Callable[[Node], Iterable[Node]] = _parents) -> Iterator[Node]:
    """Yield nodes and all that ``step`` leads to from them (by default their parents), nearest first, each once.

    ``step`` is called after the node was yielded, so that it can depend on what was done with it.
    """
    queue = deque(starts)
    seen: set[int] = set()
    while queue:
        node = queue.popleft()
        if node.seq not in seen:
            seen.add(node.seq)
            yield node
            queue.extend(step(node))
