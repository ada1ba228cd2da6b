"""``whence.explain``: a model, inputs, a method and a target in; an :class:`Explanation` out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, overload

from torch import nn

from ..errors import InputError, MethodError, ModelError, SamplesMixedError, WhenceError
from ..explanations.explanation import Explanation, Explanations
from ..methods.registry import REGISTRY, create
from ..runs.model_inputs import Inputs, each, prepare, sample_of
from ..targets.specs import Every, OneTarget, Target, parse_target
from .assemble import Unnamed
from .failure_diagnosis import Attempt, plain_failure
from .request import Request, compute_together, original_of, sharing_forward


@overload
def explain(
    model: nn.Module,
    inputs: Inputs,
    method: str = ...,
    *,
    target: Every,
    checkpoints: int = ...,
    inside: bool = ...,
    **options: Any,
) -> Explanations: ...
@overload
def explain(
    model: nn.Module,
    inputs: Inputs,
    method: str = ...,
    target: OneTarget = ...,
    *,
    checkpoints: int = ...,
    inside: bool = ...,
    **options: Any,
) -> Explanation: ...
def explain(
    model: nn.Module,
    inputs: Inputs,
    method: str = "conservative-lrp",
    target: Target = None,
    *,
    checkpoints: int = 1,
    inside: bool = False,
    **options: Any,
) -> Explanation | Explanations:
    """Explain a prediction of any PyTorch Transformer, as it is.

    Args:
        model: any ``nn.Module``. It is run in evaluation mode and left exactly as found.
        inputs: a mapping (``model(**inputs)``), or a tensor or sequence (``model(*inputs)``); batch first.
        method: a name from :func:`whence.list_methods`.
        target: ``None`` (each sample's predicted class), a class number or label for all samples, one per sample, a
            function ``outputs -> Tensor[batch]``, :func:`whence.contrast`, or several by :func:`whence.every`.
        checkpoints: recompute the forward pass in this many chunks during the backward pass: less memory, the same
            numbers, ``(checkpoints + 1) / 2`` more forward passes.
        inside: also return the relevance inside each block: ``branches`` and ``pairs`` of the explanation.
        options: the method's options; input-level methods take ``at="position"``, ``"token"`` or ``"pixel"``.

    Returns:
        The explanation of the batch: ``scores`` is ``[batch, tokens]``. Of :func:`whence.every`, a list, one for each.

    Example:
        >>> e = whence.explain(model, {"input_ids": ids, "attention_mask": mask}, target=1)
        >>> e.scores[0]
    """
    request = checked_request(model, method, options, checkpoints, inside)
    found: Explanation | Explanations = explain_request(request, inputs, target)
    return found


def checked_request(
    model: nn.Module, method: str, options: dict[str, Any], checkpoints: int = 1, inside: bool = False
) -> Request:
    """Return a request, or raise an error if its arguments, those of :func:`explain`, do not fit together."""
    if inside and checkpoints > 1:
        raise MethodError("`inside` looks at all attention maps at once, so `checkpoints` cannot save it memory.")
    create(method, options)  # a wrong name or option is refused before anything else
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is {type(model).__name__}; Whence explains torch.nn.Module objects.")
    return Request(original_of(model), method, options, checkpoints, inside)


class ExplainsTensors(Protocol):
    """What computes explanations of prepared tensors: a request, or one whose explanations are captured."""

    @property
    def request(self) -> Request:
        """The model, method and options."""

    def explain(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation]:
        """Return an explanation for each target."""

    def replay(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation] | None:
        """Return an explanation for each target by a capture; ``None`` if there is none that holds."""

    def note(
        self,
        args: list[Any],
        kwargs: dict[str, Any],
        batch: int,
        targets: Sequence[Target],
        found: list[Unnamed],
        seconds: float,
    ) -> None:
        """Note explanations that were computed as usual, in so many seconds."""


def explain_together(engines: Sequence[ExplainsTensors], inputs: Inputs, target: Every) -> list[Explanations | None]:
    """Explain inputs by several methods; those with equal rulebooks read one forward pass.

    Returns:
        The explanations by each method, exactly those of :func:`explain_request`. ``None`` for a method that shares its
        forward pass with no other, or that raised an error: explain it by itself.
    """
    args, kwargs, batch = prepare(engines[0].request.model, inputs)
    targets = list(parse_target(target).targets)
    out: list[Explanations | None] = [None] * len(engines)
    for group in sharing_forward([engine.request for engine in engines]):
        for i, found in _read_together({i: engines[i] for i in group}, args, kwargs, batch, targets).items():
            out[i] = Explanations(found)
    return out


def _read_together(
    engines: dict[int, ExplainsTensors],
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    targets: Sequence[Target],
) -> dict[int, list[Explanation]]:
    """Return the explanations by methods that share a forward pass, as far as they are replayed or share it."""
    replayed = {i: engine.replay(args, kwargs, batch, targets) for i, engine in engines.items()}
    found = {i: one for i, one in replayed.items() if one is not None}
    rest = {i: engine for i, engine in engines.items() if i not in found}
    if len(rest) < 2:
        return found
    start = time.perf_counter()
    try:
        computed = compute_together([engine.request for engine in rest.values()], args, kwargs, batch, targets)
    except Exception:  # of the forward pass: explained by itself, each method says why
        return found
    seconds = (time.perf_counter() - start) / len(rest)
    for (i, engine), own in zip(rest.items(), computed, strict=True):
        if own is not None:
            engine.note(args, kwargs, batch, targets, own, seconds)
            found[i] = [one.named() for one in own]
    return found


def explain_request(engine: ExplainsTensors, inputs: Inputs, target: Any) -> Any:
    """Check inputs and target, and explain them; samples that a model mixes are explained one by one."""
    args, kwargs, batch = prepare(engine.request.model, inputs)
    target = parse_target(target)
    targets = list(target.targets) if isinstance(target, Every) else [target]
    if not targets:
        raise InputError("There is no target: whence.every takes at least one.")
    try:
        found = _diagnosed(engine, args, kwargs, batch, targets)
    except SamplesMixedError:  # experts that gather tokens of all samples, for instance
        if batch == 1:
            raise
        alone = [
            _alone(engine, sample_of((args, kwargs), batch, i), own)
            for i, own in enumerate(zip(*(each(t, batch) for t in targets), strict=True))
        ]
        found = [_joined(list(parts)) for parts in zip(*alone, strict=True)]
    return Explanations(found) if isinstance(target, Every) else found[0]


def _joined(parts: list[Explanation]) -> Explanation:
    """Join explanations of single samples, which must be of the same number of positions."""
    lengths = sorted({part.scores.shape[1] for part in parts})
    if len(lengths) > 1:
        raise ModelError(
            f"The samples were explained one by one, and have scores of different lengths "
            f"({', '.join(map(str, lengths))}): the model may remove padding. Explain one sample at a time."
        )
    return Explanation.join(parts)


def _alone(
    engine: ExplainsTensors, given: tuple[list[Any], dict[str, Any]], targets: Sequence[Target]
) -> list[Explanation]:
    """Explain one sample of a batch whose samples cannot be told apart inside the model."""
    try:
        return _diagnosed(engine, *given, 1, targets)
    except WhenceError:
        failure = plain_failure(engine.request.model, *given)
        if failure is None:
            raise
        raise ModelError(
            "The samples of the batch cannot be told apart inside the model, and it does not run on one of them alone "
            f"({type(failure).__name__}: {failure}). Explain the model that it was made from (before torch.export, for "
            "instance), or export it with a dynamic batch."
        ) from failure


def _diagnosed(
    engine: ExplainsTensors, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
) -> list[Explanation]:
    """Return an explanation for each target; an unexpected exception becomes an error that says what failed."""
    request = engine.request
    own = REGISTRY[request.method].__module__.startswith("whence.")
    with Attempt(request.model, request.method, own, args, kwargs, targets).diagnosed():
        return engine.explain(args, kwargs, batch, targets)
