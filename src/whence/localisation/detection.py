"""The objects that a detector finds, each a target that can be explained.

Any model whose outputs have logits ``[batch, queries, classes]`` and boxes ``[batch, queries, 4]`` is a detector. Where
it has one class more than names, the last is "no object" and probabilities are a softmax, as in DETR; otherwise each is
a sigmoid, as in Deformable DETR and its successors. Where the classes are the texts of the input (OWL-ViT), their names
are these texts, or their indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, ModelError
from ..explainer.explainer import Explainer
from ..inputs.sample import Sample, collate
from ..results.input_origin import ImageOrigin, TextOrigin
from ..targets.detector_outputs import has_no_object_class, has_text_classes, query_logits
from ..targets.seed import class_index, labels_of, named_output
from ..tracing.eval_mode import undisturbed
from .region import Box


@dataclass(frozen=True)
class Detection:
    """An object that a detector found.

    Attributes:
        query: the index of its query.
        category: the index of its class.
        label: the class's name.
        score: its probability.
        box: left, top, right and bottom, in pixels of the image.
    """

    query: int
    category: int
    label: str
    score: float
    box: Box

    def logit(self, outputs: Any) -> Tensor:
        """Return ``[batch]``: the logit of its class at its query, a target for :func:`whence.explain`."""
        logits, _ = _logits_and_boxes(outputs)
        return logits[:, self.query, self.category]


def detect(
    explainer: Explainer, image: Any, confidence: float = 0.5, target: int | str | None = None
) -> list[Detection]:
    """Return the objects that a detector finds in an image, the most probable first.

    Args:
        explainer: of a detector.
        image: one image, as the explainer takes it.
        confidence: the probability above which a query counts as an object.
        target: only objects of this class, by index or label.

    Example:
        >>> cat, *others = detect(explainer, "street.jpg")
        >>> explainer("street.jpg", "generic-attention", cat.logit).save("why-a-cat.html")
    """
    if not 0 <= confidence < 1:
        raise InputError(f"The confidence is a probability from 0 to below 1, not {confidence!r}.")
    sample = explainer.read(image)
    outputs = _outputs(explainer, sample)
    logits, boxes = _logits_and_boxes(outputs)
    logits = logits[0].double()
    known = explainer.target_labels.labels or labels_of(explainer.target_labels.model)
    has_no_object = has_no_object_class(outputs, logits.shape[-1], known)
    probabilities = logits.softmax(-1)[:, :-1] if has_no_object else logits.sigmoid()
    names = _names(explainer.target_labels.labels, known, sample, outputs, probabilities.shape[-1])
    wanted = None if target is None else class_index(target, probabilities.shape[-1], names)
    scores, classes = probabilities.max(-1)
    out = []
    for query in scores.argsort(descending=True, stable=True).tolist():
        score = float(scores[query])
        number = int(classes[query])
        if score > confidence and wanted in (None, number):
            box = _placed(boxes[0, query].tolist(), sample)
            out.append(Detection(query, number, names.get(number, str(number)), score, box))
    return out


def finds_objects(explainer: Explainer, image: Any) -> bool:
    """Return whether the model is a detector: its outputs have boxes; this takes one forward pass.

    Example:
        >>> finds_objects(explainer, "street.jpg")
        True
    """
    try:
        _logits_and_boxes(_outputs(explainer, explainer.read(image)))
    except ModelError:
        return False
    return True


def _outputs(explainer: Explainer, sample: Sample) -> Any:
    """Return the outputs of the model for one input."""
    tensors = explainer.placed(collate([sample]))
    with torch.no_grad(), undisturbed(explainer.model):
        return explainer.model(tensors[""]) if list(tensors) == [""] else explainer.model(**tensors)


def _names(
    given: Mapping[int, str], known: Mapping[int, str], sample: Sample, outputs: Any, classes: int
) -> Mapping[int, str]:
    """Return the names of the classes: given by the user, the texts of the input, or the model's."""
    if given:
        return given
    if has_text_classes(outputs):
        texts = next((o.texts for o in sample.origins.values() if isinstance(o, TextOrigin)), ())
        return dict(enumerate(texts)) if len(texts) == classes else {}
    return known if known and max(known) < classes else {}


def _logits_and_boxes(outputs: Any) -> tuple[Tensor, Tensor]:
    """Return logits ``[batch, queries, classes]`` and boxes ``[batch, queries, 4]``."""
    logits = query_logits(outputs)
    boxes = named_output(outputs, "pred_boxes")
    if logits is None or boxes is None or logits.dim() != 3 or boxes.shape != (*logits.shape[:2], 4):
        raise ModelError(
            f"The model answers with {type(outputs).__name__}, in which there are no logits [batch, queries, classes] "
            "with boxes [batch, queries, 4]: it finds no objects. Of a classifier, locate what a class rests on: "
            "whence.locate(explainer(image))."
        )
    return logits, boxes


def _placed(centred: list[float], sample: Sample) -> Box:
    """Return a box in pixels of the image, from its centre, width and height as shares of the model's input.

    They are shares of the image in the model's input, without padding.
    """
    origin = next((o for o in sample.origins.values() if isinstance(o, ImageOrigin)), None)
    edges = []
    for axis in (1, 0):
        middle = centred[1 - axis]
        half = centred[3 - axis] / 2
        ends = (middle - half, middle + half)
        if origin is None:
            edges.append(_on_input(ends, sample, axis))
        else:
            edges.append(_on_image(ends, origin, axis))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def _on_input(ends: tuple[float, float], sample: Sample, axis: int) -> list[float]:
    """Return the ends of a side in pixels of the model's input, where there is no image behind it."""
    limit = float(next(t.shape[axis - 2] for t in sample.tensors.values() if t.dim() == 4))
    return [min(max(end * limit, 0.0), limit) for end in sorted(ends)]


def _on_image(ends: tuple[float, float], origin: ImageOrigin, axis: int) -> list[float]:
    """Return the ends of a side in pixels of the image, cut at its borders."""
    limit = float(origin.image.shape[axis])
    scale = origin.scale[axis]
    shift = origin.shift[axis]
    first, last = sorted((shift, scale * limit + shift))
    low = max(0.0, first)
    high = min(float(origin.size[axis]), last)
    placed = sorted((low + end * (high - low) - shift) / scale for end in ends)
    return [min(max(end, 0.0), limit) for end in placed]
