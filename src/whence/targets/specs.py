"""Targets as users give them: a class, a label, a position, a contrast, several, or a function of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import TargetError
from .class_indices import plain, positions


@dataclass(frozen=True)
class At:
    """A class, or a token, at one position of a model that answers at every position.

    Attributes:
        position: for all samples, or one per sample.
        target: as for other models: ``None`` (what is predicted there), a number, a label, :func:`whence.contrast`.

    Example:
        >>> whence.explain(masked_language_model, inputs, target=whence.At(4))
    """

    position: int | Sequence[int]
    target: int | str | Sequence[int | str] | Contrast | None = None

    def positions(self, batch: int, length: int) -> Tensor:
        """``[batch]``: the position of each sample."""
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
        target, other: each a number or a label, for all samples or one per sample; ``None``: what is predicted.
    """

    target: int | str | Sequence[int | str] | None
    other: int | str | Sequence[int | str] | None


def contrast(target: Any, other: Any) -> Contrast:
    """The target "why this rather than that": what speaks for both classes alike cancels.

    Example:
        >>> whence.explain(model, inputs, target=whence.contrast("beagle", "tabby"))
    """
    return Contrast(target, other)


@dataclass(frozen=True)
class Every:
    """Several targets, each explained, with one forward for all.

    Attributes:
        targets: what :func:`whence.explain` takes for a target.
    """

    targets: tuple[Any, ...]


def every(targets: Iterable[Any]) -> Every:
    """Several targets at once; the answer is a list with an explanation for each, in their order.

    Example:
        >>> cat, dog = whence.explain(model, inputs, target=whence.every(["tabby", "beagle"]))
    """
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        raise TargetError(f"whence.every takes a list of targets, not {type(targets).__name__} ({targets!r}).")
    return Every(tuple(targets))


@dataclass(frozen=True, eq=False)
class Labelled:
    """A function of a model's output that looks at the names of its classes, too.

    Attributes:
        function: of the output and the names.
        said: what a reader is told that it is.
        labels: the names, once they are known.
    """

    function: Callable[[Any, Mapping[int, str]], Tensor]
    said: str
    labels: Mapping[int, str] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return self.said

    def __call__(self, outputs: Any) -> Tensor:
        """``[batch]``: its value."""
        return self.function(outputs, self.labels)


def labelled(target: Any, labels: Mapping[int, str]) -> Any:
    """A target that knows the names of the classes, if it asks for them and does not know them yet."""
    return replace(target, labels=labels) if isinstance(target, Labelled) and not target.labels else target


OneTarget = None | int | str | Sequence[int | str] | Tensor | Callable[[Any], Tensor] | At | Contrast
Target = OneTarget | Every


def checked(target: Any) -> Any:
    """A target in numbers and lists of Python, however it was given; an error for what is no target."""
    if isinstance(target, Every):
        if any(isinstance(one, Every) for one in target.targets):
            raise TargetError("A whence.every holds another one: list all targets in one.")
        return Every(tuple(checked(one) for one in target.targets))
    if isinstance(target, At):
        rule = "At a position there is a class, a token or a whence.contrast"
        inner = target.target
        return At(positions(target.position), _pair(inner) if isinstance(inner, Contrast) else _class(inner, rule))
    if isinstance(target, Contrast):
        return _pair(target)
    return target if callable(target) else plain(target)


def _pair(target: Contrast) -> Contrast:
    rule = "A contrast is of two classes, tokens or labels"
    return Contrast(_class(target.target, rule), _class(target.other, rule))


def _class(target: Any, rule: str) -> Any:
    """What is no function and no target of another kind."""
    if callable(target) or isinstance(target, At | Contrast | Every):
        kind = "a function" if callable(target) else f"a target of its own ({target!r})"
        raise TargetError(f"{rule}, not {kind}. Let one function say it all: target=lambda outputs: <Tensor[batch]>.")
    return plain(target)
