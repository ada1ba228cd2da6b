"""The outputs of object detectors: class logits for each query, which may include a "no object" class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .seed import named_output


def query_logits(outputs: Any) -> Tensor | None:
    """Return ``[batch, queries, classes]``, found by the output names that detectors use."""
    return named_output(outputs, "logits", "pred_logits")


def has_text_classes(outputs: Any) -> bool:
    """Return whether the classes are text queries of the user, not those of the model's configuration (OWL-ViT)."""
    return named_output(outputs, "text_embeds") is not None


def has_no_object_class(outputs: Any, classes: int, labels: Mapping[int, str]) -> bool:
    """Return whether the last class of a detector is "no object", as in DETR.

    It is where there is one class more than names, or no names are known. All classes are objects where there are as
    many as names (Deformable DETR and its successors), where there is only one, and where classes are text queries.
    """
    if classes == 1 or has_text_classes(outputs):
        return False
    return not labels or classes == max(labels) + 2
