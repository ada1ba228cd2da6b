"""What detectors answer: for each query logits of classes, and among these perhaps "no object"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .seed import named_output


def query_logits(outputs: Any) -> Tensor | None:
    """``[batch, queries, classes]``, by the names that detectors give them."""
    return named_output(outputs, "logits", "pred_logits")


def reads_texts(outputs: Any) -> bool:
    """Whether the classes are texts that were asked for, not those that the model has names of (OWL-ViT)."""
    return named_output(outputs, "text_embeds") is not None


def says_nothing(outputs: Any, classes: int, labels: Mapping[int, str]) -> bool:
    """Whether the last class of a detector is "no object", as in DETR.

    It is, where there is one class more than names, or no names are known. Where there are as many as names (Deformable
    DETR and its followers), where there is one alone, and where classes are texts that were asked for, all are objects.
    """
    if classes == 1 or reads_texts(outputs):
        return False
    return not labels or classes == max(labels) + 2
