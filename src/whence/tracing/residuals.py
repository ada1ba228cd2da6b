"""Residual additions: where a branch joins the trunk that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import operations as ops
from .node import Node
from .op_call import Call, tensors_in
from .tensor_info import distant, edge_of, node_of, past

Inside = Callable[[list[Node]], list[int]]  # the attentions (by index) among some nodes
LEAVING = ("structural", "identity", "scale")  # kinds that hand a sum on
COMBINING = (
    *LEAVING,
    "add",
    "center",
    "shift",
    "shift-by-constant",
)  # kinds of which no branch is made: multiples and sums


@dataclass
class Residual:
    """A residual addition.

    Attributes:
        trunk: the tensor that a branch is added to.
        branch: what is added to it.
        output: the sum.
        attentions: the attentions (by index) inside the branch; none of a trunk that the branch reads in slices.
        normed: the sum after the norm that is applied to it, if any.
        attended: what its attentions wrote, where that is one summand of the branch (a parallel block that adds
            attention and MLP at once).
        beside: further branches of the same trunk that were added next (a parallel block that adds one by one).
    """

    trunk: Tensor
    branch: Tensor
    output: Tensor
    attentions: list[int]
    normed: Tensor | None = None
    attended: Tensor | None = None
    beside: list[Tensor] = field(default_factory=list)

    def set_normed(self, normed: Tensor) -> None:
        """Set the sum after its norm."""
        self.normed = normed

    def set_branch(self, branch: Tensor, attended: Tensor | None) -> None:
        """Set the branch, where another one turns out to have the attention."""
        self.branch = branch
        self.attended = attended

    def extend(self, attentions: list[int], output: Tensor) -> None:
        """Add one more branch with these attentions, after which this is the sum."""
        self.attentions = sorted({*self.attentions, *attentions})
        self.output = output

    def lighten(self) -> None:
        """Let go of values; of a block with attention, not of what enters it."""
        self.branch = distant(self.branch)
        self.output = distant(self.output)
        self.normed = None
        if not self.attentions and not node_of(self.trunk).learned:
            self.trunk = distant(self.trunk)


class ResidualList(list[Residual]):
    """The residual additions of a trace, in order.

    Args:
        light: let go of values that only methods of attention maps read. What is left then are the trunks of blocks
            with attention and the end of each stream; the rest is known by its place in the graph, and what a parallel
            block is made of is not told apart.
    """

    def __init__(self, light: bool) -> None:
        super().__init__()
        self.light = light
        self._sums: dict[int, list[Tensor]] = {}  # the summands of other sums (by ``seq``) since the last addition

    def note(self, call: Call, output: Tensor, inside: Inside) -> None:
        """Look at an operation: a sum may be a residual addition, a norm may follow one.

        Args:
            call: the operation.
            output: what it made.
            inside: the attentions (by index) among some nodes.
        """
        if call.kind == "add":
            self._add(call, output, inside)
        elif call.kind == "norm" and self and node_of(self[-1].output) is call.nodes[0]:
            self[-1].set_normed(output)

    def _add(self, call: Call, output: Tensor, inside: Inside) -> None:
        """Is one summand an ancestor of the other? Then it is the trunk and the other the branch."""
        a, b = call.nodes[:2]
        if a is None or b is None or a.root is b.root:
            return
        if call.tensors[0].shape != call.tensors[1].shape and not _shares(call.tensors[:2], output):
            return
        found = self._trunk(call.tensors[0], a, b)
        if found is None and call.name != "sub":  # what is subtracted is no stream that goes on
            found = self._trunk(call.tensors[1], b, a)
        if found is not None:
            trunk, between = found
            branch = call.tensors[1 if between[0] is b else 0]
            node_of(output).mark(residual=True)
            self._lighten(output.shape)
            if self and _is_same(self[-1], trunk, branch):  # in another layout, or before a multiple was undone
                self.pop()
            whole = node_of(branch).between(node_of(trunk)) is not None  # slices are no tensor that enters a block
            attentions = inside(between) if whole else []
            attended = self._attended(trunk, branch, inside)
            self.append(Residual(trunk, branch, output, attentions, attended=attended))
            self._sums.clear()
        elif call.name != "sub" and (earlier := self._beside(a, b)) is not None:
            self._join(earlier, call.tensors[1 if node_of(earlier.output) is a.layout() else 0], output, inside)
        elif not self.light:
            self._sums[node_of(output).seq] = call.tensors[:2]

    @staticmethod
    def _trunk(tensor: Tensor, node: Node, branch: Node) -> tuple[Tensor, list[Node]] | None:
        """The tensor that a summand is, up to its layout, if the other one is a function of it; and what is between."""
        origin = node if branch.between(node) is not None else node.layout()
        between = branch.between(origin)
        if between is None:
            return _of_slices(tensor, node, branch)
        if all(_combines(step) for step in branch.paths(origin)):
            return None
        return (tensor if origin is node or origin.tensor is None else origin.tensor), between

    def _join(self, earlier: Residual, added: Tensor, output: Tensor, inside: Inside) -> None:
        """One more branch of the same trunk; the branch of a block is the one with its attention."""
        found = inside(node_of(added).between(node_of(earlier.trunk)) or [])
        aside = added
        if found and not earlier.attentions:
            aside = earlier.branch
            earlier.set_branch(added, self._attended(earlier.trunk, added, inside))
        if not self.light:
            earlier.beside.append(past(aside) if edge_of(aside) is aside else aside)
        earlier.extend(found, output)
        node_of(output).mark(residual=True)
        self._sums.clear()

    def _attended(self, start: Tensor, branch: Tensor, inside: Inside) -> Tensor | None:
        """The one summand of a branch that has attentions in it; ``None`` if the branch is no such sum."""
        found = None
        node = node_of(branch)
        trunk = node_of(start)
        while node.seq in self._sums or (node.kind in LEAVING and node.parents):
            summands = self._sums.get(node.seq, [])
            own = [t for t in summands if inside(node_of(t).between(trunk) or [])]
            if summands and len(own) != 1:
                break
            found = own[0] if own else found
            node = node_of(own[0]) if own else node.parents[0]
        return found

    def _beside(self, a: Node, b: Node) -> Residual | None:
        """The residual addition to which ``a + b`` adds one more branch of the same trunk (a parallel block)."""
        for total, branch in ((a, b), (b, a)):
            for residual in reversed(self) if total.layout().residual else ():
                if node_of(residual.output) is total.layout():
                    return residual if branch.between(node_of(residual.trunk)) is not None else None
        return None

    def _lighten(self, shape: torch.Size) -> None:
        """Let go of the values around the last addition of a shape, now that there is another."""
        last = next((r for r in reversed(self) if r.output.shape == shape), None)
        if not self.light or last is None or not any(r.attentions for r in self):
            return
        last.lighten()


def _of_slices(tensor: Tensor, node: Node, branch: Node) -> tuple[Tensor, list[Node]] | None:
    """The summand itself and what is between, if it is a slice of which the branch takes the same one, or joins slices.

    As in TimeSformer: ``x[:, 1:] + f(x[:, 1:])``, and ``torch.cat([a, b]) + f(a, b)``.
    """
    if node.kind == "selecting" and len(node.flows) == 1:
        before = branch.between(node.flows[0]) or []
        roots = [step for step in before if _is_same_slice(step, node)]
    else:
        roots = list(node.flows) if node.name == "cat" else []
    steps = [branch.paths(root) for root in roots]
    if not roots or not all(steps) or all(_combines(step) for found in steps for step in found):
        return None
    return tensor, list({step.seq: step for found in [[branch], *steps] for step in found}.values())


def _is_same_slice(a: Node, b: Node) -> bool:
    """Return whether two tensors are the same slice of one tensor."""
    if a.recipe is None or b.recipe is None or a.name != b.name or a.flows != b.flows:
        return False
    if tensors_in(a.recipe.args, a.recipe.kwargs, b.recipe.args, b.recipe.kwargs):  # places that are not compared
        return False
    return a.recipe[1:] == b.recipe[1:]


def _combines(node: Node) -> bool:
    """Return whether an operation makes no branch: a multiple, a sum, a mean, or the larger of two tensors."""
    return node.kind in (*COMBINING, "reduce") or node.name in ops.CLIPPING


def _shares(summands: list[Tensor], output: Tensor) -> bool:
    """Return whether one summand is learned queries that all samples share, without a batch dimension of their own."""
    small, large = sorted(summands, key=lambda t: t.dim())
    return node_of(small).learned and large.shape == output.shape and small.shape[-large.dim() + 1 :] == large.shape[1:]


def _is_same(residual: Residual, trunk: Tensor, branch: Tensor) -> bool:
    """Return whether a residual addition adds these tensors, up to their layout and a bias that is added to both."""
    same = node_of(residual.trunk).layout() is node_of(trunk).layout()
    added = node_of(branch).layout()
    biased = added.flows[0].layout() if added.kind == "shift-by-constant" else added
    return same and node_of(residual.branch).layout() in (added, biased)
