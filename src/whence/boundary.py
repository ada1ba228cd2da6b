"""Where one block ends and the next begins, and what passes there in a backward."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .ledger import Entry
from .node import Node, on_gradient


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
