"""Where a backward pass starts: a target resolved against what a model returned."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import TargetError
from .class_indices import RULE, plain, whole
from .specs import At, Contrast, Target, labelled

#: what models call their answers, one per class
LOGITS = ("logits", "logits_per_image", "question_answering_score", "prediction_logits", "regression_outputs")


class LastLinear(NamedTuple):
    """The linear layer that made a model's logits, ``x @ weight.T + bias``."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None


@dataclass
class Seed:
    """Where the backward starts: ``sum(output * weights)`` over everything but the batch is the target.

    Attributes:
        output: the model's logits, or the target value itself where the user gave a function.
        index: ``[batch]``, the class explained; ``None`` for a function.
        prediction: ``[batch]``, the class predicted; ``None`` where there are no classes.
        logits: ``[batch, classes]`` where there are classes, else the target values.
        function: what the user's function is called, where there is one.
        other: ``[batch]``, the class that it is contrasted with, if it is.
        place: ``[batch]``, the position, of a model that answers at every one.
        last: the linear layer that made the logits, where a backward may begin before it.
        chosen: weights that a method has put in place of those of the target.
    """

    output: Tensor
    index: Tensor | None
    prediction: Tensor | None
    logits: Tensor
    function: str = "the target"
    other: Tensor | None = None
    place: Tensor | None = None
    last: LastLinear | None = None
    chosen: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """What to send back from the output, shaped like it; a method may set others."""
        return self._own if self.chosen is None else self.chosen

    @weights.setter
    def weights(self, weights: Tensor) -> None:
        self.chosen, self.last = weights, None

    @functools.cached_property
    def _own(self) -> Tensor:
        """The weights of the target."""
        if self.output.dim() == 1:  # the value itself
            return torch.ones_like(self.output, requires_grad=False)
        return self._placed(self._classes(torch.zeros_like(self.logits)), self.output)

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        """Where a backward of gradients begins, and what is sent back from there.

        A language model's logits are many, and all but one get nothing: the backward then begins before the layer that
        makes them, with the one row of its weights.
        """
        if self.last is None or self.index is None:
            return self.output, self.weights
        rows = self.last.weight[self.index]
        if self.other is not None:
            rows = rows - self.last.weight[self.other]
        return self.last.x, self._placed(rows, self.last.x)

    @property
    def bias(self) -> Tensor | None:
        """``[batch]``: what the bias of the last layer adds to the target, where the backward begins before it."""
        if self.last is None or self.last.bias is None or self.index is None:
            return None
        return (self._classes(torch.zeros_like(self.logits)) * self.last.bias).sum(1)

    def _classes(self, zeros: Tensor) -> Tensor:
        assert self.index is not None
        weights = zeros.scatter_(1, self.index[:, None], 1.0)
        return weights if self.other is None else weights.scatter_(1, self.other[:, None], -1.0)

    def _placed(self, rows: Tensor, like: Tensor) -> Tensor:
        """``[batch, n]`` at each sample's position, if there are positions."""
        if self.place is None:
            return rows
        where = self.place[:, None, None].expand(-1, 1, like.shape[-1])
        return torch.zeros_like(like, requires_grad=False).scatter(1, where, rows[:, None].to(like.dtype))

    def names(self, labels: Mapping[int, str]) -> list[str]:
        """Per sample, what is explained, in words."""
        if self.index is None:
            return [self.function] * len(self.logits)
        named = [labels.get(int(i), str(int(i))) for i in self.index]
        if self.other is None:
            return named
        return [f"{a} rather than {labels.get(int(i), str(int(i)))}" for a, i in zip(named, self.other, strict=True)]

    def said(self, labels: Mapping[int, str], task: str) -> list[str]:
        """Per sample, what the model said, in words."""
        if self.prediction is None or task == "regression":
            return [f"{float(value):.4g}" for value in self.logits.reshape(len(self.logits), -1)[:, 0]]
        if task == "multi-label":  # every class that is more likely than not
            every = [(row > 0).nonzero().flatten().tolist() or [int(row.argmax())] for row in self.logits]
            return [", ".join(labels.get(i, str(i)) for i in found) for found in every]
        return [labels.get(int(i), str(int(i))) for i in self.prediction]

    @property
    def value(self) -> Tensor:
        """``[batch]``: the target's value."""
        if self.chosen is not None:
            return (self.output.detach() * self.chosen).reshape(len(self.chosen), -1).sum(1)
        if self.index is None or self.output.dim() == 1:
            return self.output.detach()
        chosen = self.logits.gather(1, self.index[:, None])[:, 0]
        return chosen if self.other is None else chosen - self.logits.gather(1, self.other[:, None])[:, 0]


