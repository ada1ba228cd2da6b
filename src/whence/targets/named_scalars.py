"""Named scalars of a model's output: each function returns a target, ``outputs -> Tensor[batch]``.

A class, a label or a regression value needs none of these: it is a target itself (``target=3``, ``"positive"``, ``0``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import TargetError
from .class_indices import as_list, whole_number
from .detector_outputs import has_no_object_class, query_logits
from .seed import find_logits, named_output
from .specs import LabelledTarget

Scalar = Callable[[Any], Tensor]

#: the weights of a box's centre x, centre y, width and height in each of its sides
SIDES = {
    "x": (1.0, 0.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0, 0.0), "width": (0.0, 0.0, 1.0, 0.0), "height": (0.0, 0.0, 0.0, 1.0),
    "left": (1.0, 0.0, -0.5, 0.0), "right": (1.0, 0.0, 0.5, 0.0), "top": (0.0, 1.0, 0.0, -0.5),
    "bottom": (0.0, 1.0, 0.0, 0.5),
}  # fmt: skip

#: the names of outputs that hold one vector for the whole input
EMBEDDINGS = ("text_embeds", "image_embeds", "sentence_embedding", "pooler_output")


def with_name(name: str) -> Callable[[Scalar], Scalar]:
    """Name a target function as explanations show it."""

    def rename(function: Scalar) -> Scalar:
        function.__name__ = name
        return function

    return rename


def span(start: int, tokens: Sequence[int]) -> Scalar:
    """Return the target of a span that a language model generated: the sum of its tokens' logits.

    Args:
        start: the position of its first token, whose logit is read at the position before.
        tokens: the ids of its tokens.

    Example:
        >>> whence.explain(model, {"input_ids": ids}, target=whence.span(5, ids[0, 5:9].tolist()))
    """
    first = whole_number(start, "A span begins at a position, a whole number")
    ids = _token_ids(tokens)
    end = first + len(ids) - 1

    @with_name(f"tokens {first} to {end}")
    def value(outputs: Any) -> Tensor:
        logits = _require_output(outputs, find_logits(outputs), "logits", 3)
        if first < 1 or end > logits.shape[1]:
            raise TargetError(
                f"Tokens {first} to {end} are not among those that the model answers: it answers 1 to "
                f"{logits.shape[1]}."
            )
        for token in ids:
            _check_index(token, logits.shape[2], "token", "tokens")
        places = torch.arange(first - 1, end, device=logits.device)
        return logits[:, places, torch.tensor(ids, device=logits.device)].sum(1)

    return value


def _token_ids(tokens: Any) -> list[int]:
    """Return the token ids of a span."""
    given = as_list(tokens)
    if not isinstance(given, list) or not given:
        found = "an empty list" if isinstance(given, list) else f"{type(tokens).__name__} ({tokens!r})"
        raise TargetError(f"The tokens of a span are a list of one number or more, not {found}.")
    return [whole_number(token, "The tokens of a span are given by their numbers") for token in given]


def query(number: int, label: int | None = None) -> Scalar:
    """Return the target of one detected object's class: a logit of a detection query.

    Args:
        number: the index of the query.
        label: the index of the class; ``None``: the predicted one, "no object" excluded. "No object" is the last class
            if the model has one class more than names, or no names at all; with as many classes as names, all are
            objects (:func:`whence.localisation.detect` applies the same rule).

    Example:
        >>> whence.explain(detr, {"pixel_values": x}, "generic-attention", target=whence.query(17))
    """
    at = whole_number(number, "A query is given by its number")
    chosen = None if label is None else whole_number(label, "The class of a query is given by its number")

    def value(outputs: Any, labels: Mapping[int, str]) -> Tensor:
        logits = _require_output(outputs, query_logits(outputs), "logits", 3)
        classes = logits.shape[2]
        _check_index(at, logits.shape[1], "query", "queries")
        if chosen is not None:
            _check_index(chosen, classes, "class", "classes")
            return logits[:, at, chosen]
        objects = classes - has_no_object_class(outputs, classes, labels)
        return logits[:, at, :objects].max(-1).values

    return LabelledTarget(value, f"query {at}" + ("" if chosen is None else f", class {chosen}"))


def box(number: int, side: str) -> Scalar:
    """Return the target of one side, or another coordinate, of a detected object's box.

    Args:
        number: the index of the query.
        side: ``"left"``, ``"right"``, ``"top"``, ``"bottom"``, ``"x"``, ``"y"`` (its centre), ``"width"`` or
            ``"height"``.

    Example:
        >>> whence.explain(detr, {"pixel_values": x}, "generic-attention", target=whence.box(17, "left"))
    """
    if side not in SIDES:
        raise TargetError(f"A box has no '{side}': choose one of {', '.join(SIDES)}.")
    at = whole_number(number, "A query is given by its number")

    @with_name(f"{side} of box {at}")
    def value(outputs: Any) -> Tensor:
        boxes = _require_output(outputs, named_output(outputs, "pred_boxes"), "pred_boxes", 3)
        _check_index(at, boxes.shape[1], "query", "queries")
        return boxes[:, at] @ boxes.new_tensor(SIDES[side])

    return value


def answer(start: int | None = None, end: int | None = None) -> Scalar:
    """Return the target of extractive question answering: the logit of the answer's first token plus that of its last.

    Args:
        start, end: positions; ``None``: those of the most likely answer that does not end before it begins. All
            positions count, also those of the question and of [CLS], which stands for "no answer" in such models.

    Example:
        >>> explainer(("Who wrote it?", "It was written by Ann."), target=whence.answer())
    """
    rule = "An answer begins and ends at positions, whole numbers"
    given = [None if place is None else whole_number(place, rule) for place in (start, end)]
    if given[0] is not None and given[1] is not None and given[0] > given[1]:
        raise TargetError(f"An answer does not end ({end}) before it begins ({start}): give the smaller number first.")

    @with_name("the answer" if start is None and end is None else f"the answer {start} to {end}")
    def value(outputs: Any) -> Tensor:
        logits = []
        for name, place in zip(("start_logits", "end_logits"), given, strict=True):
            found = _require_output(outputs, named_output(outputs, name), name, 2)
            if place is not None:
                _check_index(place, found.shape[1], "position", "positions")
            logits.append(found)
        places = _likeliest_answer(*(_allow_only(t.detach(), place) for t, place in zip(logits, given, strict=True)))
        first, last = (t.gather(1, at[:, None])[:, 0] for t, at in zip(logits, places, strict=True))
        return first + last

    return value


def _allow_only(logits: Tensor, place: int | None) -> Tensor:
    """Return logits ``[batch, positions]`` with all but one position at minus infinity; ``None``: all are allowed."""
    if place is None:
        return logits
    others = torch.arange(logits.shape[1], device=logits.device) != place
    return logits.masked_fill(others, -torch.inf)


def _likeliest_answer(starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the most likely answer begins and ends, ``[batch]`` each, from logits ``[batch, positions]``."""
    best, begins = starts.cummax(1)
    end = (best + ends).argmax(1)
    return begins.gather(1, end[:, None])[:, 0], end


