"""From raw input to an explanation: texts, pictures, recordings, series, as the user has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import InputError, MethodError, ModelError, TargetError, WhenceError
from .explain import explain
from .explanation import Explanation, Explanations
from .inputs.joint import JointReader
from .inputs.readers import reader_for
from .inputs.sample import Sample, collate
from .mapping import attach
from .methods import methods as all_methods
from .pretrained import load_model, load_processor
from .progress import track
from .target import At, Target, class_index

WINDOW = 16  # batches that are sorted by length together when a stream is explained


class Explainer:
    """Explains a model's predictions on raw inputs.

    Args:
        model: any ``nn.Module``; it is left as it is, and moved only if ``device`` or ``dtype`` is given.
        processor: what turns raw input into tensors: a tokenizer, an image processor, a feature extractor, a processor
            that holds several; or any function of a picture. Without one, tensors (and time series) can be given.
        modality: ``"text"``, ``"image"``, ``"image and text"``, ``"audio"`` or ``"series"``; found if not given.
        labels: names of the classes, if the model's configuration has none.
        truncate: read the beginning of a text that is longer than the model takes, with a warning; or refuse it.
        device, dtype: where, and in which precision, the model runs.

    Example:
        >>> explainer = whence.Explainer.from_pretrained("path-or-hub-id")
        >>> e = explainer("a gripping film", target="positive")
        >>> e.save("why.html")
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        modality: str | None = None,
        labels: Sequence[str] | Mapping[int, str] | None = None,
        truncate: bool = True,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"The model is {type(model).__name__}; Whence explains torch.nn.Module objects.")
        self.model = model if device is None and dtype is None else _moved(model, device, dtype)
        self.processor = processor
        self.reader = reader_for(getattr(model, "_orig_mod", model), processor, modality, truncate)
        self.labels = dict(enumerate(labels)) if isinstance(labels, Sequence) else dict(labels or {})
        self._name = type(getattr(model, "_orig_mod", model)).__name__  # torch.compile wraps the model it was given

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        modality: str | None = None,
        truncate: bool = True,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str = torch.float32,
        trust_remote_code: bool = False,
        allow_pickle: bool = False,
        **options: Any,
    ) -> Explainer:
        """Load a model and its processor.

        Args:
            name: a directory, or an id on the HuggingFace hub.
            modality, truncate, device: as for :class:`Explainer`.
            dtype: precision; ``"auto"`` keeps that of the file.
            trust_remote_code: run Python code that comes with the model. Off: such code can do anything.
            allow_pickle: open weights that are pickled. Off: a pickle can run any code.
            options: passed on to ``from_pretrained`` (``revision``, ``token``, ``local_files_only``, ...).
        """
        model = load_model(str(name), dtype, trust_remote_code, allow_pickle, **options)
        processor = load_processor(str(name), model, trust_remote_code, **options)
        return cls(model, processor, modality=modality, truncate=truncate, device=device)

    @property
    def modality(self) -> str:
        """What it reads: ``"tensors"`` if it has no processor."""
        return "tensors" if self.reader is None else self.reader.kind

    # -- explaining --------------------------------------------------------------------------------------------------

    def __call__(
        self,
        inputs: Any,
        method: str = "conservative-lrp",
        target: Target = None,
        *,
        batch_size: int = 8,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Explain one input, or many.

        Args:
            inputs: a text, a pair of texts, a picture (path, PIL, array), ``{"image": ..., "text": ...}``, a
                recording, a series, tensors; or a list or iterator of them.
            method: a name from :func:`whence.methods`.
            target: as for :func:`whence.explain`; for language models also a token as a string.
            batch_size: how many are explained together; batches are made of inputs of like length.
            progress: show a bar on stderr; ``None``: if there is a terminal and more than one batch.
            options: the method's options.

        Returns:
            :class:`Explanation` for one input, :class:`Explanations` (a list, in the order given) for many.
        """
        if not self._many(inputs):
            if self._is_tensors(inputs):
                return self._named(explain(self.model, self.placed(inputs), method, self.target_of(target), **options))
            return self._batch([self.read(inputs)], method, target, options)[0]
        count = len(inputs) if hasattr(inputs, "__len__") else None
        found = self.stream(inputs, method, target, batch_size=batch_size, **options)
        return Explanations(track(found, count, "Explaining", progress))

    def stream(
        self,
        inputs: Iterable[Any],
        method: str = "conservative-lrp",
        target: Target = None,
        *,
        batch_size: int = 8,
        **options: Any,
    ) -> Iterator[Explanation]:
        """Explain inputs one after the other as they come, in order, in constant memory.

        Example:
            >>> for e in explainer.stream(open("texts.txt")):
            ...     print(e.top(3))
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        if not self._many(inputs):
            raise InputError(
                f"A stream is of several inputs, and this is one ({type(inputs).__name__}): put it in a list."
            )
        numbered = enumerate(_with_targets(inputs, target))
        while window := list(islice(numbered, WINDOW * batch_size)):
            samples = []
            for i, (item, _) in window:
                try:
                    samples.append(self.read(item))
                except WhenceError as error:
                    raise type(error)(f"Input {i}: {error}") from error
            out: dict[int, Explanation] = {}
            for places in _batches(samples, batch_size):
                wanted = _shared([window[i][1][1] for i in places])
                explained = self._batch([samples[i] for i in places], method, wanted, options)
                out |= zip(places, explained, strict=True)
            yield from (out[i] for i in range(len(window)))

    def compare(
        self, input: Any, methods: Sequence[str] | None = None, targets: Sequence[Target] = (None,), **options: Any
    ) -> Explanations:
        """Explain one input by several methods and for several targets, to be looked at side by side.

        Args:
            input: one input.
            methods: names; ``None``: all that apply to this model.
            targets: one explanation each.
            options: the methods' options.
        """
        if self._many(input):
            raise InputError("Give one input to compare methods on; for several, compare each in turn.")
        out = Explanations()
        refused: WhenceError | None = None
        for name in methods or all_methods():
            try:
                out += [self(input, name, target, **options) for target in targets]
            except (ModelError, MethodError) as error:
                if methods is not None:
                    raise
                refused = error
        if not out and refused is not None:
            raise refused
        return out

    # -- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, samples: list[Sample], method: str, target: Any, options: dict[str, Any]) -> list[Explanation]:
        tensors = collate(samples)
        inputs: Any = tensors[""] if list(tensors) == [""] else tensors
        e = self._explain(self.placed(inputs), method, self.target_of(target, samples), options)
        e = _paired(e) if self._compares() and target is None else self._named(e)
        return [attach(e[i], sample) for i, sample in enumerate(samples)]

    def _explain(self, inputs: Any, method: str, target: Any, options: dict[str, Any]) -> Explanation:
        """An explanation; if the model itself cannot take the input, a sentence that says so."""
        try:
            return explain(self.model, inputs, method, target, **options)
        except (RuntimeError, ValueError, IndexError):
            try:
                with torch.no_grad():
                    self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)
            except (RuntimeError, ValueError, IndexError) as error:
                raise InputError(f"The model itself fails on this input: {str(error).splitlines()[0]}") from error
            raise

    def read(self, raw: Any) -> Sample:
        """One raw input as tensors, with the way back."""
        if self.reader is None or self._is_tensors(raw):
            if self._is_tensors(raw):
                return _tensors(raw)
            raise InputError(
                f"This explainer has no processor, so it takes tensors, not {type(raw).__name__}. Give it one: "
                "Explainer(model, processor=tokenizer or image processor)."
            )
        return self.reader.read(raw)

    def _is_tensors(self, raw: Any) -> bool:
        if isinstance(raw, Mapping | tuple):
            values = raw.values() if isinstance(raw, Mapping) else raw
            return bool(raw) and all(isinstance(v, Tensor) for v in values)
        return isinstance(raw, Tensor)

    def _many(self, inputs: Any) -> bool:
        """Whether these are several inputs: a list or an iterator, but not one text, picture, series or tensor."""
        if isinstance(inputs, np.ndarray):
            return inputs.dtype.kind in "UO"  # of strings or objects
        if isinstance(inputs, str | bytes | Path | Mapping | Tensor | tuple):
            return False
        if isinstance(inputs, list):
            return not (self.modality == "series" and bool(inputs) and _is_number(inputs[0]))
        one = hasattr(inputs, "columns") or hasattr(inputs, "getpixel")  # a table, a picture
        return hasattr(inputs, "__iter__") and not one

    def placed(self, inputs: Any) -> Any:
        """Inputs where the model is, floats in its precision."""
        parameter = next(self.model.parameters(), torch.zeros(()))

        def place(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            return t.to(parameter.device, parameter.dtype) if t.is_floating_point() else t.to(parameter.device)

        if isinstance(inputs, Mapping):
            return {k: place(v) for k, v in inputs.items()}
        return tuple(map(place, inputs)) if isinstance(inputs, tuple) else place(inputs)

    # -- targets -----------------------------------------------------------------------------------------------------

    def target_of(self, target: Any, samples: Sequence[Sample] = ()) -> Any:
        """A target as :func:`whence.explain` takes it: labels and tokens as numbers, positions where needed."""
        if isinstance(target, At):
            inside = target.target
            many = isinstance(inside, list | tuple)
            return replace(target, target=[self._class(t) for t in inside] if many else self._class(inside))  # type: ignore[union-attr]  # a list, then
        if callable(target):
            return target
        if target is None and self._compares():
            return similarity
        if isinstance(target, list | tuple):
            inner = [self._class(t) for t in target]
            resolved: Any = None if all(t is None for t in inner) else inner
        else:
            resolved = self._class(target)
        positions = [s.position for s in samples]
        masked = self._name.endswith("ForMaskedLM")
        if not masked and (None in positions or not positions):
            return resolved
        if None in positions:
            mask = getattr(self.reader and getattr(self.reader, "tokenizer", None), "mask_token", None) or "[MASK]"
            raise TargetError(
                f"The model fills in masked tokens, and the text has none: write {mask} where it shall guess, or give "
                "target=whence.At(position, token)."
            )
        return At([p for p in positions if p is not None], resolved)

    def _class(self, target: Any) -> Any:
        """A label or token as a number."""
        if not isinstance(target, str):
            return target
        if self.labels:
            return class_index(target, max(self.labels) + 1, self.labels)
        if not self._speaks():
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

    def _compares(self) -> bool:
        """Whether the model says how well a picture fits a text."""
        return isinstance(self.reader, JointReader) and hasattr(self.model, "logit_scale")

    def _tokenizer(self) -> Any:
        return getattr(self.reader, "tokenizer", None) or getattr(self.processor, "tokenizer", None)

    def _speaks(self) -> bool:
        """Whether the classes are tokens."""
        return self._tokenizer() is not None and self._name.endswith(("LM", "LMHeadModel", "ForConditionalGeneration"))

    def _named(self, e: Explanation) -> Explanation:
        """Classes by their names."""
        if self.labels and e.prediction is not None and len(self.labels) != e.logits.shape[-1]:
            raise InputError(f"{len(self.labels)} labels were given for a model of {e.logits.shape[-1]} classes.")
        if self.labels and e.prediction is not None:
            e = replace(e, labels=self.labels)
            return replace(e, target_names=_names(e.target, e), prediction_names=_names(e.prediction, e))
        if self._speaks() and e.prediction is not None:
            decode = self._tokenizer().decode
            return replace(
                e,
                target_names=tuple(decode([int(i)]) for i in e.target) if e.target is not None else e.target_names,
                prediction_names=tuple(decode([int(i)]) for i in e.prediction),
            )
        return e


def _moved(model: nn.Module, device: Any, dtype: Any) -> nn.Module:
    try:
        return model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"The device '{device}' cannot be used here: {str(error).splitlines()[0]}") from error


