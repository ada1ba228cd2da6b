"""Occlusion (Zeiler, Fergus, ECCV 2014); of words, erasure (Li, Monroe, Jurafsky, 2016).

``R_i = f(x) - f(x with feature i replaced by the baseline)``. With ``window`` > 1 that many neighbours are replaced at
once, at every place (a square of patches, for an image with ``at="pixel"``), and a feature's score is the mean over the
windows that contain it, as in Captum. Differences are those of Captum's ``FeatureAblation``; its ``Occlusion`` would
return them in single precision and count padding as neighbours.

Two features that can replace each other both score low; the scores do not sum to the prediction.

``at="pixel"``: a patch's score is divided among its pixels, so that a patch's pixels sum to it.

Cost: one forward pass, and one for each window (window 1: each token), for the whole batch; several in one batch
(``internal_batch_size``), and one more to test that copies in a batch do not influence each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._utils.optional_imports import need
from ..errors import MethodError
from .perturbation import PerturbationMethod, Value
from .registry import method


@method("occlusion")
@dataclass
class Occlusion(PerturbationMethod):
    """The decrease of the target without a token.

    Attributes:
        window: the number of neighbours that are replaced at once; for patches, the side of a square of them.
    """

    paper: ClassVar[str] = "Zeiler, Fergus, ECCV 2014"
    shows: ClassVar[str] = "How much the answer falls when each token alone is hidden."
    beware: ClassVar[str] = "Words that stand in for each other hide each other: neither seems to matter."
    forwards: ClassVar[int | str] = "1 + tokens"
    quick: ClassVar[Mapping[str, Any]] = {"window": 1_000_000}

    window: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise MethodError(f"`window` must be at least 1, not {self.window}.")

    def groups(self, features: Tensor) -> list[Tensor]:
        """Return a window at every place; a single one, where there are fewer features than a window holds."""
        windows = features
        for d, size in enumerate(features.shape):
            windows = windows.unfold(d, min(self.window, size), 1)
        return list(windows.flatten(0, features.dim() - 1).flatten(1))

    def attribute(self, value: Value, count: int) -> Tensor:
        """Return the decrease of the target without each window, ``[count]``."""
        captum = need("captum.attr", "occlusion", "captum")
        decrease: Tensor = captum.FeatureAblation(value).attribute(torch.ones(1, count))
        return decrease[0]
