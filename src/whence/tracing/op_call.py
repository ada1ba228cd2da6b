"""One operation about to happen, as rules see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from . import operations as ops
from .axes import Axis
from .fused_attention import FusedMap
from .node import Node

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
        statistic: of a norm, the operand that is a deviation of the other one (or any denominator).
        probabilities: of a product with values, the attention map.
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
    statistic: Tensor | None = None
    probabilities: Tensor | None = None
    composed: bool = False

    def classify(self, found: Classification) -> None:
        """Set the kind of operation, and which operand is a statistic or an attention map."""
        self.kind, self.statistic, self.probabilities = found

    def write_to(self, target: Tensor) -> None:
        """Take back the tensor that is overwritten as the first argument."""
        self.args = (target, *self.args[1:])

    def read_first(self, tensor: Tensor) -> None:
        """Put another tensor in the place of the first that is read: its value before it is overwritten."""
        self.tensors = [tensor, *self.tensors[1:]]

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

    def clips(self) -> bool:
        """Return whether it leaves values around 0 as they are, and bounds large ones: no activation of a gate."""
        if self.name not in ops.CLIPPING or self.composed or len(self.traced) != 1 or self.traced[0].is_meta:
            return False
        small = [torch.full_like(self.traced[0], c, requires_grad=False) for c in (0.5, -0.5)]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return all(bool((self.run(x) == x).all()) for x in small)

    def run(self, *replacements: Tensor) -> Any:
        """Run the operation, with the traced tensors replaced by ``replacements`` where given."""
        if not replacements:
            return self.func(*self.args, **self.kwargs)
        swap = {id(old): new for old, new in zip(self.traced, replacements, strict=True)}
        args, kwargs = map_tensors((self.args, self.kwargs), lambda t: swap.get(id(t), t))
        return self.func(*args, **kwargs)

    def run_with(self, *replacements: Tensor) -> RuleResult:
        """Run the operation with the traced tensors replaced; those replaced by constants receive no relevance."""
        pairs = zip(self.traced, replacements, strict=True)
        return RuleResult(self.run(*replacements), frozenset(id(old) for old, new in pairs if not new.requires_grad))

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


class OutputNode:
    """The node of an operation's output, for its backward pass: known once the trace has recorded the output.

    Attributes:
        node: the node.
    """

    node: Node

    def set(self, node: Node) -> None:
        """Set the node."""
        self.node = node


OnOutput = Callable[[Node], None]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What a rule returns for an operation.

    Attributes:
        output: what the operation returns, with the derivative that the rule prescribes.
        blocked: the operands (by ``id``) that receive no relevance.
        saved: tensors, the output among them, whose present values the backward pass needs.
        on_output: called with the node of the output once it is recorded.
        attention_map: of fused attention, how its map is recomputed; of unfused attention, a leaf in the place of the
            probabilities, at which their gradient can be read.
        plain: whether the operation is left to its plain gradient.
    """

    output: Any
    blocked: frozenset[int] = frozenset()
    saved: tuple[Tensor, ...] = ()
    on_output: OnOutput | None = None
    attention_map: FusedMap | Tensor | None = None
    plain: bool = False

    def also(self, on_output: OnOutput, output: Any = None, saved: tuple[Tensor, ...] = ()) -> RuleResult:
        """Return the same result, with one more function to call, other output and further tensors saved."""
        earlier = self.on_output

        def both(node: Node) -> None:
            if earlier is not None:
                earlier(node)
            on_output(node)

        kept = self.output if output is None else output
        return replace(self, output=kept, on_output=both, saved=(*self.saved, *saved))


class Rule(Protocol):
    """How relevance passes one kind of operation: the same value, with another derivative."""

    @property
    def name(self) -> str | None:
        """The name, for the coverage; ``None`` for one that only watches the plain derivative."""

    @property
    def conserves(self) -> bool:
        """Whether all relevance of the output reaches the inputs, except for the share of a bias."""

    def accepts(self, call: Call) -> bool:
        """Return whether the rule applies to an operation of its kind; a fused one is decomposed if not."""

    def apply(self, call: Call) -> RuleResult:
        """Run an operation."""


class Classification(NamedTuple):
    """What kind of operation a call is.

    Attributes:
        kind: the kind.
        statistic, probabilities: see :class:`Call`.
    """

    kind: str
    statistic: Tensor | None = None
    probabilities: Tensor | None = None