def similarity(outputs: Any) -> Tensor:
    """How well each picture fits its text: the target of models that compare the two."""
    pairs: Tensor = outputs.logits_per_image
    return pairs.diagonal()


def _paired(e: Explanation) -> Explanation:
    """A batch of pairs, each for itself: how well its own picture fits its own text."""
    own = e.logits.diagonal()[:, None]
    said = tuple(f"{float(value):.4g}" for value in own[:, 0])
    return replace(e, logits=own, prediction=None, target=None, labels={}, task="", prediction_names=said)


def _names(classes: Tensor | None, e: Explanation) -> tuple[str, ...]:
    if classes is None:
        return e.target_names
    return tuple(e.labels.get(int(i), str(int(i))) for i in classes)


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float) or (isinstance(item, list) and bool(item) and isinstance(item[0], int | float))


def _with_targets(inputs: Iterable[Any], target: Any) -> Iterator[tuple[Any, Any]]:
    """Each input with its target: one for all, or one for each."""
    if isinstance(target, Tensor):
        target = target.tolist()
    if not isinstance(target, list | tuple):
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


def _shared(targets: list[Any]) -> Any:
    """One target for a batch: what is the same everywhere, one per sample, or functions each of which has its own."""
    if all(t is targets[0] for t in targets):
        return targets[0]
    if all(callable(t) for t in targets):
        return lambda outputs: torch.stack([t(outputs)[i] for i, t in enumerate(targets)])
    if any(callable(t) or isinstance(t, At) for t in targets):
        raise TargetError("Targets of a list are all functions, or all classes and labels.")
    return targets


def _tensors(raw: Any) -> Sample:
    """One sample that is given as tensors."""
    named = dict(raw) if isinstance(raw, Mapping) else {"": raw}
    if isinstance(raw, tuple) or any(not t.dim() or len(t) != 1 for t in named.values()):
        raise InputError("In a list, tensors hold one sample each, as a batch of one; give a whole batch by itself.")
    return Sample(named, {})


def _batches(samples: Sequence[Sample], size: int) -> list[list[int]]:
    """Places of samples that go together: of one shape, sorted by length so that little is padded."""
    groups: dict[Any, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(i if sample.alone else sample.shape, []).append(i)
    out = []
    for places in groups.values():
        places.sort(key=lambda i: samples[i].length)
        out += [places[k : k + size] for k in range(0, len(places), size)]
    return out
