"""What a detector found, each object a target that can be explained.

Any model that answers with logits ``[batch, queries, classes]`` and boxes ``[batch, queries, 4]`` is a detector. Where
it has one class more than names, the last is "no object" and probabilities are a softmax, as in DETR; else each is a
sigmoid, as in Deformable DETR and its followers. Where the classes are not those that have names, but texts that were
asked for (OWL-ViT), they go by these texts, or by their numbers.
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
from ..targets.detector_outputs import query_logits, reads_texts, says_nothing
from ..targets.seed import class_index, labels_of, named_output
from ..tracing.eval_mode import undisturbed
from .region import Box


@dataclass(frozen=True)
class Detection:
    """An object that a detector found.

    Attributes:
        query: the query that found it.
        category: the number of its class.
        label: the class's name.
        score: its probability.
        box: left, top, right and bottom, in pixels of the picture.
    """

    query: int
    category: int
    label: str
    score: float
    box: Box

    def logit(self, outputs: Any) -> Tensor:
        """``[batch]``: the logit of its class at its query, a target for :func:`whence.explain`."""
        logits, _ = _answers(outputs)
        return logits[:, self.query, self.category]


def detect(
    explainer: Explainer, image: Any, confidence: float = 0.5, target: int | str | None = None
) -> list[Detection]:
    """The objects that a detector finds in a picture, the most probable first.

    Args:
        explainer: of a detector.
        image: one picture, as the explainer takes it.
        confidence: the probability above which a query has found an object.
        target: only objects of this class, by number or label.

    Example:
        >>> cat, *others = detect(explainer, "street.jpg")
        >>> explainer("street.jpg", "generic-attention", cat.logit).save("why-a-cat.html")
    """
    if not 0 <= confidence < 1:
        raise InputError(f"The confidence is a probability from 0 to below 1, not {confidence!r}.")
    sample = explainer.read(image)
    outputs = _outputs(explainer, sample)
    logits, boxes = _answers(outputs)
    each, known = logits[0].double(), explainer.answers.labels or labels_of(explainer.answers.model)
    last = says_nothing(outputs, each.shape[-1], known)
    probabilities = each.softmax(-1)[:, :-1] if last else each.sigmoid()
    names = _names(explainer.answers.labels, known, sample, outputs, probabilities.shape[-1])
    wanted = None if target is None else class_index(target, probabilities.shape[-1], names)
    scores, classes = probabilities.max(-1)
    out = []
    for query in scores.argsort(descending=True, stable=True).tolist():
        score, number = float(scores[query]), int(classes[query])
        if score > confidence and wanted in (None, number):
            box = _placed(boxes[0, query].tolist(), sample)
            out.append(Detection(query, number, names.get(number, str(number)), score, box))
    return out


def finds_objects(explainer: Explainer, image: Any) -> bool:
    """Whether a model answers with boxes, so that objects can be asked for; one forward.

    Example:
        >>> finds_objects(explainer, "street.jpg")
        True
    """
    try:
        _answers(_outputs(explainer, explainer.read(image)))
    except ModelError:
        return False
    return True


def _outputs(explainer: Explainer, sample: Sample) -> Any:
    """What the model says of one input."""
    tensors = explainer.placed(collate([sample]))
    with torch.no_grad(), undisturbed(explainer.model):
        return explainer.model(tensors[""]) if list(tensors) == [""] else explainer.model(**tensors)


def _names(
    given: Mapping[int, str], known: Mapping[int, str], sample: Sample, outputs: Any, classes: int
) -> Mapping[int, str]:
    """What the classes are called: as the user says, by the texts that were asked for, or as the model says."""
    if given:
        return given
    if reads_texts(outputs):
        texts = next((o.texts for o in sample.origins.values() if isinstance(o, TextOrigin)), ())
        return dict(enumerate(texts)) if len(texts) == classes else {}
    return known if known and max(known) < classes else {}


def _answers(outputs: Any) -> tuple[Tensor, Tensor]:
    """Logits ``[batch, queries, classes]`` and boxes ``[batch, queries, 4]``."""
    logits, boxes = query_logits(outputs), named_output(outputs, "pred_boxes")
    if logits is None or boxes is None or logits.dim() != 3 or boxes.shape != (*logits.shape[:2], 4):
        raise ModelError(
            f"The model answers with {type(outputs).__name__}, in which there are no logits [batch, queries, classes] "
            "with boxes [batch, queries, 4]: it finds no objects. Of a classifier, locate what a class rests on: "
            "whence.locate(explainer(image))."
        )
    return logits, boxes


def _placed(centred: list[float], sample: Sample) -> Box:
    """A box in pixels of the picture, from its centre, width and height as shares of what the model saw.

    They are shares of what there is of the picture in the model's input: padding does not count.
    """
    origin = next((o for o in sample.origins.values() if isinstance(o, ImageOrigin)), None)
    edges = []
    for axis in (1, 0):
        middle, half = centred[1 - axis], centred[3 - axis] / 2
        if origin is None:  # on the model's input itself
            limit = next(t.shape[axis - 2] for t in sample.tensors.values() if t.dim() == 4)
            low, high, scale, shift = 0.0, float(limit), 1.0, 0.0
        else:
            limit, scale, shift = origin.image.shape[axis], origin.scale[axis], origin.shift[axis]
            first, last = sorted((shift, scale * limit + shift))
            low, high = max(0.0, first), min(float(origin.size[axis]), last)
        ends = sorted((low + end * (high - low) - shift) / scale for end in (middle - half, middle + half))
        edges.append([min(max(end, 0.0), float(limit)) for end in ends])
    (left, right), (top, bottom) = edges
    return left, top, right, bottom
