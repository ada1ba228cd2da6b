"""Where a backward pass starts: a target resolved against a model's outputs."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._utils.unwrapped import unwrapped
from ..errors import TargetError
from .class_indices import RULE, classes, whole_number
from .specs import At, Chosen, Contrast, Target, with_labels

#: the names of outputs that hold one value per class
LOGITS = ("logits", "logits_per_image", "question_answering_score", "prediction_logits", "regression_outputs")


class LastLinear(NamedTuple):
    """The linear layer that made a model's logits, ``x @ weight.T + bias``."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None


@dataclass
class Seed:
    """Where the backward pass starts: ``sum(output * weights)`` over everything but the batch is the target.

    Attributes:
        output: the model's logits, or the target value itself where the user gave a function.
        index: ``[batch]``, the class explained; ``None`` for a function.
        prediction: ``[batch]``, the class predicted; ``None`` where there are no classes.
        logits: ``[batch, classes]`` where there are classes, else the target values.
        function: the name of the user's function, where there is one.
        other: ``[batch]``, the class that it is contrasted with, if any.
        place: ``[batch]``, the position, for a model with an output at every position.
        length: the number of positions, for such a model.
        first: how many of these, at the start, are of tokens of the model's own (a tuned prompt).
        last: the linear layer that made the logits, where a backward pass may start before it.
        chosen: weights that a method has set instead of those of the target.
    """

    output: Tensor
    index: Tensor | None
    prediction: Tensor | None
    logits: Tensor
    function: str = "the target"
    other: Tensor | None = None
    place: Tensor | None = None
    length: int | None = None
    first: int = 0
    last: LastLinear | None = None
    chosen: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """The gradient at the output with which a backward pass starts; a method may set another one."""
        return self._target_weights if self.chosen is None else self.chosen

    @weights.setter
    def weights(self, weights: Tensor) -> None:
        self.chosen = weights
        self.last = None

    @functools.cached_property
    def _target_weights(self) -> Tensor:
        """The weights of the target."""
        if self.output.dim() == 1:  # the value itself
            return torch.ones_like(self.output, requires_grad=False)
        return self._at_position(self._class_weights(torch.zeros_like(self.logits)), self.output)

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        """Where a backward pass of gradients starts, and the gradient there.

        A language model has many logits, and all but one have a gradient of 0: the backward pass then starts before the
        layer that makes them, with one row of its weights.
        """
        if self.last is None or self.index is None:
            return self.output, self.weights
        rows = self.last.weight[self.index]
        if self.other is not None:
            rows = rows - self.last.weight[self.other]
        return self.last.x, self._at_position(rows, self.last.x)

    @property
    def bias(self) -> Tensor | None:
        """``[batch]``: what the bias of the last layer adds to the target, if the backward pass starts before it."""
        if self.last is None or self.last.bias is None or self.index is None:
            return None
        return (self._class_weights(torch.zeros_like(self.logits)) * self.last.bias).sum(1)

    def _class_weights(self, zeros: Tensor) -> Tensor:
        assert self.index is not None
        weights = zeros.scatter_(1, self.index[:, None], 1.0)
        return weights if self.other is None else weights.scatter_(1, self.other[:, None], -1.0)

    def _at_position(self, rows: Tensor, like: Tensor) -> Tensor:
        """Return ``[batch, n]`` rows placed at each sample's position, if there are positions."""
        if self.place is None:
            return rows
        where = self.place[:, None, None].expand(-1, 1, like.shape[-1])
        return torch.zeros_like(like, requires_grad=False).scatter(1, where, rows[:, None].to(like.dtype))

    @property
    def value(self) -> Tensor:
        """``[batch]``: the target's value."""
        if self.chosen is not None:
            return (self.output.detach() * self.chosen).reshape(len(self.chosen), -1).sum(1)
        if self.index is None or self.output.dim() == 1:
            return self.output.detach()
        chosen = self.logits.gather(1, self.index[:, None])[:, 0]
        return chosen if self.other is None else chosen - self.logits.gather(1, self.other[:, None])[:, 0]


