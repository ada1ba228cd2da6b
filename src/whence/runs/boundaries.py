"""Where one block ends and the next begins, and what passes there in a backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..propagation.entry_amounts import EntryKey
from ..tracing.attention_record import AttentionRecord
from ..tracing.axes import Axis, Dim
from ..tracing.node import Node
from ..tracing.reductions import per_token, precise
from ..tracing.tensor_info import node_of, on_gradient


class BackwardContext(NamedTuple):
    """What a backward carries: gradients (relevance is then gradient x value) or relevance; the batch and tokens."""

    gradient: bool
    batch: Axis
    tokens: Dim


class BackwardRecorder(Protocol):
    """Where something is written down as a backward passes."""

    @property
    def relevance(self) -> Tensor | None:
        """What was written down."""

    def set(self, relevance: Tensor | None) -> None:
        """Set what was written down in a backward pass for several targets, or forget it."""

    def watch(self, way: BackwardContext) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""


@dataclass
class Boundary:
    """The tensor that enters a block (or leaves the last one), and the relevance found there.

    Attributes:
        tensor: the tensor.
        node: what is known of it.
        relevance: ``[batch, tokens]``; of a tensor without tokens, ``[batch, n]``. ``None`` until something has passed.
        passes: how many times something has passed.
    """

    tensor: Tensor
    node: Node
    relevance: Tensor | None = None
    passes: int = 0

    def watch(self, way: BackwardContext) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""
        return on_gradient(self.tensor, lambda value: self.take(way, value))

    def set(self, relevance: Tensor | None) -> None:
        """Set the relevance that passed in a backward pass for several targets, or forget it."""
        self.relevance = relevance

    def take(self, way: BackwardContext, value: Tensor) -> None:
        """Write down what arrives."""
        self.passes += 1
        found = precise(value.detach())
        if way.gradient:
            found = found * precise(self.tensor.detach())
        self.relevance = per_token(found, self.node.axes, way.batch, way.tokens)


@dataclass
class HeadRelevance:
    """What an attention wrote, and what each of its heads carried of the relevance there.

    Attributes:
        record: the attention.
        relevance: ``[batch, heads, queries]``; ``None`` until something has passed, or if heads cannot be told apart.
    """

    record: AttentionRecord
    relevance: Tensor | None = None

    def set(self, relevance: Tensor | None) -> None:
        """Set the relevance that passed in a backward pass for several targets, or forget it."""
        self.relevance = relevance

    @property
    def known(self) -> bool:
        """Whether heads can be told apart."""
        output = self.record.output
        assert output is not None
        return self.record.by_head(torch.empty_like(output, device="meta"), node_of(output).axes) is not None

    def watch(self, way: BackwardContext) -> RemovableHandle:
        """Write down what passes, until the handle is removed."""
        output, wrote = self.record.output, self.record.wrote
        assert output is not None
        assert wrote is not None

        def hook(value: Tensor) -> None:
            carried = value.detach() * wrote() if way.gradient else value.detach()
            self.relevance = self.record.by_head(carried, node_of(output).axes)

        return on_gradient(output, hook)


@dataclass
class BatchedResult:
    """What a backward brought, together with those of other targets.

    Attributes:
        found: what the method read of it; empty where it has to go alone.
        passed: what passed each boundary.
        operations, amounts: what was entered into the ledger.
    """

    found: list[Tensor] = field(default_factory=list)
    passed: list[Tensor | None] = field(default_factory=list)
    operations: list[EntryKey] = field(default_factory=list)
    amounts: Tensor | None = None
