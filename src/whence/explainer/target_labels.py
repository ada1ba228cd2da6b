"""What a model can be asked, and what it answers, in the user's words: labels, tokens, how well two things fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, TargetError
from ..explanations.explanation import Explanation
from ..inputs.image_text import JointReader
from ..inputs.sample import Reader, Sample
from ..inputs.token_output import answers_in_tokens, can_write
from ..targets.class_indices import listed, plain
from ..targets.seed import class_index, labels_of
from ..targets.specs import At, Contrast, Every, Labelled, checked, labelled


class Answers:
    """The answers of one model.

    Args:
        model: the model.
        reader: what reads its inputs.
        processor: what the reader was made from.
        labels: names of the classes, if the model's configuration has none.
    """

    def __init__(
        self, model: nn.Module, reader: Reader | None, processor: Any, labels: Sequence[str] | Mapping[int, str] | None
    ) -> None:
        self.model = getattr(model, "_orig_mod", model)  # torch.compile wraps the model it was given
        self.reader = reader
        self.processor = processor
        self.labels = dict(enumerate(labels)) if isinstance(labels, Sequence) else dict(labels or {})

    def target(self, target: Any, samples: Sequence[Sample] = ()) -> Any:
        """A target as :func:`whence.explain` takes it: labels and tokens as numbers, positions where needed."""
        target = checked(target)
        if isinstance(target, Every):
            return Every(tuple(self.target(one, samples) for one in target.targets))
        if isinstance(target, At):
            return replace(target, target=self._classes(target.target))
        if callable(target):
            return labelled(target, self.labels or labels_of(self.model))
        if target is None and self.compares():
            return similarity
        resolved = self._classes(target)
        positions = [s.position for s in samples]
        if not self._fills() and all(position is None for position in positions):
            return resolved
        if None in positions:
            mask = getattr(self.reader and getattr(self.reader, "tokenizer", None), "mask_token", None) or "[MASK]"
            raise TargetError(
                f"The model fills in masked tokens, and the text has none: write {mask} where it shall guess, or give "
                "target=whence.At(position, token)."
            )
        return At([p for p in positions if p is not None], resolved)

    def _classes(self, target: Any) -> Any:
        """Labels or tokens as numbers: one for all, one for each, or one rather than another."""
        if isinstance(target, Contrast):
            return Contrast(self._classes(target.target), self._classes(target.other))
        given = plain(target)
        if isinstance(given, list):
            inner = [self._class(t) for t in given]
            return None if all(t is None for t in inner) else inner
        return self._class(given)

    def _class(self, target: Any) -> Any:
        """A label or token as a number."""
        if not isinstance(target, str):
            return target
        if self.labels:
            return class_index(target, max(self.labels) + 1, self.labels)
        if not self.speaks():
            return target
        tokenizer = self._tokenizer()
        unknown = getattr(tokenizer, "unk_token_id", None)
        for written in (target, f" {target}"):
            ids = tokenizer.encode(written, add_special_tokens=False) if hasattr(tokenizer, "encode") else []
            if len(ids) == 1 and (ids[0] != unknown or target == tokenizer.unk_token):
                return int(ids[0])
        known = getattr(tokenizer, "vocabulary", {})
        if target in known:
            return int(known[target])
        raise TargetError(f"'{target}' is not one token of this model's vocabulary: choose one token, or its number.")

    def compares(self) -> bool:
        """Whether the model says how well a picture fits a text."""
        return isinstance(self.reader, JointReader) and hasattr(self.model, "logit_scale")

    def _tokenizer(self) -> Any:
        return getattr(self.reader, "tokenizer", None) or getattr(self.processor, "tokenizer", None)

    def speaks(self) -> bool:
        """Whether the classes are tokens."""
        if self._tokenizer() is None:
            return False
        can = can_write(self.model)
        return self._fills() or (answers_in_tokens(self.model, self._tokenizer()) if can is None else can)

    def _fills(self) -> bool:
        """Whether the model guesses masked tokens."""
        return bool(getattr(getattr(self.reader, "text", self.reader), "fills", False))

    def named(self, e: Explanation, target: Any) -> Explanation:
        """An explanation with its classes by their names."""
        if target is None and self.compares():
            return _paired(e)
        if self.labels and e.prediction is not None and len(self.labels) != e.logits.shape[-1]:
            raise InputError(f"{len(self.labels)} labels were given for a model of {e.logits.shape[-1]} classes.")
        if self.labels and e.prediction is not None:
            return self._renamed(replace(e, labels=self.labels), target, lambda i: self.labels.get(i, str(i)))
        if self.speaks() and e.prediction is not None:
            return self._renamed(e, target, lambda i: str(self._tokenizer().decode([i])))
        return e

    def _renamed(self, e: Explanation, target: Any, name: Callable[[int], str]) -> Explanation:
        """The explained and the predicted classes by their names."""
        assert e.prediction is not None
        said = tuple(map(name, e.prediction.tolist()))
        if e.target is None:
            return replace(e, prediction_names=said)
        asked = tuple(map(name, e.target.tolist()))
        inner = target.target if isinstance(target, At) else target
        if isinstance(inner, Contrast):
            than = self._classes(inner.other)
            others = said if than is None else map(name, than if isinstance(than, list) else [than] * len(asked))
            asked = tuple(f"{a} rather than {b}" for a, b in zip(asked, others, strict=True))
        return replace(e, target_names=asked, prediction_names=said)


def similarity(outputs: Any) -> Tensor:
    """How well each picture fits its text: the target of models that compare the two."""
    pairs: Tensor = outputs.logits_per_image
    return pairs.diagonal()


def _paired(e: Explanation) -> Explanation:
    """A batch of pairs, each for itself: how well its own picture fits its own text."""
    own = e.logits.diagonal()[:, None]
    said = tuple(f"{float(value):.4g}" for value in own[:, 0])
    return replace(e, logits=own, prediction=None, target=None, labels={}, task="", prediction_names=said)


def with_targets(inputs: Iterable[Any], target: Any) -> Iterator[tuple[Any, Any]]:
    """Each input with its target: one for all, or one for each."""
    target = listed(target)
    if not isinstance(target, list):
        yield from zip(inputs, repeat(target), strict=False)
        return
    count = len(inputs) if isinstance(inputs, Sized) else None
    try:
        if count is not None and count != len(target):
            raise ValueError
        yield from zip(inputs, target, strict=True)
    except ValueError as error:
        raise TargetError(
            f"{len(target)} targets were given for {'another number of' if count is None else count} inputs: give one "
            "for all, or one for each."
        ) from error


def shared(targets: list[Any]) -> Any:
    """One target for a batch: what is the same everywhere, one per sample, or functions each of which has its own."""
    if all(t is targets[0] for t in targets):
        return targets[0]
    if all(callable(t) for t in targets):
        return Labelled(
            lambda outputs, labels: torch.stack([labelled(t, labels)(outputs)[i] for i, t in enumerate(targets)]),
            "the target",
        )
    if any(callable(t) or isinstance(t, At) for t in targets):
        raise TargetError("Targets of a list are all functions, or all classes and labels.")
    return targets