def target_names(index: Tensor, other: Tensor | None, labels: Mapping[int, str]) -> tuple[str, ...]:
    """Return the name of each sample's target class, and of the class that it is contrasted with."""
    named = [labels.get(i, str(i)) for i in index.tolist()]
    if other is None:
        return tuple(named)
    return tuple(f"{a} rather than {labels.get(i, str(i))}" for a, i in zip(named, other.tolist(), strict=True))


def prediction_names(
    prediction: Tensor | None, logits: Tensor, labels: Mapping[int, str], task: str
) -> tuple[str, ...]:
    """Return the name of each sample's prediction, or its value where there are no classes."""
    if prediction is None or task == "regression":
        return tuple(f"{value:.4g}" for value in logits.reshape(len(logits), -1)[:, 0].tolist())
    if task == "multi-label":  # every class with a probability above 1/2
        every = [(row > 0).nonzero().flatten().tolist() or [int(row.argmax())] for row in logits]
        return tuple(", ".join(labels.get(i, str(i)) for i in found) for found in every)
    return tuple(labels.get(i, str(i)) for i in prediction.tolist())


def labels_of(model: nn.Module) -> dict[int, str]:
    """Return the class names of a model's configuration."""
    names = getattr(getattr(unwrapped(model), "config", None), "id2label", None)
    return {int(k): str(v) for k, v in names.items()} if isinstance(names, Mapping) else {}


def named_output(outputs: Any, *names: str) -> Tensor | None:
    """Return the first tensor with one of these names in a model's outputs."""
    found = (outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None) for name in names)
    return next((value for value in found if isinstance(value, Tensor)), None)


