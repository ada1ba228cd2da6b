"""Saliency: the size of the gradient at each token (Simonyan, Vedaldi, Zisserman, 2014).

``S_i = ||df/dx_i||`` over the features of a token: how much the target would change, not in which direction, so scores
are never negative. The paper takes the largest channel of a pixel; for embeddings the Euclidean length is usual, and is
used here for pixels too.

Cost: one forward pass, one backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..tracing.reductions import precise
from .base import Reading
from .gradient_x_input import InputLevel
from .registry import method


@method("saliency")
@dataclass
class Saliency(InputLevel):
    """The length of each token's gradient.

    Attributes:
        norm: ``"l2"`` or ``"l1"`` over the features.
    """

    paper: ClassVar[str] = "Simonyan, Vedaldi, Zisserman, 2014"
    shows: ClassVar[str] = "Which tokens the answer reacts to most, whatever the direction."
    beware: ClassVar[str] = "It has no sign and is noisy in deep models: reacting to a word is not resting on it."

    norm: str = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("l1", "l2"):
            raise MethodError(f"`norm` must be 'l1' or 'l2', not {self.norm!r}.")

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules: every operation keeps its derivative."""
        return Rulebook(books=False)

    def read(self, run: Run) -> Reading:
        """Return the gradient's length at each token, ``[batch, tokens]``."""
        places = self.places(run)
        power = 2 if self.norm == "l2" else 1
        sizes: list[Tensor] = [precise(g).abs() ** power for g in run.backward(places)]
        reading = self.reading(run, places, sizes)
        others = [(dim, scores ** (1 / power)) for dim, scores in reading.others]
        return replace(reading, scores=reading.scores ** (1 / power), others=others)