def similarity(reference: Tensor, mask: Tensor | None = None) -> Scalar:
    """Return the target of the cosine similarity between the model's embedding of an input and another vector.

    Args:
        reference: ``[features]``, or ``[batch, features]``: the other vector.
        mask: ``[batch, tokens]``, the attention mask: needed where the embedding is a mean over tokens with padding.

    Example:
        >>> whence.explain(encoder, inputs, target=whence.similarity(other, inputs["attention_mask"]))
    """
    vector = _as_tensor(reference, "reference", "[features] or [batch, features]", (1, 2))
    real = None if mask is None else _as_tensor(mask, "mask", "[batch, tokens]", (2,))

    @with_name("similarity")
    def value(outputs: Any) -> Tensor:
        vectors = embedding(outputs, real)
        if vector.shape[-1] != vectors.shape[-1]:
            raise TargetError(
                f"The model's vectors have {vectors.shape[-1]} features and the reference has {vector.shape[-1]}."
            )
        if vector.dim() == 2 and len(vector) not in (1, len(vectors)):
            raise TargetError(
                f"{len(vector)} references were given for a batch of {len(vectors)}: give one for all, or one per "
                "sample."
            )
        return torch.nn.functional.cosine_similarity(vectors, vector.to(vectors), dim=-1)

    return value


def _as_tensor(given: Any, what: str, shape: str, dims: tuple[int, ...]) -> Tensor:
    """Return a tensor, a list or an array as a tensor, or raise an error if its number of dimensions is not allowed."""
    try:
        tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(f"The {what} of a similarity is a tensor {shape}, not {type(given).__name__}.") from error
    if tensor.dim() not in dims:
        raise TargetError(f"The {what} of a similarity is a tensor {shape}, not one of shape {list(tensor.shape)}.")
    return tensor


def embedding(outputs: Any, mask: Tensor | None = None) -> Tensor:
    """Return a model's embedding of each input, ``[batch, features]``: an output, or the mean over last-layer tokens.

    Args:
        outputs: the outputs of the model.
        mask: ``[batch, tokens]``, the attention mask; the mean is then taken over real tokens.
    """
    for name in EMBEDDINGS:
        found = named_output(outputs, name)
        if found is not None and found.dim() == 2 and mask is None:
            return found
    states = _require_output(outputs, named_output(outputs, "last_hidden_state"), "last_hidden_state", 3)
    if mask is None:
        return states.mean(1)
    if mask.shape != states.shape[:2]:
        raise TargetError(
            f"The mask has shape {list(mask.shape)} and the model answers for {list(states.shape[:2])} tokens: give "
            "the attention mask of the same inputs."
        )
    weights = mask.to(states)[..., None]
    return (states * weights).sum(1) / weights.sum(1)


def _require_output(outputs: Any, found: Any, name: str, dims: int) -> Tensor:
    if not isinstance(found, Tensor) or found.dim() != dims:
        shape = f"of shape {list(found.shape)}" if isinstance(found, Tensor) else "not there"
        raise TargetError(
            f"This target reads '{name}' with {dims} dimensions, and in the {type(outputs).__name__} that the model "
            f"returned it is {shape}. Pass target=lambda outputs: <tensor of shape [batch]>."
        )
    return found


def _check_index(number: int, count: int, one: str, many: str) -> None:
    if not 0 <= number < count:
        raise TargetError(f"There is no {one} {number}: the model has {count} {many}, 0 to {count - 1}.")
