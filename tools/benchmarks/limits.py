"""What we hold ourselves to: times as multiples of one plain forward and backward pass, batch 1."""

from __future__ import annotations

from typing import NamedTuple


class ModelLimits(NamedTuple):
    """The largest ratios of some methods on some models.

    Attributes:
        models: names of ``models.MODELS``.
        methods: names of methods.
        warm: the limit of a replayed explanation.
        first: the limit of the first explanation.
    """

    models: tuple[str, ...]
    methods: tuple[str, ...]
    warm: float
    first: float


LIMITS = (
    ModelLimits(("tiny",), ("conservative-lrp", "attn-lrp", "gradient-x-input", "saliency"), 0.7, 8),
    ModelLimits(("tiny",), ("generic-attention", "grad-cam", "rollout", "libragrad", "res-lrp"), 1.0, 8),
    ModelLimits(("tiny",), ("transformer-attribution", "lrp"), 2.0, 12),
    ModelLimits(("bert", "vit"), ("conservative-lrp", "attn-lrp", "gradient-x-input"), 0.95, 1.6),
    ModelLimits(("bert", "vit"), ("transformer-attribution",), 2.3, 3.5),
)
#: ten targets of BERT-base, as a multiple of one
TARGET_LIMIT = 4.5
