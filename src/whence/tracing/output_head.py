"""The head of a model: the operations behind its last residual addition, which can be run again on another value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .node import Node
from .op_call import Call, map_tensors, tensors_in
from .tensor_info import info_of, node_of


class OutputHead:
    """A tape of operations, from which whatever another residual addition of the same tokens follows is cut again.

    Tensors are told apart by their nodes: one that is overwritten in place has another node from then on.

    Example:
        >>> head.again(stream_end, torch.zeros_like(stream_end), logits)    # what the model says of nothing
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Call, list[Node | None]]] = []
        self._marks: dict[torch.Size, int] = {}

    def record(self, call: Call, result: Any, outputs: list[Tensor]) -> None:
        """Keep an operation and the nodes of what it made; before a residual addition there is no head."""
        made = [call.args[0]] if call.inplace else tensors_in(result)
        self._steps.append((call, [info_of(t).node for t in made]))
        if outputs and node_of(outputs[0]).residual:
            self.cut(outputs[0].shape)

    def cut(self, shape: torch.Size) -> None:
        """A residual addition of this shape: what was behind the one before it was no head."""
        del self._steps[self._marks.get(shape, len(self._steps)) :]
        self._marks[shape] = len(self._steps)

    def again(self, start: Tensor, value: Tensor, end: Tensor) -> Tensor | None:
        """What ``end`` would be if ``start`` were ``value``, a function of it; ``None`` if the tape does not tell."""
        return self.replayed(node_of(start), value).get(node_of(end))

    def replayed(self, start: Node, value: Tensor) -> dict[Node, Tensor]:
        """Return every tensor on the tape that depends on one, by node, as functions of a value in its place."""
        new = {start: value}
        for call, nodes in self._steps:
            pairs = zip(call.tensors, call.nodes, strict=True)
            changed = {id(t): new[node] for t, node in pairs if node is not None and node in new}
            if changed and start not in nodes:
                made = _rerun(call, changed)
                new.update({node: t for node, t in zip(nodes, made, strict=True) if node is not None})
        return new


def _rerun(call: Call, changed: dict[int, Tensor]) -> list[Tensor]:
    """Return what an operation makes with other values (by ``id``) in the place of some of the tensors that it reads.

    What the model has is not overwritten, such as a buffer of its own.
    """
    if call.inplace:  # it reads the value from before it was overwritten
        target = call.tensors[0]
        changed = changed | {id(call.args[0]): changed.get(id(target), target).clone()}
    args, kwargs = map_tensors((call.args, call.kwargs), lambda t: changed.get(id(t), t))
    found = call.func(*args, **kwargs)
    return [args[0]] if call.inplace and not isinstance(found, Tensor) else tensors_in(found)
