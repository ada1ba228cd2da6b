"""Which answer counts as flipped, and how far an answer is from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..evaluation.case import Floats


@dataclass(frozen=True)
class Question:
    """Does the model still say what it said?

    Attributes:
        said: the class that the model named; of a multi-label model, the class that is asked about.
        wanted: the class that it shall name instead; ``None``: any other.
        several: whether several classes can be true, so that each is answered by yes or no.
        yes: what the answer to ``said`` was, where several can be true.
    """

    said: int
    wanted: int | None = None
    several: bool = False
    yes: bool = True

    @property
    def watched(self) -> int:
        """The class whose probability is followed."""
        return self.said if self.wanted is None else self.wanted

    def margins(self, logits: Floats) -> Floats:
        """``[n]``, from ``[n, classes]``: above 0 where the answer is flipped, below by how much it is not."""
        own = logits[:, self.watched]
        if self.several:
            return np.asarray(-own if self.yes else own)
        ahead = own - np.delete(logits, self.watched, axis=1).max(1)
        return np.asarray(-ahead if self.wanted is None else ahead)

    def probabilities(self, logits: Floats) -> Floats:
        """``[n, classes]``: by softmax, or one by one where several classes can be true."""
        if self.several:
            return np.asarray(0.5 * (1 + np.tanh(logits / 2)))
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))
