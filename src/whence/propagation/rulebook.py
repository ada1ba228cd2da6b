"""Which rule each kind of operation follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..tracing.node import Node
from ..tracing.op_call import Rule
from .relevance_function import Phase


@dataclass
class Rulebook:
    """Which rule each kind of operation follows.

    Attributes:
        rules: kind of operation -> rule; a kind without one keeps its plain derivative.
        maps: whether attention probabilities are needed as tensors.
        phase: for rules that carry relevance, what the backward carries now.
        fan_out: called with each tensor that several operations read.
        books: whether a ledger is kept.
        head: whether the head will be run again, on other values.
        inside: whether what each block did is asked for: attention is then written out.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    maps: bool = False
    phase: Phase | None = None
    fan_out: Callable[[Tensor, Node], None] | None = None
    books: bool = True
    head: bool = False
    inside: bool = False