def labels_of(model: nn.Module) -> dict[int, str]:
    """The names that a model's configuration gives its classes."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    return {int(k): str(v) for k, v in names.items()} if isinstance(names, Mapping) else {}


def named_output(outputs: Any, *names: str) -> Tensor | None:
    """The first tensor of one of these names in what a model returned."""
    found = (outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None) for name in names)
    return next((value for value in found if isinstance(value, Tensor)), None)


def find_logits(outputs: Any) -> Tensor | None:
    """The logits in whatever a model returned: a tensor, ``.logits``, the first of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    found = named_output(outputs, *LOGITS)
    if found is not None:
        return found
    if isinstance(outputs, tuple | list) and outputs and isinstance(outputs[0], Tensor):
        return outputs[0]
    return None


def seed(outputs: Any, target: Target, batch: int, labels: Mapping[int, str], last: Tensor | None) -> Seed:
    """Resolve a target against a model's outputs.

    Args:
        outputs: what the model returned.
        target: as in :func:`whence.explain`.
        batch: the number of samples.
        labels: the model's class names.
        last: ``[batch]``, the last real token of each sample, for models that answer at every position.
    """
    logits = find_logits(outputs)
    if callable(target):
        return _from_function(outputs, labelled(target, labels), batch, logits)
    if logits is None:
        raise TargetError(
            f"The model returned {type(outputs).__name__} without logits, so there is no class to explain. Pass "
            "target=lambda outputs: <tensor of shape [batch]>."
        )
    if isinstance(target, At):
        if logits.dim() != 3:
            raise TargetError(f"The model's output has shape {list(logits.shape)}: it has no positions to choose from.")
        last, target = target.positions(batch, logits.shape[1]).to(logits.device), target.target
    if logits.dim() == 3 and last is not None and len(logits) == batch:
        output = logits
        classes = logits.detach().gather(1, last[:, None, None].expand(-1, 1, logits.shape[-1]))[:, 0]
    elif logits.dim() == 2 and len(logits) == batch:
        output, classes = logits, logits.detach()
    else:
        raise TargetError(
            f"The model's output has shape {list(logits.shape)} for a batch of {batch}: no class axis "
            "[batch, classes] is found. Pass target=lambda outputs: <tensor of shape [batch]>, for example "
            "lambda outputs: outputs.logits[:, position, token]."
        )
    prediction, known = classes.argmax(-1), labels if len(labels) == classes.shape[-1] else {}
    wanted, than = (target.target, target.other) if isinstance(target, Contrast) else (target, None)
    index = _indices(wanted, prediction, classes.shape[-1], known)
    other = _indices(than, prediction, classes.shape[-1], known) if isinstance(target, Contrast) else None
    if other is not None and bool((other == index).any()):
        raise TargetError(f"Class {int(index[other == index][0])} is contrasted with itself: give two classes.")
    return Seed(output, index, prediction, classes, other=other, place=last if logits.dim() == 3 else None)


def _from_function(outputs: Any, target: Callable[[Any], Tensor], batch: int, logits: Tensor | None) -> Seed:
    value = target(outputs)
    if not isinstance(value, Tensor) or value.shape != (batch,):
        shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise TargetError(
            f"The target function returned {shape}; it must return a tensor of shape [{batch}], one per sample."
        )
    if not value.requires_grad:
        raise TargetError(
            "The target function's value does not depend on the model's input, so nothing can be traced back."
        )
    classes = logits.detach() if logits is not None and logits.dim() == 2 and len(logits) == batch else None
    prediction = classes.argmax(-1) if classes is not None else None
    name = getattr(target, "__name__", "<lambda>")
    return Seed(
        value, None, prediction, value.detach() if classes is None else classes,
        "the target" if name == "<lambda>" else name,
    )  # fmt: skip


def _indices(target: Any, prediction: Tensor, classes: int, labels: Mapping[int, str]) -> Tensor:
    if target is None:
        return prediction
    batch = len(prediction)
    given = plain(target)
    items = given if isinstance(given, list) else [given] * batch
    if len(items) != batch:
        raise TargetError(
            f"{len(items)} targets were given for a batch of {batch}: give one for all, or one per sample."
        )
    each = [
        int(said) if item is None else class_index(item, classes, labels)
        for item, said in zip(items, prediction, strict=True)
    ]
    return torch.tensor(each, device=prediction.device)


def class_index(item: Any, classes: int, labels: Mapping[int, str]) -> int:
    """The number of a class that is given by number or label, or an error that lists them."""
    if isinstance(item, str):
        found = [i for i, name in labels.items() if name.lower() == item.lower()]
        if found:
            return int(found[0])
        near = difflib.get_close_matches(item, labels.values(), n=1, cutoff=0.4)
        known = ", ".join(list(labels.values())[:20]) or "none (the model has no class names: use a number)"
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise TargetError(f"The model has no label '{item}'.{hint} Its labels: {known}.")
    number = whole(item, RULE)
    if not -classes <= number < classes:
        raise TargetError(f"Target {number} is out of range: the model has {classes} classes, 0 to {classes - 1}.")
    return number % classes
