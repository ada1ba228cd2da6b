"""Targets and predictions in the user's words: class labels, tokens, image-text similarity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, TargetError
from ..explanations.explanation import Explanation
from ..inputs.image_text import ImageTextReader
from ..inputs.sample import Reader, Sample
from ..inputs.sentence_encoder import SentencePairReader
from ..inputs.token_output import can_generate, predicts_tokens
from ..results.input_origin import TextOrigin
from ..runs.model_inputs import each
from ..targets.class_indices import as_list, classes
from ..targets.seed import class_index, labels_of
from ..targets.specs import At, Contrast, Every, LabelledTarget, parse_target, with_labels

_ONE_TEXT = (
    "A sentence encoder makes a vector of one text, which is no value to explain: give a pair of texts, (text, text), "
    "whose similarity is explained, or a target function such as whence.similarity(vector)."
)


class TargetLabels:
    """The names of a model's outputs: resolves the user's targets, and names targets and predictions.

    Args:
        model: the model, without wrappers.
        reader: the reader of its inputs.
        processor: the processor that the reader uses.
        labels: names of the classes, if the model's configuration has none.
    """

    def __init__(
        self, model: nn.Module, reader: Reader | None, processor: Any, labels: Sequence[str] | Mapping[int, str] | None
    ) -> None:
        self.model = model
        self.reader = reader
        self.processor = processor
        self.labels = dict(enumerate(labels)) if isinstance(labels, Sequence) else dict(labels or {})

    def resolve(self, target: Any, samples: Sequence[Sample] = ()) -> Any:
        """Return a target as :func:`whence.explain` takes it: labels and tokens as indices, positions where needed."""
        target = parse_target(target)
        if isinstance(target, Every):
            return Every(tuple(self.resolve(one, samples) for one in target.targets))
        if samples and samples[0].choices:
            chosen = [choice_index(one, s) for one, s in zip(each(target, len(samples)), samples, strict=True)]
            return None if all(one is None for one in chosen) else chosen
        if isinstance(target, At):
            place = target.position
            if isinstance(place, str) and samples:
                place = [position_of(place, sample) for sample in samples]
            return At(place, self._class_indices(target.target))
        if callable(target):
            return with_labels(target, self.labels or labels_of(self.model))
        if target is None and self.compares_image_and_text():
            return similarity
        if target is None and isinstance(self.reader, SentencePairReader) and any(len(s.origins) < 2 for s in samples):
            raise TargetError(_ONE_TEXT)
        resolved = self._class_indices(target)
        positions = [s.position for s in samples]
        if not self._is_masked_lm() and all(position is None for position in positions):
            return resolved
        if None in positions:
            mask = getattr(self.reader and getattr(self.reader, "tokenizer", None), "mask_token", None) or "[MASK]"
            raise TargetError(
                f"The model fills in masked tokens, and the text has none: write {mask} where it shall guess, or give "
                "target=whence.At(position, token)."
            )
        return At([p for p in positions if p is not None], resolved)

    def _class_indices(self, target: Any) -> Any:
        """Return labels or tokens as indices: one for all, one for each, or a contrast."""
        if isinstance(target, Contrast):
            return Contrast(self._class_indices(target.target), self._class_indices(target.other))
        given = classes(target)
        if isinstance(given, list):
            inner = [self._class_index(t) for t in given]
            return None if all(t is None for t in inner) else inner
        return self._class_index(given)

    def _class_index(self, target: Any) -> Any:
        """Return a label or token as an index; other targets as they are."""
        if not isinstance(target, str):
            return target
        if self.labels:
            return class_index(target, max(self.labels) + 1, self.labels)
        if not self.are_tokens():
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

    def compares_image_and_text(self) -> bool:
        """Whether the model's output is the similarity of an image and a text."""
        return isinstance(self.reader, ImageTextReader) and hasattr(self.model, "logit_scale")

    def _tokenizer(self) -> Any:
        return getattr(self.reader, "tokenizer", None) or getattr(self.processor, "tokenizer", None)

    def are_tokens(self) -> bool:
        """Whether the model's classes are the tokens of its vocabulary."""
        if self._tokenizer() is None:
            return False
        generates = can_generate(self.model)
        if generates is None:
            generates = predicts_tokens(self.model, self._tokenizer())
        return self._is_masked_lm() or generates

    def _is_masked_lm(self) -> bool:
        """Whether the model fills in masked tokens."""
        return bool(getattr(getattr(self.reader, "text", self.reader), "is_masked_lm", False))

    def attach_names(self, e: Explanation, target: Any) -> Explanation:
        """Return an explanation with the names of its target and predicted classes."""
        if target is None and self.compares_image_and_text():
            return _own_pairs(e)
        if self.labels and e.prediction is not None and len(self.labels) != e.logits.shape[-1]:
            raise InputError(f"{len(self.labels)} labels were given for a model of {e.logits.shape[-1]} classes.")
        if self.labels and e.prediction is not None:
            return self._with_names(replace(e, labels=self.labels), target, lambda i: self.labels.get(i, str(i)))
        if self.are_tokens() and e.prediction is not None:
            return self._with_names(e, target, lambda i: str(self._tokenizer().decode([i])))
        return e

    def _with_names(self, e: Explanation, target: Any, name: Callable[[int], str]) -> Explanation:
        """Return an explanation with its target and predicted classes named by a function."""
        assert e.prediction is not None
        predicted = e.prediction_names if e.task == "regression" else tuple(map(name, e.prediction.tolist()))
        if e.target is None:
            return replace(e, prediction_names=predicted)
        explained = tuple(map(name, e.target.tolist()))
        inner = target.target if isinstance(target, At) else target
        if isinstance(inner, Contrast):
            other = self._class_indices(inner.other)
            others = predicted
            if other is not None:
                others = tuple(map(name, other if isinstance(other, list) else [other] * len(explained)))
            explained = tuple(f"{a} rather than {b}" for a, b in zip(explained, others, strict=True))
        return replace(e, target_names=explained, prediction_names=predicted)


