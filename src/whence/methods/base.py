"""The base class of explanation methods, and the scores that a method reads from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..tracing.axes import Dim


@dataclass
class Reading:
    """The scores that a method reads from a run.

    Attributes:
        scores: ``[batch, tokens]``.
        layers: ``[batch, blocks, tokens]``, relevance entering each block.
        heads: ``[batch, blocks, heads]``.
        grid: height and width, where the scores are of pixels.
        others: further token streams: their axis and ``[batch, tokens]`` scores.
        tokens: the axis of the scores, if it is not that of what the first attention reads.
        branches: ``[batch, blocks, 2, tokens]``, relevance of each block's attention branch and of the rest of it.
        pairs: ``[batch, blocks, tokens, tokens]``, token-to-token relevance: from each token to those it attended to.
    """

    scores: Tensor
    layers: Tensor | None = None
    heads: Tensor | None = None
    grid: tuple[int, int] | None = None
    others: list[tuple[Dim, Tensor]] = field(default_factory=list)
    tokens: Dim | None = None
    branches: Tensor | None = None
    pairs: Tensor | None = None


class Method:
    """An explanation method: a dataclass of its options, with a rulebook and a read-out.

    Class attributes describe it for :func:`whence.list_methods`.

    Attributes:
        paper: the publication.
        shows: one sentence for readers who do not know methods: what the scores mean.
        beware: one sentence: when not to trust them.
        class_specific: whether the scores depend on the target class.
        conservative: whether the scores sum to the target's value, up to what the ledger records.
        lrp: whether it is a form of LRP, or propagates as one does; LRP is said to be patented (``docs/legal.md``).
        forwards, backwards: the cost in passes; in words where it depends on the input.
        needs: what it requires of a model.
        quick: options that make it fast, for a test of whether it applies at all.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    shows: ClassVar[str] = ""
    beware: ClassVar[str] = ""
    class_specific: ClassVar[bool] = True
    conservative: ClassVar[bool] = False
    lrp: ClassVar[bool] = False
    forwards: ClassVar[int | str] = 1
    backwards: ClassVar[int] = 1
    needs: ClassVar[str] = "any differentiable model"
    quick: ClassVar[Mapping[str, Any]] = {}

    def rulebook(self) -> Rulebook:
        """Return which rule each kind of operation follows."""
        raise NotImplementedError(f"Method '{self.name}' has no rulebook.")

    def start(self, run: Run) -> Run:
        """Return the run to be read: the same, or one whose backward passes start elsewhere (at a probability)."""
        return run

    def read(self, run: Run) -> Reading:
        """Turn a traced forward pass into scores."""
        raise NotImplementedError(f"Method '{self.name}' has no read-out.")
