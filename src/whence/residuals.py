"""Residual additions: where a branch joins the trunk that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .call import Call
from .node import Node, distant, node_of


@dataclass
class Residual:
    """A residual addition.

    Attributes:
        trunk: the tensor that a branch is added to.
        branch: what is added to it.
        output: the sum.
        attentions: the attentions (by index) inside the branch.
        normed: the sum after the norm that is applied to it, if any.
    """

    trunk: Tensor
    branch: Tensor
    output: Tensor
    attentions: list[int]
    normed: Tensor | None = None


class Residuals(list[Residual]):
    """The residual additions of a trace, in order.

    Args:
        light: let go of values that only methods of attention maps read. What is left then are the trunks of blocks
            with attention and the end of each stream; the rest is known by its place in the graph.
    """

    def __init__(self, light: bool) -> None:
        super().__init__()
        self.light = light

    def note(self, call: Call, output: Tensor, inside: Callable[[list[Node]], list[int]]) -> None:
        """Look at an operation: a sum may be a residual addition, a norm may follow one.

        Args:
            call: the operation.
            output: what it made.
            inside: the attentions (by index) among some nodes.
        """
        if call.kind == "add":
            self._add(call, output, inside)
        elif call.kind == "norm" and self and node_of(self[-1].output) is call.nodes[0]:
            self[-1].normed = output

    def _add(self, call: Call, output: Tensor, inside: Callable[[list[Node]], list[int]]) -> None:
        """Is one summand an ancestor of the other? Then it is the trunk and the other the branch."""
        a, b = call.nodes[:2]
        if a is None or b is None or a.root is b.root or call.tensors[0].shape != call.tensors[1].shape:
            return
        trunk, branch = (0, b) if a.seq < b.seq else (1, a)
        between = branch.between(a if trunk == 0 else b)
        if between is not None:
            node_of(output).residual = True
            self._lighten(output.shape)
            self.append(Residual(call.tensors[trunk], call.tensors[1 - trunk], output, inside(between)))
        elif (earlier := self._beside(a, b)) is not None:
            added = 1 if node_of(earlier.output) is a else 0
            found = inside((a, b)[added].between(node_of(earlier.trunk)) or [])
            earlier.branch = call.tensors[added] if found and not earlier.attentions else earlier.branch
            earlier.attentions = sorted({*earlier.attentions, *found})
            earlier.output, node_of(output).residual = output, True

    def _beside(self, a: Node, b: Node) -> Residual | None:
        """The residual addition to which ``a + b`` adds one more branch of the same trunk (a parallel block)."""
        for total, branch in ((a, b), (b, a)):
            for residual in reversed(self) if total.residual else ():
                if node_of(residual.output) is total:
                    return residual if branch.between(node_of(residual.trunk)) is not None else None
        return None

    def _lighten(self, shape: torch.Size) -> None:
        """Let go of the values around the last addition of a shape, now that there is another."""
        last = next((r for r in reversed(self) if r.output.shape == shape), None)
        if not self.light or last is None or not any(r.attentions for r in self):
            return
        last.branch, last.output = distant(last.branch), distant(last.output)
        last.normed = None if last.normed is None else distant(last.normed)
        if not last.attentions and not node_of(last.trunk).learned:
            last.trunk = distant(last.trunk)
