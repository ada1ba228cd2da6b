"""Residual additions: where a branch joins the trunk that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import operations as ops
from .node import Node, walk
from .op_call import Call, tensors_in
from .tensor_info import distant, is_weight, node_of

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
        selection: of a branch that is computed for some tokens of the trunk alone, the node of these tokens.
        attended: what its attentions wrote, where that is one summand of the branch (a parallel block that adds
            attention and MLP at once).
    """

    trunk: Tensor
    branch: Tensor
    output: Tensor
    attentions: list[int]
    normed: Tensor | None = None
    selection: Node | None = None
    attended: Tensor | None = None

    def set_normed(self, normed: Tensor) -> None:
        """Set the sum after its norm."""
        self.normed = normed

    def lighten(self) -> None:
        """Let go of values; of a block with attention, not of what enters it."""
        self.branch = distant(self.branch)
        self.output = distant(self.output)
        self.normed = None
        if not self.attentions and not node_of(self.trunk).learned:
            self.trunk = distant(self.trunk)


class Trunk(NamedTuple):
    """What a branch is added to.

    Attributes:
        tensor: the tensor; of a selection of tokens, for which alone the branch is computed, the one it is cut from.
        between: the nodes of the branch.
        selection: the node of the selection.
        whole: whether the branch reads the tensor itself, and not slices of which it is made.
    """

    tensor: Tensor
    between: list[Node]
    selection: Node | None
    whole: bool = True


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
        elif self and _is_norm_of(call, self[-1]):
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
        if found is not None and not _adds_branches(found):
            trunk, between, selection, whole = found
            branch = call.tensors[1 if between[0] is b else 0]
            while self and _is_part(self[-1], trunk, branch):
                self.pop()
            self._leave_out(set(between))
            node_of(output).mark(residual=True)
            node_of(branch).add_to(node_of(output))
            self._lighten(output.shape)
            attentions = inside(between) if whole else []  # slices are no tensor that enters a block
            self.append(
                Residual(trunk, branch, output, attentions, None, selection, self._attended(trunk, branch, inside))
            )
            self._sums.clear()
        elif not self.light or (self and output.shape == self[-1].output.shape):  # perhaps of branches
            self._sums[node_of(output).seq] = call.tensors[:2]

    def withdraw(self, sums: list[Node]) -> None:
        """Take back that some sums are residual additions."""
        for i in reversed(range(len(self))):
            node = node_of(self[i].output)
            if node in sums:
                node.withdraw()
                del self[i]

    @staticmethod
    def _trunk(tensor: Tensor, node: Node, branch: Node) -> Trunk | None:
        """The tensor that a summand is, up to its layout, if the other one is a function of it."""
        origin = node.source_of(branch)
        if origin is None:
            found = _of_slices(tensor, node, branch)
            return None if found is None else Trunk(*found, selection=None, whole=False)
        if all(_combines(step) for step in branch.paths(origin)):
            return None
        laid_out = node.layout()
        copied = laid_out.residual or (node.name == "clone" and laid_out.flows)
        if copied and laid_out.shape == node.shape and laid_out.tensor is not None:  # a copy
            origin = laid_out
        whole = tensor if origin is node or origin.tensor is None else origin.tensor
        between = branch.between(origin) or []
        return Trunk(whole, between, None if node_of(whole).numel == node.numel else node)

    def _leave_out(self, between: set[Node]) -> None:
        """Leave out sums inside a branch that add no layer's output to their trunk: values inside an attention."""
        for i in reversed(range(len(self))):
            trunk, branch, output = (node_of(t) for t in (self[i].trunk, self[i].branch, self[i].output))
            if output not in between:
                continue
            if not any(node.weighted for node in branch.paths(trunk.source_of(branch) or trunk)):
                output.withdraw()
                del self[i]

    def _attended(self, start: Tensor, branch: Tensor, inside: Inside) -> Tensor | None:
        """The one summand of a branch that has attentions in it; ``None`` if the branch is no such sum."""
        found = None
        if self.light:
            return found
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

    def _lighten(self, shape: torch.Size) -> None:
        """Let go of the values around the last addition of a shape, in any layout, now that there is another."""
        last = next((r for r in reversed(self) if sorted(r.output.shape) == sorted(shape)), None)
        if not self.light or last is None or not any(r.attentions for r in self):
            return
        last.lighten()


def _adds_branches(found: Trunk) -> bool:
    """Return whether a trunk is a branch itself, which the other branch reads after it was added to its stream."""
    total = node_of(found.tensor).sum
    return total in found.between and not any(node.learned for node in total.flows)


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


def _is_norm_of(call: Call, residual: Residual) -> bool:
    """Return whether an operation is the norm of a residual sum, or its weight or bias, where these come apart."""
    operands = [node for node in call.nodes if node is not None]
    if call.kind in ("scale", "shift-by-constant") and residual.normed is not None:
        return operands[0] is node_of(residual.normed) and any(map(is_weight, call.tensors))
    if call.kind == "normalise":
        return any(_before_norm(node) is node_of(residual.output) for node in operands)
    return call.kind == "norm" and _before_norm(operands[0]) is node_of(residual.output)


def _before_norm(node: Node) -> Node:
    """Return the tensor that a norm is of, before its mean is subtracted or it is laid out differently."""
    node = node.layout()
    while node.kind == "center" and node.flows:
        node = max(node.flows, key=lambda flow: flow.moved_from().numel).layout()
    return node


def _is_part(residual: Residual, trunk: Tensor, branch: Tensor) -> bool:
    """Return whether a residual addition adds part of a branch to the same trunk, or slices or multiples of them."""
    earlier, own = node_of(residual.trunk), node_of(trunk)
    if (
        earlier.moved_from() is not own.moved_from() and earlier.sum is not own
    ):  # of a sum of branches: the stream's own
        return False
    return _summands(node_of(residual.branch)) <= _summands(node_of(branch))


def _summands(node: Node) -> set[Node]:
    """Return the tensors that a branch is a sum of, before they were multiplied, laid out or selected."""
    kinds = (*COMBINING, "selecting")
    return {n for n in walk([node], lambda n: n.flows if n.kind in kinds else ()) if n.kind not in kinds or not n.flows}
