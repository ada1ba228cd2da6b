"""One traced forward of a model, and the backwards that a method asks of it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .axes import Axes, Dim, per_sample, per_token, precise
from .call import Rule
from .errors import InputError, ModelError, WhenceWarning
from .ledger import Ledger
from .node import Node, Residual, Source, edge_of, node_of
from .propagate import Phase
from .target import Seed
from .trace import Trace


@dataclass
class Rulebook:
    """Which rule each kind of operation follows.

    Attributes:
        rules: kind of operation -> rule; a kind without one keeps its plain derivative.
        maps: whether attention probabilities are needed as tensors.
        phase: for rules that carry relevance, what the backward carries now.
        fan_out: called with each tensor that several operations read.
        books: whether a ledger is kept.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    maps: bool = False
    phase: Phase | None = None
    fan_out: Callable[[Tensor, Node], None] | None = None
    books: bool = True


@dataclass
class Boundary:
    """The tensor that enters a block (or leaves the last one), and the relevance found there."""

    tensor: Tensor
    node: Node
    relevance: Tensor | None = None  # shaped like the tensor


class Run:
    """A traced forward: what a method reads its scores from.

    Attributes:
        model: what was run.
        trace: what happened.
        seed: where backwards start.
        mask: ``[batch, tokens]``, true where a token is padding; ``None`` if there is no padding mask.
        repeat: the same forward again, explaining the same, with other values in place of some tensors (by the ``seq``
            of their nodes).
        places: a grid, and ``[batch, patches]``: where each patch went, if the model puts them in its own order.
    """

    def __init__(self, model: nn.Module, trace: Trace, seed: Seed, rulebook: Rulebook, mask: Tensor | None) -> None:
        self.model = model
        self.trace = trace
        self.seed = seed
        self.rulebook = rulebook
        self.mask = mask
        self.boundaries = self._boundaries()
        self.repeat: Callable[[Mapping[int, Tensor]], Run] = _cannot_repeat
        self.places: tuple[tuple[int, int], Tensor] | None = None
        self.ledger: Ledger | None = trace.ledger
        if rulebook.phase is not None and rulebook.books:
            self.ledger = Ledger(trace.batch)
            rulebook.phase.ledger = self.ledger

    # -- structure -------------------------------------------------------------------------------------------

    def _boundaries(self) -> list[Boundary]:
        """The trunk of each residual addition around an attention, in order, and the last one's output."""
        tensors: list[Tensor] = []
        done: set[int] = set()
        for residual in self.trace.residuals:
            if set(residual.attentions) - done:
                done |= set(residual.attentions)
                tensors.append(residual.trunk)
        if tensors:
            end = self._end()
            post_norm = len(tensors) > 1 and node_of(tensors[-1]).kind == "norm" and end.normed is not None
            tensors.append(end.normed if post_norm and end.normed is not None else end.output)
        return [Boundary(t, node_of(t)) for t in tensors]

    def _end(self) -> Residual:
        """The last residual addition along the tokens that the last attention wrote."""
        last = next(r for r in reversed(self.trace.residuals) if r.attentions)
        shape = last.output.shape
        return next(r for r in reversed(self.trace.residuals) if r.output.shape == shape)

    def position(self, at: str) -> Tensor:
        """The tensor at which input-level methods read: see ``at`` in :func:`whence.explain`."""
        if at == "position" and self.boundaries:
            return self.boundaries[0].tensor
        if at == "position" and self.trace.entry is not None:
            return self.trace.entry
        return self.source(embedded=None if at == "position" else at == "token").tensor

    def source(self, embedded: bool | None) -> Source:
        """The first input that carries relevance, embedded or raw."""
        for source in self.trace.sources:
            if source.name and (embedded is None or source.embedded == embedded):
                return source
        kind = "embedding of an integer input" if embedded else "floating-point input"
        raise InputError(
            f"Relevance has nowhere to go: the model has no {kind}. Give the model its float inputs "
            "(for example inputs_embeds or pixel_values), or choose another `at`."
        )

    # -- backwards -------------------------------------------------------------------------------------------

    def backward(self, tensors: Sequence[Tensor], relevance: bool = False, keep: bool = False) -> list[Tensor]:
        """Send the seed back and return what arrives at each tensor: gradients, or relevance.

        Args:
            tensors: where to read.
            relevance: carry relevance (a rulebook with a phase).
            keep: whether another backward will follow.
        """
        if self.rulebook.phase is not None:
            self.rulebook.phase.relevance, self.rulebook.phase.keep = relevance, keep
        hooks = [_watch(b) for b in self.boundaries]
        ends: Any = [edge_of(t) for t in tensors]
        try:
            found = torch.autograd.grad(
                self.seed.output, ends, self.seed.weights.to(self.seed.output.dtype),
                retain_graph=keep, allow_unused=True,
            )  # fmt: skip
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            raise ModelError(
                "The model overwrites a tensor in place that its own backward needs (it could not be trained either). "
                f"Replace the in-place operation by one that makes a new tensor. Torch says: {error}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        for b in self.boundaries:  # where the backward ends, autograd does not call the hook of an overwritten tensor
            b.relevance = next((g for t, g in zip(tensors, found, strict=True) if t is b.tensor), b.relevance)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]

    def settle(self, gradient: bool, end: Tensor | None = None) -> Tensor | None:
        """Turn what passed the block boundaries into relevance there, and close the ledger.

        Args:
            gradient: whether the last backward carried gradients (relevance is then gradient x value).
            end: the tensor at which it ended.

        Returns:
            Relevance entering each block, ``[batch, blocks, tokens]``.
        """
        met = [b for b in self.boundaries if b.relevance is not None]
        for b in met:
            assert b.relevance is not None
            if gradient:
                b.relevance = precise(b.relevance) * precise(b.tensor.detach())
        if self.ledger is not None:
            total = self.seed.value if gradient else self.seed.weights.reshape(len(self.seed.weights), -1).sum(1)
            sums = [
                per_sample(precise(b.relevance), b.node.axes, self.trace.batch) for b in met if b.relevance is not None
            ]
            floor = 0 if end is None else node_of(end).seq
            self.ledger.close(total, sums, [b.node.seq for b in met], floor)
        layers = [self.per_token(precise(b.relevance), b.node.axes) for b in met[:-1] if b.relevance is not None]
        return torch.stack(layers, 1) if len({t.shape for t in layers}) == 1 else None

    def forget(self) -> None:
        """Leave out of the books what was sent back to learn about the model, not to explain it."""
        if self.ledger is not None:
            self.ledger.forget()

    # -- tokens ----------------------------------------------------------------------------------------------

    def tokens(self) -> Dim:
        """The token axis: what the first attention reads."""
        if not self.trace.attentions:
            return ()
        record = self.trace.attentions[0]
        return record.axes[record.key]

    def per_token(self, relevance: Tensor, axes: Axes) -> Tensor:
        """Sum a tensor over its features: ``[batch, tokens]``."""
        return per_token(relevance, axes, self.trace.batch, self.tokens())

    def zero_padding(self, scores: Tensor) -> Tensor:
        """Padding scores exactly 0; a model that reads its padding all the same is spoken of."""
        if self.mask is None or self.mask.shape != scores.shape:
            return scores
        share = float(scores[self.mask].abs().sum() / scores.abs().sum().clamp(min=1e-30))
        if share > 1e-3:
            warnings.warn(
                f"The model reads its padding: {share:.0%} of the relevance lay there and is left out. Pad on the side "
                "that the model expects, or explain each sample without padding.",
                WhenceWarning,
                stacklevel=3,
            )
        return scores.masked_fill(self.mask, 0.0)


