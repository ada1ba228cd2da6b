"""Explain raw inputs: texts, images, audio, time series, as the user has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._utils.offloading import device_of
from .._utils.progress import track
from .._utils.unwrapped import forward_parameters, unwrapped
from ..errors import InputError, MethodError, ModelError, TargetError, WhenceError
from ..explanations.explanation import Explanation, Explanations
from ..inputs.factory import reader_for
from ..inputs.model_objects import ModelParts, parts_of
from ..inputs.pretrained import load_parts
from ..inputs.sample import Sample, batches, collate, precision_of
from ..inputs.speech import SpeechReader
from ..inputs.text import TextReader
from ..inputs.vision_language import VisionLanguageReader
from ..methods.registry import list_methods
from ..targets.named_scalars import answer as span_answer
from ..targets.specs import At, Every, Target, every
from .attach_inputs import attach
from .captured import CaptureCache
from .explain import ExplainsTensors, checked_request, explain_request, explain_together
from .generation import Generation, generate
from .target_labels import TargetLabels, batch_target, with_targets

WINDOW = 16  # batches that are sorted by length together when a stream is explained


class Explainer:
    """Explains a model's predictions on raw inputs.

    Args:
        model: any ``nn.Module``, wrapped or not; a ``SentenceTransformer`` or ``CrossEncoder``; a pipeline of
            transformers. It is left as it is, and moved only if ``device`` or ``dtype`` is given.
        processor: turns raw input into tensors: a tokenizer, an image processor, a feature extractor, a combined
            processor; or any function of an image. Without one, tensors (and time series) can be given. A pipeline
            and a model of sentence-transformers have their own.
        modality: ``"text"``, ``"image"``, ``"image and text"``, ``"audio"`` or ``"series"``; found if not given.
        labels: names of the classes, if the model's configuration has none.
        truncate: truncate a text that is longer than the model takes, with a warning; otherwise raise an error.
        device, dtype: where, and in which precision, the model runs.
        capture: capture explanations, and replay them for later inputs of the same shape: the same numbers, faster.

    Example:
        >>> explainer = whence.Explainer.from_pretrained("path-or-hub-id")
        >>> e = explainer("a gripping film", target="positive")
        >>> e.save("why.html")
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        modality: str | None = None,
        labels: Sequence[str] | Mapping[int, str] | None = None,
        truncate: bool = True,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        capture: bool = True,
    ) -> None:
        parts = model if isinstance(model, ModelParts) else parts_of(model, processor)
        if not isinstance(parts.model, nn.Module):
            raise InputError(f"The model is {type(parts.model).__name__}; Whence explains torch.nn.Module objects.")
        self.model = parts.model if device is None and dtype is None else _move(parts.model, device, dtype)
        self.processor = parts.processor
        inner = unwrapped(self.model)
        own = parts.reader
        self.reader = own(truncate) if own else reader_for(inner, self.processor, modality, truncate)
        self.target_labels = TargetLabels(inner, self.reader, self.processor, labels or parts.labels)
        self._captures = CaptureCache(self.model) if capture else None

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
        capture: bool = True,
        **options: Any,
    ) -> Explainer:
        """Load a model and its processor.

        Args:
            name: a directory, or an id on the HuggingFace hub.
            modality, truncate, device, capture: as for :class:`Explainer`.
            dtype: precision; ``"auto"`` keeps that of the file.
            trust_remote_code: run Python code that comes with the model. Off: such code can do anything.
            allow_pickle: open weights that are pickled. Off: a pickle can run any code.
            options: passed on to ``from_pretrained`` (``revision``, ``token``, ``local_files_only``, ...).
        """
        parts = load_parts(str(name), dtype, trust_remote_code, allow_pickle, **options)
        return cls(parts, modality=modality, truncate=truncate, device=device, capture=capture)

    @property
    def modality(self) -> str:
        """The modality of its inputs; ``"tensors"`` if it has no processor."""
        return "tensors" if self.reader is None else self.reader.kind

    @property
    def captures_explanations(self) -> bool:
        """Whether explanations are captured, and replayed for later inputs of the same shape."""
        return self._captures is not None

    @property
    def compares(self) -> bool:
        """Whether the model's output is the similarity of an image and a text, as in CLIP."""
        return self.target_labels.compares_image_and_text()

    # -- explaining --------------------------------------------------------------------------------------------------

    def __call__(
        self,
        inputs: Any,
        method: str = "conservative-lrp",
        target: Target = None,
        *,
        token: str | int | None = None,
        answer: bool = False,
        batch_size: int = 8,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Explain one input, or many.

        Args:
            inputs: a text, a pair of texts, an image (path, PIL, array), ``{"image": ..., "text": ...}``, audio, a
                series, tensors; or a list or iterator of them.
            method: a name from :func:`whence.list_methods`.
            target: as for :func:`whence.explain`; for language models also a token as a string.
            token: of a model that classifies each token, the word whose class is explained (short for
                ``target=whence.At(word, target)``). A number is the option `token` of some methods.
            answer: of a model that answers questions by a span of the text, explain the span that it predicts.
            batch_size: how many are explained together; batches hold inputs of similar length.
            progress: show a bar on stderr; ``None``: if there is a terminal and more than one batch.
            options: the method's options.

        Returns:
            :class:`Explanation` for one input, :class:`Explanations` (a list, in the order given) for many. With
            :func:`whence.every`, :class:`Explanations` for one input, one for each target, and a list of them for many.
        """
        if answer:
            if target is not None or token is not None:
                raise TargetError("`answer` is a target of its own: leave out `target` and `token`.")
            target = span_answer()
        if isinstance(token, str):
            target = At(token, target)  # type: ignore[arg-type]  # what it may be is checked when it is resolved
        elif token is not None:
            options["token"] = token
        if not self._is_several(inputs):
            if self._is_tensors(inputs):
                found = self._run(self.placed(inputs), method, self.target_labels.resolve(target), options)
                return self._attach_names(found, target)
            return self.batch([self.read(inputs)], method, target, options)[0]
        count = len(inputs) if hasattr(inputs, "__len__") else None
        stream = track(
            self.stream(inputs, method, target, batch_size=batch_size, **options), count, "Explaining", progress
        )
        return list(stream) if isinstance(target, Every) else Explanations(stream)

    def stream(
        self,
        inputs: Iterable[Any],
        method: str = "conservative-lrp",
        target: Target = None,
        *,
        batch_size: int = 8,
        **options: Any,
    ) -> Iterator[Explanation]:
        """Explain inputs of an iterable, in order, in constant memory.

        Example:
            >>> for e in explainer.stream(open("texts.txt")):
            ...     print(e.top(3))
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        if not self._is_several(inputs):
            raise InputError(
                f"A stream is of several inputs, and this is one ({type(inputs).__name__}): put it in a list."
            )
        numbered = enumerate(with_targets(inputs, target))
        while window := list(islice(numbered, WINDOW * batch_size)):
            samples = []
            for i, (item, _) in window:
                try:
                    samples.append(self.read(item))
                except WhenceError as error:
                    raise type(error)(f"Input {i}: {error}") from error
            out: dict[int, Explanation] = {}
            for places in batches(samples, batch_size):
                wanted = batch_target([window[i][1][1] for i in places])
                explained = self.batch([samples[i] for i in places], method, wanted, options)
                out |= zip(places, explained, strict=True)
            yield from (out[i] for i in range(len(window)))

    def compare(
        self, input: Any, methods: Sequence[str] | None = None, targets: Sequence[Target] = (None,), **options: Any
    ) -> Explanations:
        """Explain one input by several methods and for several targets, to compare them side by side.

        Methods with equal rulebooks read one forward pass: all that only look at attention maps, for instance.

        Args:
            input: one input.
            methods: names; ``None``: all that apply to this model.
            targets: one explanation each.
            options: the methods' options.
        """
        if self._is_several(input):
            raise InputError("Give one input to compare methods on; for several, compare each in turn.")
        out = Explanations()
        not_applicable: WhenceError | None = None
        names = list(methods or list_methods())
        shared = self._share_forward(input, names, every(targets), options)
        for name in names:
            try:
                out += shared[name] if name in shared else self(input, name, every(targets), **options)
            except (ModelError, MethodError) as error:
                if methods is not None:
                    raise
                not_applicable = error
        if not out and not_applicable is not None:
            raise not_applicable
        return out

    def generate(
        self,
        prompt: Any = None,
        continuation: str | None = None,
        *,
        audio: Any = None,
        image: Any = None,
        method: str = "conservative-lrp",
        max_new_tokens: int = 32,
        sampling: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Generate text with a language model, and explain every generated token.

        Args:
            prompt: a text; or messages ``[{"role": "user", "content": ...}, ...]``, for the tokenizer's chat template;
                for a model that transcribes, the audio.
            audio: the audio, by name.
            image: an image that the prompt is about, for vision-language models: a path, PIL or an array.
            continuation: a given continuation to explain; by default the model generates one, greedily.
            method: a name from :func:`whence.list_methods`.
            max_new_tokens: how many tokens it generates, at most.
            sampling: further arguments of the model's own ``generate``.
            options: the method's options.

        Returns:
            An explanation for each generated token, over all tokens before it.

        Example:
            >>> g = explainer.generate("The capital of Italy is", max_new_tokens=4)
            >>> g[0].top(3)
        """
        prompt = audio if prompt is None else prompt
        readers = TextReader | VisionLanguageReader | SpeechReader
        if not isinstance(self.reader, readers) or not self.target_labels.are_tokens():
            raise ModelError(
                f"{type(unwrapped(self.model)).__name__} is no language model with a tokenizer, so there is no text "
                "that it writes."
            )
        return generate(
            self.model, self.reader, prompt, image, continuation, method, max_new_tokens, sampling or {}, options
        )

    # -- batches -----------------------------------------------------------------------------------------------------

    def _share_forward(
        self, input: Any, names: Sequence[str], target: Every, options: dict[str, Any]
    ) -> dict[str, Explanations]:
        """Explain one input by those of several methods that can read the same forward pass as another one."""
        engines = {}
        for name in names:
            with contextlib.suppress(MethodError):  # an unknown method or option: explained by itself, it is named
                engines[name] = self._engine(name, options)
        if len(engines) < 2:
            return {}
        samples = [] if self._is_tensors(input) else [self.read(input)]
        inputs = self._collated(samples) if samples else self.placed(input)
        resolved = self.target_labels.resolve(target, *([samples] if samples else []))
        found = explain_together(list(engines.values()), inputs, resolved)
        pairs = [(name, own) for name, own in zip(engines, found, strict=True) if own is not None]
        if not samples:
            return {name: self._attach_names(own, target) for name, own in pairs}
        return {name: self._attached(own, target, samples)[0] for name, own in pairs}

    def batch(self, samples: list[Sample], method: str, target: Any, options: dict[str, Any]) -> list[Any]:
        """Explain samples (see :meth:`read`) of one shape together.

        Returns:
            For each an explanation, or with :func:`whence.every` several.
        """
        resolved = self.target_labels.resolve(target, samples)
        return self._attached(self._run(self._collated(samples), method, resolved, options), target, samples)

    def _collated(self, samples: list[Sample]) -> Any:
        """Return the tensors of samples of one shape, as the model takes them."""
        tensors = collate(samples)
        return self.placed(tensors[""] if list(tensors) == [""] else tensors)

    def _attached(self, found: Explanation | Explanations, target: Any, samples: list[Sample]) -> list[Any]:
        """Return the explanations of samples, with their inputs and the names of classes."""
        named = self._attach_names(found, target)
        if isinstance(named, Explanations):
            return [Explanations(attach(e[i], sample) for e in named) for i, sample in enumerate(samples)]
        return [attach(named[i], sample) for i, sample in enumerate(samples)]

    def _attach_names(self, found: Explanation | Explanations, target: Any) -> Any:
        """Name the classes; of several targets, in each explanation."""
        if isinstance(found, Explanation):
            return self.target_labels.attach_names(found, target)
        return Explanations(
            self.target_labels.attach_names(e, one) for e, one in zip(found, target.targets, strict=True)
        )

    def _run(self, inputs: Any, method: str, target: Any, options: dict[str, Any]) -> Any:
        """Explain tensors, by a capture if there is one."""
        return explain_request(self._engine(method, options), inputs, target)

    def _engine(self, method: str, options: dict[str, Any]) -> ExplainsTensors:
        """Return what explains tensors by a method, with captures where its options allow it."""
        captures = None if self._captures is None else self._captures.of(method, options)
        if captures is not None:
            return captures
        passes = {name: options[name] for name in ("checkpoints", "inside") if name in options}
        own = {name: value for name, value in options.items() if name not in passes}
        return checked_request(self.model, method, own, **passes)

    def read(self, raw: Any) -> Sample:
        """Read one raw input as a sample: tensors, and where they came from."""
        if self.reader is None or self._is_tensors(raw):
            if self._is_tensors(raw):
                return _tensors(raw)
            raise InputError(
                f"This explainer has no processor, so it takes tensors, not {type(raw).__name__}. Give it one: "
                "Explainer(model, processor=tokenizer or image processor)."
            )
        return _as_taken(self.reader.read(raw), self.model)

    def _is_tensors(self, raw: Any) -> bool:
        if isinstance(raw, Mapping | tuple):
            values = raw.values() if isinstance(raw, Mapping) else raw
            return bool(raw) and all(isinstance(v, Tensor) for v in values)
        return isinstance(raw, Tensor)

    def _is_several(self, inputs: Any) -> bool:
        """Whether these are several inputs: a list or an iterator, but not one text, image, series or tensor."""
        if isinstance(inputs, np.ndarray):
            return inputs.dtype.kind in "UO"  # of strings or objects
        if isinstance(inputs, str | bytes | Path | Mapping | Tensor | tuple):
            return False
        if isinstance(inputs, list):
            return not (self.modality == "series" and bool(inputs) and _is_number(inputs[0]))
        one = hasattr(inputs, "columns") or hasattr(inputs, "getpixel")  # a table, an image
        return hasattr(inputs, "__iter__") and not one

    def placed(self, inputs: Any) -> Any:
        """Return inputs on the model's device, floats in its precision."""
        device, dtype = device_of(self.model), precision_of(self.model)

        def place(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            return t.to(device, dtype) if t.is_floating_point() else t.to(device)

        if isinstance(inputs, Mapping):
            return {k: place(v) for k, v in inputs.items()}
        return tuple(map(place, inputs)) if isinstance(inputs, tuple) else place(inputs)


def _move(model: nn.Module, device: Any, dtype: Any) -> nn.Module:
    try:
        return model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"The device '{device}' cannot be used here: {str(error).splitlines()[0]}") from error


def _as_taken(sample: Sample, model: nn.Module) -> Sample:
    """Return a sample with the arguments that a wrapper's forward takes: it may take fewer than the model inside."""
    takes = forward_parameters(model)
    if any(p.kind is p.VAR_KEYWORD for p in takes.values()) or "" in sample.tensors or not takes:
        return sample
    taken = {name: t for name, t in sample.tensors.items() if name in takes}
    if not taken and len(sample.tensors) == 1:  # the only argument, under another name
        taken = {next(iter(takes)): next(iter(sample.tensors.values()))}
    if not taken:
        raise InputError(
            f"The forward of {type(model).__name__} takes {', '.join(takes)}, and the processor makes "
            f"{', '.join(sample.tensors)}: explain the model inside, or give its forward these arguments."
        )
    return replace(sample, tensors=taken)


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float) or (isinstance(item, list) and bool(item) and isinstance(item[0], int | float))


def _tensors(raw: Any) -> Sample:
    """Return one sample that is given as tensors."""
    named = dict(raw) if isinstance(raw, Mapping) else {"": raw}
    if isinstance(raw, tuple) or any(not t.dim() or len(t) != 1 for t in named.values()):
        raise InputError("In a list, tensors hold one sample each, as a batch of one; give a whole batch by itself.")
    return Sample(named, {})
