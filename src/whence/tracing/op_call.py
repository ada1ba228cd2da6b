"""One operation about to happen, as rules see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .axes import Axis
from .fused_attention import FusedMap
from .node import Node

Rule = Callable[["Call"], Any]
Hold = Callable[[Tensor], Callable[[], Tensor]]  # keeps a value until it is asked for


def as_it_is(tensor: Tensor) -> Callable[[], Tensor]:
    """Keep a value in memory."""
    return lambda: tensor


_PLAIN = (int, float, str, type(None), torch.dtype, slice)  # what holds no tensor, in most calls
_LISTS = (tuple, list)


def tensors_in(*values: Any) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dicts, in order."""
    out: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            out.append(value)
        elif isinstance(value, _LISTS):
            out += tensors_in(*value)
        elif isinstance(value, dict):
            out += tensors_in(*value.values())
    return out


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _LISTS):
        out = [map_tensors(v, change) for v in value]
        return type(value)(*out) if hasattr(value, "_fields") else type(value)(out)
    if isinstance(value, dict):
        return {k: map_tensors(v, change) for k, v in value.items()}
    return value


@dataclass(slots=True)
class Call:
    """An operation with its operands.

    Attributes:
        name: its canonical name.
        kind: what it is to relevance (see :mod:`whence.tracing.op_kinds`).
        func, args, kwargs: the torch call.
        batch: the batch axis.
        tensors: every tensor argument, in order.
        nodes: what is known of each.
        traced: the tensors that depend on the input, each once.
        inplace: whether it writes into its first argument.
        blocked: the traced tensors (by ``id``) that a rule has cut off.
        kept: set by a rule that will need the output's value in the backward.
        placed: set by a rule that wants to be told the node of the output.
        exposed: set by a rule that puts a leaf in place of attention probabilities, to read its gradient.
        shown: set by a rule that makes the map of a fused attention again when it is wanted.
        statistic: of a norm, the operand that is a deviation of the other one (or any denominator).
        probabilities: of a product with values, the attention map.
        plain: set by a rule that leaves the operation to its plain gradient.
        composed: whether it stands for several operations of the model.
    """

    name: str
    kind: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch: Axis
    tensors: list[Tensor]
    nodes: list[Node | None]
    traced: list[Tensor]
    inplace: bool = False
    blocked: set[int] = field(default_factory=set)
    kept: bool = False
    placed: Callable[[Node], None] | None = None
    exposed: Tensor | None = None
    shown: FusedMap | None = None
    statistic: Tensor | None = None
    probabilities: Tensor | None = None
    plain: bool = False
    composed: bool = False

    def copy(self) -> Call:
        """Return the operation as it is now, whatever becomes of it."""
        return Call(
            self.name, self.kind, self.func, self.args, self.kwargs, self.batch, self.tensors, self.nodes, self.traced,
            self.inplace,
        )  # fmt: skip

    def apart(self) -> bool:
        """Become the operation that makes a new tensor in place of overwriting one; ``False`` if there is none."""
        if self.kwargs.get("inplace"):
            self.kwargs = self.kwargs | {"inplace": False}
            return True
        func = getattr(Tensor, self.name, None) or getattr(torch, self.name, None)
        self.func = func or self.func
        return func is not None

    def run(self, *replacements: Tensor) -> Any:
        """Run the operation, with the traced tensors replaced by ``replacements`` where given."""
        if not replacements:
            return self.func(*self.args, **self.kwargs)
        swap = {id(old): new for old, new in zip(self.traced, replacements, strict=True)}
        self.blocked |= {old for old, new in swap.items() if not new.requires_grad}
        args, kwargs = map_tensors((self.args, self.kwargs), lambda t: swap.get(id(t), t))
        return self.func(*args, **kwargs)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def replace(self, tensors: list[Tensor]) -> None:
        """Put other tensors in the place of the traced ones."""
        swap = {id(old): new for old, new in zip(self.traced, tensors, strict=True)}
        self.args, self.kwargs = map_tensors((self.args, self.kwargs), lambda t: swap.get(id(t), t))
        self.tensors = [swap.get(id(t), t) for t in self.tensors]
        self.statistic = swap.get(id(self.statistic), self.statistic)
        self.probabilities = swap.get(id(self.probabilities), self.probabilities)
        self.traced = tensors
