"""The head of a model: the operations behind its last residual addition, which can be run again on another value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .op_call import Call, map_tensors, tensors_in
from .tensor_info import node_of


class OutputHead:
    """A tape of operations, from which whatever another residual addition of the same tokens follows is cut again.

    Example:
        >>> head.again(stream_end, torch.zeros_like(stream_end), logits)    # what the model says of nothing
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Call, Any]] = []
        self._marks: dict[torch.Size, int] = {}

    def record(self, call: Call, result: Any, outputs: list[Tensor]) -> None:
        """Keep an operation and what it made; before a residual addition there is no head."""
        self._steps.append((call, result))
        if outputs and node_of(outputs[0]).residual:
            self.cut(outputs[0].shape)

    def cut(self, shape: torch.Size) -> None:
        """A residual addition of this shape: what was behind the one before it was no head."""
        del self._steps[self._marks.get(shape, len(self._steps)) :]
        self._marks[shape] = len(self._steps)

    def again(self, start: Tensor, value: Tensor, end: Tensor) -> Tensor | None:
        """What ``end`` would be if ``start`` were ``value``, a function of it; ``None`` if the tape does not tell."""
        new = {id(start): value}

        def changed(tensor: Tensor) -> Tensor:
            return new.get(id(tensor), tensor)

        for call, result in self._steps:
            if any(id(t) in new for t in call.tensors):
                args, kwargs = map_tensors((call.args, call.kwargs), changed)
                if call.inplace:  # what the model has is not to be overwritten, such as a buffer of its own
                    args = (args[0].clone(), *args[1:])
                    call.func(*args, **kwargs)
                    new[id(call.args[0])] = args[0]
                    continue
                made = tensors_in(call.func(*args, **kwargs))
                new.update({id(old): t for old, t in zip(tensors_in(result), made, strict=True)})
        return new.get(id(end))
