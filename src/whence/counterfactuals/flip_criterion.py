"""Which predictions count as flipped, and the margin of a prediction to the decision boundary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..evaluation.case import Floats


@dataclass(frozen=True)
class FlipCriterion:
    """When a prediction counts as flipped.

    Attributes:
        predicted: the predicted class; for a multi-label model, the class whose decision shall flip.
        wanted: the class that shall be predicted instead; ``None``: any other.
        multi_label: whether each class is decided by itself, by the sign of its logit.
        positive: for a multi-label model, whether ``predicted`` was decided as true.
    """

    predicted: int
    wanted: int | None = None
    multi_label: bool = False
    positive: bool = True

    @property
    def watched(self) -> int:
        """The class whose probability is reported before and after."""
        return self.predicted if self.wanted is None else self.wanted

    def margins(self, logits: Floats) -> Floats:
        """Return ``[n]`` margins of logits ``[n, classes]``: above 0 where the prediction is flipped."""
        own = logits[:, self.watched]
        if self.multi_label:
            return np.asarray(-own if self.positive else own)
        ahead = own - np.delete(logits, self.watched, axis=1).max(1)
        return np.asarray(-ahead if self.wanted is None else ahead)

    def probabilities(self, logits: Floats) -> Floats:
        """Return probabilities ``[n, classes]``: softmax, or sigmoid for a multi-label model."""
        if self.multi_label:
            return np.asarray(0.5 * (1 + np.tanh(logits / 2)))
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))
