"""LIME (Ribeiro, Singh, Guestrin, KDD 2016), by Captum.

A linear model in which features are kept is fitted to the target near the input (eq. 1, algorithm 1):

    ``min_w  sum_z pi(z) (f(z) - w_0 - w . z)^2 + regularisation``,   ``pi(z) = exp(-D(x, z)^2 / (2 width^2))``

over sets ``z`` of features; a feature's score is its coefficient. ``D`` is the cosine distance of the zeros and ones of
``z`` from the ones of the whole input.

Deviations. The paper chooses K features by a lasso and fits these by least squares; the authors' package fits a ridge
regression (alpha 1) and takes a width of 25 on a distance in per cent, which is 0.25. Both are the defaults here, with
all features. Captum's defaults are ``surrogate="lasso", alpha=0.01, width=1.0``, and a distance of the inputs
themselves. Captum keeps each feature with probability 1/2, as the authors' package does for images; for texts the
latter draws how many to remove. The package explains probabilities: pass a target function that returns them for the
same.

Sets are drawn from ``seed`` for each sample independently; on torch's generator and threads see
:mod:`~whence.methods.kernel_shap`.

Cost: a forward pass for each different set (at most ``samples``), for the whole batch, batched as those of
:mod:`~whence.methods.occlusion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._utils.optional_imports import need
from ..errors import MethodError
from .perturbation import SampledPerturbation, Surrogate, Value
from .registry import method


@method("lime")
@dataclass
class Lime(SampledPerturbation):
    """The coefficients of a linear model fitted near the input.

    Attributes:
        width: the width of the kernel: the smaller, the lower the weight of sets far from the full one.
        surrogate: ``"ridge"``, ``"lasso"`` or ``"linear"`` (not regularised).
        alpha: the regularisation strength of ridge and lasso; ``None``: 1 and 0.01.
    """

    paper: ClassVar[str] = "Ribeiro, Singh, Guestrin, KDD 2016"
    shows: ClassVar[str] = "A simple weighted list of tokens that mimics the model around this input."
    beware: ClassVar[str] = "It changes with the random samples; where its fit is poor, so is the explanation."
    quick: ClassVar[Mapping[str, Any]] = {"samples": 2}

    width: float = 0.25
    surrogate: str = "ridge"
    alpha: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width <= 0:
            raise MethodError(f"`width` must be greater than 0, not {self.width}.")
        if self.surrogate not in ("ridge", "lasso", "linear"):
            raise MethodError(f"`surrogate` must be 'ridge', 'lasso' or 'linear', not {self.surrogate!r}.")
        if self.alpha is not None and (self.alpha < 0 or self.surrogate == "linear"):
            raise MethodError(f"`alpha` must not be negative, and goes with ridge or lasso, not {self.alpha}.")

    def fit(self, value: Value, count: int, samples: int) -> Tensor:
        """Return the coefficients of the features, ``[count]``."""
        captum = need("captum.attr", "LIME", "captum")
        need("sklearn.linear_model", "LIME", "captum")
        near = need("captum.attr._core.lime", "LIME", "captum").get_exp_kernel_similarity_function("cosine", self.width)
        lime = captum.Lime(value, Surrogate(self._surrogate()), near)
        found: Tensor = lime.attribute(torch.ones(1, count), n_samples=samples, return_input_shape=False)
        return found.flatten()

    def _surrogate(self) -> Any:
        models = need("captum._utils.models.linear_model", "LIME", "captum")
        if self.surrogate == "linear":
            return models.SkLearnLinearRegression()
        if self.surrogate == "ridge":
            return models.SkLearnRidge(alpha=1.0 if self.alpha is None else self.alpha)
        return models.SkLearnLasso(alpha=0.01 if self.alpha is None else self.alpha)
