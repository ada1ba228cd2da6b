"""The common part of methods that run the model on many changed copies of the input."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..runs.copies import copies_at_once
from ..runs.run import Run
from .gradient_x_input import InputLevel


@dataclass
class ChangedCopies(InputLevel):
    """Methods that run the model on many changed copies of the input, several of them in one forward pass.

    Attributes:
        internal_batch_size: how many samples one forward pass has at most, as in Captum: memory grows with it. At least
            one copy of the batch is run. ``None``: as many as fit into half of the free memory, up to 1024 tokens for
            each thread of a CPU, 16384 on a GPU. Scores do not depend on it, up to rounding.
    """

    internal_batch_size: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.internal_batch_size is not None and self.internal_batch_size < 1:
            raise MethodError(f"`internal_batch_size` must be at least 1, not {self.internal_batch_size}.")

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules: every operation keeps its derivative."""
        return Rulebook(books=False)

    def copies(self, run: Run, places: list[Tensor], gradients: bool) -> int:
        """Return how many copies of the batch are run in one forward pass.

        Args:
            run: the run whose model is run again.
            places: the tensors that are replaced.
            gradients: whether a backward pass follows.
        """
        return copies_at_once(run, places, self.internal_batch_size, gradients)
