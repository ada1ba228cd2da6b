"""Targets as users give them: a class, a label, a position, a contrast, a list of targets, a function of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import TargetError
from .class_indices import classes, positions


@dataclass(frozen=True)
class At:
    """A class, or a token, at one position of a model with an output at every position.

    Attributes:
        position: for all samples, or one per sample; in an :class:`whence.Explainer` also a word of the text, whose
            first token is meant.
        target: as for other models: ``None`` (the prediction there), a number, a label, :func:`whence.contrast`.

    Example:
        >>> whence.explain(masked_language_model, inputs, target=whence.At(4))
    """

    position: int | str | Sequence[int]
    target: int | str | Sequence[int | str] | Contrast | None = None

    def positions(self, batch: int, length: int) -> Tensor:
        """Return the position of each sample, ``[batch]``."""
        if isinstance(self.position, str):
            raise TargetError(
                f"'{self.position}' is a word, and these inputs are tensors: give the position of its token, as in "
                "whence.At(4), or explain the text with whence.Explainer."
            )
        given = positions(self.position)
        each = given if isinstance(given, list) else [given] * batch
        wrong = [p for p in each if not -length <= p < length]
        if len(each) != batch or wrong:
            raise TargetError(
                f"Position {wrong[0]} is out of range: the model answers at {length} positions."
                if wrong
                else f"{len(each)} positions were given for a batch of {batch}: give one for all, or one per sample."
            )
        return torch.tensor([p % length for p in each])


@dataclass(frozen=True)
class Contrast:
    """Why one class rather than another: the difference of their logits.

    Attributes:
        target, other: each a number or a label, for all samples or one per sample; ``None``: the prediction.
    """

    target: int | str | Sequence[int | str] | None
    other: int | str | Sequence[int | str] | None


def contrast(target: Any, other: Any) -> Contrast:
    """Return the target "why this class rather than that": evidence for both classes alike cancels.

    Example:
        >>> whence.explain(model, inputs, target=whence.contrast("beagle", "tabby"))
    """
    return Contrast(target, other)


@dataclass(frozen=True, eq=False)
class Chosen:
    """A target in tensors, so that resolving it reads no value into Python.

    Attributes:
        index: ``[batch]``, the classes; ``None``: the predictions.
        other: ``[batch]``, the classes that they are contrasted with, if any.
        against_prediction: whether they are contrasted with the predictions.
        place: ``[batch]``, the positions; ``None``: none, or the last of each sample.
    """

    index: Tensor | None = None
    other: Tensor | None = None
    against_prediction: bool = False
    place: Tensor | None = None


@dataclass(frozen=True)
class Every:
    """Several targets, each explained, with one forward pass for all.

    Attributes:
        targets: each as in :func:`whence.explain`.
    """

    targets: tuple[Any, ...]


def every(targets: Iterable[Any]) -> Every:
    """Return several targets as one; they are explained as a list, one explanation for each, in their order.

    Example:
        >>> cat, dog = whence.explain(model, inputs, target=whence.every(["tabby", "beagle"]))
    """
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise TargetError(f"whence.every takes a list of targets, not {type(targets).__name__} ({targets!r}).")
    return Every(tuple(targets))


@dataclass(frozen=True, eq=False)
class LabelledTarget:
    """A target function of a model's output and its class names.

    Attributes:
        function: of the output and the class names.
        description: its name in explanations.
        labels: the class names, once they are known.
    """

    function: Callable[[Any, Mapping[int, str]], Tensor]
    description: str
    labels: Mapping[int, str] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return self.description

    def __call__(self, outputs: Any) -> Tensor:
        """Return the target's value, ``[batch]``."""
        return self.function(outputs, self.labels)


def with_labels(target: Any, labels: Mapping[int, str]) -> Any:
    """Return a target with the class names, if it needs them and has none yet."""
    return replace(target, labels=labels) if isinstance(target, LabelledTarget) and not target.labels else target


OneTarget = None | int | str | Sequence[int | str] | Tensor | Callable[[Any], Tensor] | At | Contrast | Chosen
Target = OneTarget | Every


def parse_target(target: Any) -> Any:
    """Return a target in Python numbers and lists, whatever types it was given in, or raise an error if it is none."""
    if isinstance(target, Every):
        if any(isinstance(one, Every) for one in target.targets):
            raise TargetError("A whence.every holds another one: list all targets in one.")
        return Every(tuple(parse_target(one) for one in target.targets))
    if isinstance(target, At):
        rule = "At a position there is a class, a token or a whence.contrast"
        inner = target.target
        parsed = _parse_contrast(inner) if isinstance(inner, Contrast) else _parse_class(inner, rule)
        place = target.position  # a word is looked up later, in the text
        return At(place if isinstance(place, str) else positions(place), parsed)
    if isinstance(target, Contrast):
        return _parse_contrast(target)
    return target if callable(target) else classes(target)


def _parse_contrast(target: Contrast) -> Contrast:
    rule = "A contrast is of two classes, tokens or labels"
    return Contrast(_parse_class(target.target, rule), _parse_class(target.other, rule))


def _parse_class(target: Any, rule: str) -> Any:
    """Return classes and labels, or raise an error for a function or a target of another kind."""
    if callable(target) or isinstance(target, At | Contrast | Every):
        kind = "a function" if callable(target) else f"a target of its own ({target!r})"
        raise TargetError(f"{rule}, not {kind}. Let one function say it all: target=lambda outputs: <Tensor[batch]>.")
    return classes(target)
