"""The rulebook of a method: kind of operation -> propagation rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..tracing.node import Node
from ..tracing.op_call import Rule
from .relevance_function import Phase


@dataclass
class Rulebook:
    """The propagation rule of each kind of operation, and what a method needs from the trace.

    Attributes:
        rules: kind of operation -> rule; a kind without a rule keeps its plain derivative.
        maps: whether attention probabilities are needed as tensors.
        phase: for rules that propagate relevance, what the current backward pass carries.
        fan_out: called with each tensor that several operations read.
        books: whether a ledger is kept.
        head: whether the output head will be rerun on other values.
        inside: whether relevance inside each block is requested: attention is then decomposed into primitive
            operations.
        heads: whether all attention heads are read; by default, if there are maps, a phase, or relevance inside blocks.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    maps: bool = False
    phase: Phase | None = None
    fan_out: Callable[[Tensor, Node], None] | None = None
    books: bool = True
    head: bool = False
    inside: bool = False
    heads: bool | None = None

    @property
    def reads_heads(self) -> bool:
        """Whether all attention heads, or the features inside all layers, are needed in one process."""
        derived = self.maps or self.phase is not None
        return self.inside or (derived if self.heads is None else self.heads)