def position_of(word: str, sample: Sample) -> int:
    """Return the position of the first token of a word of a sample's text; raise an error unless it is there once."""
    text = next((origin for origin in sample.origins.values() if isinstance(origin, TextOrigin)), None)
    if text is None:
        raise TargetError(f"This input has no text, so '{word}' is no word of it: give a position, as in whence.At(4).")
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    found = [(part, match.start()) for part, one in enumerate(text.texts) for match in pattern.finditer(one)]
    places = [
        i
        for part, start in found
        for i, span in enumerate(text.spans)
        if span is not None and span.part == part and span.start <= start < span.end
    ]
    if len(found) > 1:
        raise TargetError(
            f"'{word}' is in the text {len(found)} times, at the positions {', '.join(map(str, places))}: choose one, "
            f"as in whence.At({places[0] if places else 0})."
        )
    if not places:
        raise TargetError(f"'{word}' is no word of the text that the model reads.")
    return places[0]


def choice_index(target: Any, sample: Sample) -> int | None:
    """Return the index of a choice of multiple choice, given by its number or its text."""
    if callable(target) or isinstance(target, At | Contrast):
        raise TargetError(
            "Each choice is read apart, with tokens of its own, so the target is one choice, by its number or its "
            "text. To compare choices, explain each: target=whence.every([0, 1])."
        )
    given = target[0] if isinstance(target, list) else target
    texts = dict(enumerate(origin.texts[-1] for origin in sample.choices))
    return None if given is None else class_index(given, len(texts), texts)


def similarity(outputs: Any) -> Tensor:
    """Return the similarity of each image and its text: the target of models that compare the two."""
    pairs: Tensor = outputs.logits_per_image
    return pairs.diagonal()


def _own_pairs(e: Explanation) -> Explanation:
    """Reduce the logits ``[images, texts]`` of a batch to those of each image with its own text."""
    own = e.logits.diagonal()[:, None]
    names = tuple(f"{float(value):.4g}" for value in own[:, 0])
    return replace(e, logits=own, prediction=None, target=None, labels={}, task="", prediction_names=names)


def with_targets(inputs: Iterable[Any], target: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each input with its target: one for all, or one for each."""
    target = as_list(target)
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


def batch_target(targets: list[Any]) -> Any:
    """Join the targets of samples into one for their batch: a common one, a list, or a function of functions."""
    if all(t is targets[0] for t in targets):
        return targets[0]
    if all(callable(t) for t in targets):
        return LabelledTarget(
            lambda outputs, labels: torch.stack([with_labels(t, labels)(outputs)[i] for i, t in enumerate(targets)]),
            "the target",
        )
    if any(callable(t) or isinstance(t, At) for t in targets):
        raise TargetError("Targets of a list are all functions, or all classes and labels.")
    return targets
