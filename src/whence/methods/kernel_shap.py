"""KernelSHAP (Lundberg, Lee, NeurIPS 2017), by Captum.

The Shapley value of a feature is its contribution, averaged over all orders in which features could be added to the
baseline. It is estimated by a regression: the target's values ``f(z)`` for sets ``z`` of features are fitted by
``w_0 + sum_i w_i z_i`` with the weights ``(M - 1) / (C(M, |z|) |z| (M - |z|))`` of theorem 2, ``M`` features.

Captum draws sets with that probability instead of weighting them, and weights the empty and the full set, whose weight
is infinite, by 10^6: the scores sum to ``f(x) - f(baseline)`` to about a millionth. They are estimates: exact where
features do not interact, else with an error that falls with the square root of ``samples``. Fewer samples than features
do not determine them. The default is two for each feature and 200 more; the authors' package takes 2048 more.

Sets are drawn from ``seed`` for each sample independently, so that scores are the same in any batch. Captum draws from
torch's global generator, whose state is restored. Explanations in several threads hold a lock while they draw; other
code that draws in another thread meanwhile changes the sets, and its own draws are changed.

Cost: a forward pass for each different set (at most ``samples``, at most ``2^M``), for the whole batch, batched as
those of :mod:`~whence.methods.occlusion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._utils.optional_imports import need
from .perturbation import SampledPerturbation, Surrogate, Value
from .registry import method


@method("kernel-shap")
@dataclass
class KernelShap(SampledPerturbation):
    """Shapley values of tokens, by regression."""

    paper: ClassVar[str] = "Lundberg, Lee, NeurIPS 2017"
    shows: ClassVar[str] = "A fair share for each token, from hiding many random groups of tokens."
    beware: ClassVar[str] = "Hidden groups make inputs the model never saw; with few samples the shares are noisy."
    conservative: ClassVar[bool] = True
    quick: ClassVar[Mapping[str, Any]] = {"samples": 2}

    def fit(self, value: Value, count: int, samples: int) -> Tensor:
        """Return the coefficients of the features, ``[count]``."""
        captum = need("captum.attr", "KernelSHAP", "captum")
        need("sklearn.linear_model", "KernelSHAP", "captum")
        if count == 1:  # there is no set but the empty and the full one
            return -value(torch.zeros(1, 1))
        shap = captum.KernelShap(value)
        shap.interpretable_model = Surrogate(shap.interpretable_model)
        found: Tensor = shap.attribute(torch.ones(1, count), n_samples=samples, return_input_shape=False)
        return found.flatten()
