"""Zennit: LRP by hooks on modules; what it is made for, and what becomes of a Transformer.

Sums, products and softmax written as functions are no modules: Zennit does not see them, and hands relevance through
them by their plain gradient. A residual sum so hands all of it to both of its summands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tools.benchmarks.peers.cases import Case, Logits
from tools.benchmarks.peers.comparison import Comparison, Scores

GAMMA = 0.25


def epsilon() -> Any:
    """The epsilon rule in all layers."""
    from zennit.rules import Epsilon

    return everywhere(Epsilon(epsilon=1e-9))


def gamma() -> Any:
    """The gamma rule in all layers."""
    from zennit.rules import Gamma

    return everywhere(Gamma(gamma=GAMMA))


def everywhere(rule: Any) -> Any:
    """One rule for linear layers and convolutions; activations pass relevance on."""
    from zennit.composites import LayerMapComposite
    from zennit.rules import Pass
    from zennit.types import Activation, Convolution, Linear

    return LayerMapComposite([(Activation, Pass()), ((Convolution, Linear), rule)])


def epsilon_plus() -> Any:
    """A composite of Zennit's own."""
    from zennit.composites import EpsilonPlus

    return EpsilonPlus()


def under(composite: Callable[[], Any]) -> Callable[[Case], Scores]:
    """Relevance of pixels under a composite."""

    def theirs(case: Case) -> Scores:
        made, model = composite(), Logits(case.model, *case.inputs)

        def run() -> Tensor:
            x = case.pixels.clone().requires_grad_()
            with made.context(model):
                value = model(x)[:, case.target]
                return torch.autograd.grad(value, x, value.detach())[0].sum(1)[0]

        return run

    return theirs


COMPARISONS = [
    Comparison(
        "zennit",
        "Epsilon(1e-9)",
        "convnet",
        under(epsilon),
        "attn-lrp",
        lambda case: {"at": "pixel"},
        note="without attention, `attn-lrp` is LRP-0",
    ),
    Comparison(
        "zennit",
        f"Gamma({GAMMA})",
        "convnet",
        under(gamma),
        "attn-lrp",
        lambda case: {"at": "pixel", "gamma": GAMMA, "conv_gamma": GAMMA},
    ),
    Comparison(
        "zennit",
        "EpsilonPlus",
        "vit",
        under(epsilon_plus),
        "lrp",
        lambda case: {"at": "pixel"},
        same=False,
        note="Zennit sees modules only: plain gradients in attention, residual sums that count relevance twice",
    ),
]
