"""Where one block ends and the next begins, and what passes there in a backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .attention import AttentionRecord
from .ledger import Entry
from .node import Node, node_of, on_gradient


class Passage(Protocol):
    """Where something is written down as a backward passes."""

    relevance: Tensor | None

    def watch(self) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""


@dataclass
class Boundary:
    """The tensor that enters a block (or leaves the last one), and the relevance found there."""

    tensor: Tensor
    node: Node
    relevance: Tensor | None = None  # shaped like the tensor

    def watch(self) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""

        def hook(value: Tensor) -> None:
            self.relevance = value.detach()

        return on_gradient(self.tensor, hook)


@dataclass
class Written:
    """What an attention wrote, and what each of its heads carried of the relevance there.

    Attributes:
        record: the attention.
        gradient: whether gradients pass, of which relevance is gradient x value.
        relevance: ``[batch, heads, queries]``; ``None`` until something has passed.
        known: whether heads can be told apart.
    """

    record: AttentionRecord
    gradient: bool
    relevance: Tensor | None = None
    known: bool = True

    def watch(self) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""
        output, wrote = self.record.output, self.record.wrote
        assert output is not None
        assert wrote is not None

        def hook(value: Tensor) -> None:
            carried = value.detach() * wrote() if self.gradient else value.detach()
            self.relevance = self.record.by_head(carried, node_of(output).axes)
            self.known = self.relevance is not None

        return on_gradient(output, hook)


@dataclass
class Brought:
    """What a backward brought.

    Attributes:
        tensors: the tensors it was asked for, by ``id``.
        found: what arrived at each.
        passed: what passed each boundary.
        entries: the ledger's.
    """

    tensors: list[int] = field(default_factory=list)
    found: list[Tensor | None] = field(default_factory=list)
    passed: list[Tensor | None] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