def find_logits(outputs: Any) -> Tensor | None:
    """Return the logits in a model's outputs: a tensor, ``.logits``, the first of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    found = named_output(outputs, *LOGITS)
    if found is not None:
        return found
    if isinstance(outputs, tuple | list) and outputs and isinstance(outputs[0], Tensor):
        return outputs[0]
    return None


def _no_logits(outputs: Any) -> TargetError:
    """Return the error for a model without classes."""
    if None not in (named_output(outputs, "start_logits"), named_output(outputs, "end_logits")):
        return TargetError(
            "The model answers questions by the start and the end of a span of the text: give target=whence.answer(); "
            "in an Explainer, answer=True."
        )
    return TargetError(
        f"The model returned {type(outputs).__name__} without logits, so there is no class to explain. Pass "
        "target=lambda outputs: <tensor of shape [batch]>."
    )


def _no_class_axis(shape: list[int], batch: int) -> TargetError:
    """Return the error for logits that are not ``[batch, classes]``."""
    if len(shape) == 3 and shape[0] == batch and shape[1] > 1:
        return TargetError(
            f"The model's output has shape {shape}, taken to be values at each of {shape[1]} positions, and none of "
            "them is chosen. Give target=whence.At(position, class) (in an Explainer, token='word' names the position) "
            "or a function: target=lambda outputs: <tensor of shape [batch]>."
        )
    return TargetError(
        f"The model's output has shape {shape} for a batch of {batch}: no class axis [batch, classes] is found. Pass "
        "target=lambda outputs: <tensor of shape [batch]>, for example lambda outputs: outputs.logits[:, position, "
        "token]."
    )


def seed(
    outputs: Any, target: Target, batch: int, labels: Mapping[int, str], last: Tensor | None, first: int = 0
) -> Seed:
    """Resolve a target against a model's outputs.

    Args:
        outputs: the outputs of the model.
        target: as in :func:`whence.explain`.
        batch: the number of samples.
        labels: the model's class names.
        last: ``[batch]``, the last real token of each sample, for models with an output at every position.
        first: how many tokens of the model's own precede the user's at these positions.
    """
    logits = find_logits(outputs)
    if callable(target):
        return _from_function(outputs, with_labels(target, labels), batch, logits)
    if logits is None:
        raise _no_logits(outputs)
    if logits.is_complex():
        raise TargetError(
            f"The model's output is of complex numbers ({list(logits.shape)}), of which none is the largest. Pass "
            "target=lambda outputs: <real tensor of shape [batch]>, for example lambda outputs: outputs[:, 0].abs()."
        )
    if isinstance(target, At):
        if logits.dim() != 3:
            raise TargetError(f"The model's output has shape {list(logits.shape)}: it has no positions to choose from.")
        last = target.positions(batch, logits.shape[1] - first).to(logits.device) + first
        target = target.target
    if isinstance(target, Chosen) and target.place is not None:
        last = target.place
    if logits.dim() == 3 and last is not None and len(logits) == batch:
        rows = logits.detach().gather(1, last[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]
    elif logits.dim() == 2 and len(logits) == batch:
        rows = logits.detach()
    else:
        raise _no_class_axis(list(logits.shape), batch)
    count = rows.shape[-1]
    prediction = rows.argmax(-1)
    known = labels if len(labels) == count else {}
    index, other = _classes(target, prediction, count, known)
    if other is not None and bool((other == index).any()):
        raise TargetError(f"Class {int(index[other == index][0])} is contrasted with itself: give two classes.")
    place, length = (last, logits.shape[1]) if logits.dim() == 3 else (None, None)
    return Seed(logits, index, prediction, rows, other=other, place=place, length=length, first=first)


def _classes(target: Any, prediction: Tensor, count: int, labels: Mapping[int, str]) -> tuple[Tensor, Tensor | None]:
    """Return the classes that are explained, and those that they are contrasted with."""
    if isinstance(target, Chosen):
        index = prediction if target.index is None else target.index
        return index, prediction if target.against_prediction else target.other
    if isinstance(target, Contrast):
        pair = (_indices(one, prediction, count, labels) for one in (target.target, target.other))
        return next(pair), next(pair)
    return _indices(target, prediction, count, labels), None


def _from_function(outputs: Any, target: Callable[[Any], Tensor], batch: int, logits: Tensor | None) -> Seed:
    value = target(outputs)
    if not isinstance(value, Tensor) or value.shape != (batch,):
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TargetError(
            f"The target function returned {shape}; it must return a tensor of shape [{batch}], one per sample."
        )
    if value.is_complex():
        raise TargetError("The target function returned complex numbers; it must return real ones (.abs(), .real).")
    if not value.requires_grad:
        raise TargetError(
            "The target function's value does not depend on the model's input, so nothing can be traced back."
        )
    scored = logits is not None and logits.dim() == 2 and len(logits) == batch and not logits.is_complex()
    rows = logits.detach() if logits is not None and scored else None
    name = getattr(target, "__name__", "<lambda>")
    return Seed(
        output=value,
        index=None,
        prediction=None if rows is None else rows.argmax(-1),
        logits=value.detach() if rows is None else rows,
        function="the target" if name == "<lambda>" else name,
    )


def _indices(target: Any, prediction: Tensor, count: int, labels: Mapping[int, str]) -> Tensor:
    given = class_indices(target, len(prediction), count, labels)
    if given is None:
        return prediction
    each = [p if i is None else i for i, p in zip(given, prediction.tolist(), strict=True)] if None in given else given
    return torch.tensor(each, device=prediction.device)


def class_indices(target: Any, batch: int, count: int, labels: Mapping[int, str]) -> list[int | None] | None:
    """Return the class of each sample, ``None`` for its prediction; ``None`` if all are predictions."""
    if target is None:
        return None
    given = classes(target)
    items = given if isinstance(given, list) else [given] * batch
    if len(items) != batch:
        raise TargetError(
            f"{len(items)} targets were given for a batch of {batch}: give one for all, or one per sample."
        )
    return [None if item is None else class_index(item, count, labels) for item in items]


def class_index(item: Any, count: int, labels: Mapping[int, str]) -> int:
    """Return the index of a class given by number or label, or raise an error that lists the labels."""
    if isinstance(item, str):
        found = [i for i, name in labels.items() if name.lower() == item.lower()]
        if found:
            return int(found[0])
        near = difflib.get_close_matches(item, labels.values(), n=1, cutoff=0.4)
        known = ", ".join(list(labels.values())[:20]) or "none (the model has no class names: use a number)"
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise TargetError(f"The model has no label '{item}'.{hint} Its labels: {known}.")
    number = whole_number(item, RULE)
    if not -count <= number < count:
        raise TargetError(f"Target {number} is out of range: the model has {count} classes, 0 to {count - 1}.")
    return number % count
