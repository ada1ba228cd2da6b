"""Scalars of an output that can be asked about by name: each makes a target, ``outputs -> Tensor[batch]``.

A class, a label or a value of a regression needs none of these: it is a target as it is (``target=3``, ``"positive"``,
``0``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import TargetError
from .target import find_logits

Scalar = Callable[[Any], Tensor]

#: of a detection's box, which of its numbers: centre, width and height, or a sum of them
SIDES = {
    "x": (1.0, 0.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0, 0.0), "width": (0.0, 0.0, 1.0, 0.0), "height": (0.0, 0.0, 0.0, 1.0),
    "left": (1.0, 0.0, -0.5, 0.0), "right": (1.0, 0.0, 0.5, 0.0), "top": (0.0, 1.0, 0.0, -0.5),
    "bottom": (0.0, 1.0, 0.0, 0.5),
}  # fmt: skip

#: what models call a vector of the whole input
EMBEDDINGS = ("text_embeds", "image_embeds", "sentence_embedding", "pooler_output")


def named(name: str) -> Callable[[Scalar], Scalar]:
    """A function by the name that a reader is told."""

    def rename(function: Scalar) -> Scalar:
        function.__name__ = name
        return function

    return rename


def span(start: int, tokens: Sequence[int]) -> Scalar:
    """The sum of the logits of several tokens, one after the other: a span that a language model wrote.

    Args:
        start: the position of the first of them; its logit is that of the position before.
        tokens: their numbers.

    Example:
        >>> whence.explain(model, {"input_ids": ids}, target=whence.span(5, ids[0, 5:9].tolist()))
    """

    @named(f"tokens {start} to {start + len(tokens) - 1}")
    def value(outputs: Any) -> Tensor:
        logits = _of(outputs, find_logits(outputs), "logits", 3)
        if start < 1 or start + len(tokens) - 1 > logits.shape[1]:
            raise TargetError(
                f"Tokens {start} to {start + len(tokens) - 1} are not among those that the model answers: it answers "
                f"1 to {logits.shape[1]}."
            )
        places = torch.arange(start - 1, start - 1 + len(tokens), device=logits.device)
        return logits[:, places, torch.tensor(tokens, device=logits.device)].sum(1)

    return value


def query(number: int, label: int | None = None) -> Scalar:
    """The class of one detected object: the logit of a detection query.

    Args:
        number: of the query.
        label: of the class; ``None``: the one that is predicted, "no object" not among them.

    Example:
        >>> whence.explain(detr, {"pixel_values": x}, "generic-attention", target=whence.query(17))
    """

    @named(f"query {number}" + ("" if label is None else f", class {label}"))
    def value(outputs: Any) -> Tensor:
        logits = _of(outputs, find_logits(outputs), "logits", 3)
        _check(number, logits.shape[1], "query", "queries")
        if label is not None:
            _check(label, logits.shape[2], "class", "classes")
            return logits[:, number, label]
        return logits[:, number, :-1].max(-1).values

    return value


def box(number: int, side: str) -> Scalar:
    """Where one side of a detected object's box is.

    Args:
        number: of the query.
        side: ``"left"``, ``"right"``, ``"top"``, ``"bottom"``, ``"x"``, ``"y"`` (its centre), ``"width"`` or
            ``"height"``.

    Example:
        >>> whence.explain(detr, {"pixel_values": x}, "generic-attention", target=whence.box(17, "left"))
    """
    if side not in SIDES:
        raise TargetError(f"A box has no '{side}': choose one of {', '.join(SIDES)}.")

    @named(f"{side} of box {number}")
    def value(outputs: Any) -> Tensor:
        boxes = _of(outputs, _named_output(outputs, "pred_boxes"), "pred_boxes", 3)
        _check(number, boxes.shape[1], "query", "queries")
        return boxes[:, number] @ boxes.new_tensor(SIDES[side])

    return value


def answer(start: int | None = None, end: int | None = None) -> Scalar:
    """An answer in a text: the logit of its first token plus that of its last.

    Args:
        start, end: positions; ``None``: the likeliest.

    Example:
        >>> explainer(("Who wrote it?", "It was written by Ann."), target=whence.answer())
    """

    @named("the answer" if start is None and end is None else f"the answer {start} to {end}")
    def value(outputs: Any) -> Tensor:
        out = []
        for name, place in (("start_logits", start), ("end_logits", end)):
            logits = _of(outputs, _named_output(outputs, name), name, 2)
            if place is not None:
                _check(place, logits.shape[1], "position", "positions")
            out.append(logits.max(1).values if place is None else logits[:, place])
        return out[0] + out[1]

    return value


def similarity(reference: Tensor, mask: Tensor | None = None) -> Scalar:
    """How alike the model's vector of an input is to another one: the cosine of the angle between them.

    Args:
        reference: ``[features]``, or ``[batch, features]``: what it is compared with.
        mask: ``[batch, tokens]``, the attention mask: needed where vectors are means over tokens and some are padding.

    Example:
        >>> whence.explain(encoder, inputs, target=whence.similarity(other, inputs["attention_mask"]))
    """

    @named("similarity")
    def value(outputs: Any) -> Tensor:
        vectors = embedding(outputs, mask)
        if reference.shape[-1] != vectors.shape[-1]:
            raise TargetError(
                f"The model's vectors have {vectors.shape[-1]} features and the reference has {reference.shape[-1]}."
            )
        return torch.nn.functional.cosine_similarity(vectors, reference.to(vectors), dim=-1)

    return value


def embedding(outputs: Any, mask: Tensor | None = None) -> Tensor:
    """``[batch, features]``: a model's vector of an input: its own, or the mean over tokens of its last layer."""
    for name in EMBEDDINGS:
        found = _named_output(outputs, name)
        if isinstance(found, Tensor) and found.dim() == 2 and mask is None:
            return found
    states = _of(outputs, _named_output(outputs, "last_hidden_state"), "last_hidden_state", 3)
    if mask is None:
        return states.mean(1)
    weights = mask.to(states)[..., None]
    return (states * weights).sum(1) / weights.sum(1)


def _named_output(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _of(outputs: Any, found: Any, name: str, dims: int) -> Tensor:
    if not isinstance(found, Tensor) or found.dim() != dims:
        shape = f"of shape {list(found.shape)}" if isinstance(found, Tensor) else "not there"
        raise TargetError(
            f"This target reads '{name}' with {dims} dimensions, and in the {type(outputs).__name__} that the model "
            f"returned it is {shape}. Pass target=lambda outputs: <tensor of shape [batch]>."
        )
    return found


def _check(number: int, count: int, one: str, many: str) -> None:
    if not 0 <= number < count:
        raise TargetError(f"There is no {one} {number}: the model has {count} {many}, 0 to {count - 1}.")
