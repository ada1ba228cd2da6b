"""The steps of autograd's graph: what is sent back along them, and which tensors of a trace they belong to.

Most of these tensors are gone when they are asked for. A step is known by its number: anything kept at the step itself
is a small object of C's that lies between large tensors, and a hundred of them broke up the memory that those leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .axes import Axis
from .gc_pause import uncollected
from .node import Node
from .tensor_info import attach, edge_of, info_of


class AutogradGraph:
    """What is known of the tensor that each step leads to.

    Args:
        batch: the batch axis of the trace.
    """

    def __init__(self, batch: Axis) -> None:
        self._batch = batch
        self._nodes: dict[int, Node] = {}

    def attach(self, tensor: Tensor, node: Node) -> Tensor:
        """Let a node travel with a tensor that a model goes on with."""
        maker: Any = tensor.grad_fn
        if maker is not None:
            self._nodes[maker._sequence_nr()] = node
        return attach(tensor, node)

    def behind(self, tensor: Tensor) -> tuple[Node, ...]:
        """The nearest tensors of the trace that a tensor was made from, by code that torch functions do not show."""
        return self._behind([step for step, _ in _before(tensor)])

    def inputs(self, tensor: Tensor) -> int:
        """How many inputs of the trace that code had; parts of one tensor (a packed projection, cut) are several."""
        return sum(bool(self._behind([step])) for step, _ in _before(tensor))

    def _behind(self, stack: list[Any]) -> tuple[Node, ...]:
        found: dict[int, Node] = {}
        seen: set[Any] = set()
        while stack:
            step: Any = stack.pop()
            if step is None or step in seen:
                continue
            seen.add(step)
            leaf = getattr(step, "variable", None)
            node = self._nodes.get(step._sequence_nr()) or (None if leaf is None else info_of(leaf).node)
            if node is not None and node.batch is self._batch:
                found[node.seq] = node
            else:
                stack += [further for further, _ in step.next_functions]
        return tuple(found.values())


def _before(tensor: Tensor) -> tuple[tuple[Any, int], ...]:
    return () if tensor.grad_fn is None else tensor.grad_fn.next_functions


def sent_back(start: Tensor, sent: Tensor, tensors: Sequence[Tensor], keep: bool = False) -> list[Tensor | None]:
    """What arrives at each tensor when something is sent back from another; ``None`` where nothing does.

    Args:
        start: from where.
        sent: what is sent, shaped like it.
        tensors: where it is read.
        keep: whether something else will be sent along the same graph.
    """
    ends: Any = [edge_of(t) for t in tensors]
    with uncollected():
        return list(torch.autograd.grad(start, ends, sent, retain_graph=keep, allow_unused=True))