def _cannot_repeat(replaced: Mapping[int, Tensor]) -> Run:
    raise ModelError("This run was not made by whence.explain, so it cannot be repeated.")


def _watch(boundary: Boundary) -> RemovableHandle:
    """Write down what passes a boundary."""

    def hook(value: Tensor) -> None:
        boundary.relevance = value.detach()

    edge = edge_of(boundary.tensor)
    handle: RemovableHandle
    if isinstance(edge, Tensor):
        handle = edge.register_hook(hook)
    else:
        number = edge.output_nr
        handle = edge.node.register_prehook(lambda grads: hook(grads[number]))
    return handle


@contextlib.contextmanager
def clean_buffers(model: nn.Module) -> Iterator[None]:
    """Free buffers that the model itself writes to in its forward from the trace that wrote them."""
    try:
        yield
    finally:
        for buffer in model.buffers():
            if hasattr(buffer, "_whence"):
                buffer.detach_()
                del buffer._whence
                del buffer._whence_maker  # type: ignore[attr-defined]  # set beside the node


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the duration, every module's own flag restored afterwards."""
    flags = [(m, m.training) for m in model.modules() if m.training]
    try:
        for m, _ in flags:
            m.training = False
        yield
    finally:
        for m, flag in flags:
            m.training = flag
