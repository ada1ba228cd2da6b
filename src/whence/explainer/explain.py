"""``whence.explain``: a model, inputs, a method and a target in; an :class:`Explanation` out."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from ..errors import AGAIN, InputError, MethodError, ModelError, NumericalError, SamplesMixedError, WhenceWarning
from ..explanations.explanation import Explanation, Explanations
from ..methods import Method, create
from ..propagation.ledger import Ledger
from ..propagation.rulebook import Rulebook
from ..readout.block_relevance import Inside
from ..runs.boundaries import Written
from ..runs.model_inputs import Inputs, each, padding_of, prepare, repeated, sample_of
from ..runs.padding import zeroed
from ..runs.rerun import Elsewhere, Placing
from ..runs.run import Run
from ..runs.token_streams import patch_places, split
from ..targets.seed import (
    At,
    Contrast,
    Every,
    LastLinear,
    OneTarget,
    Seed,
    Target,
    checked,
    find_logits,
    labels_of,
    seed,
)
from ..tracing.axes import size_of
from ..tracing.checkpointing import Checkpoints, held
from ..tracing.eval_mode import undisturbed
from ..tracing.gc_pause import uncollected
from ..tracing.node import node_of
from ..tracing.nonfinite import first_bad_value
from ..tracing.op_call import as_it_is
from ..tracing.output_head import Head
from ..tracing.tracer import Trace
from .assemble import assemble


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
        method: a name from :func:`whence.methods`.
        target: ``None`` (each sample's predicted class), a class number or label for all samples, one per sample, a
            function ``outputs -> Tensor[batch]``, :func:`whence.contrast`, or several by :func:`whence.every`.
        checkpoints: keep a part of this many of what the backward needs, and make the rest again when it is needed:
            less memory, the same numbers, ``(checkpoints + 1) / 2`` more forwards.
        inside: also say what each block did: ``branches`` and ``pairs`` of the explanation.
        options: the method's options; input-level methods take ``at="position"``, ``"token"`` or ``"pixel"``.

    Returns:
        The explanation of the batch: ``scores`` is ``[batch, tokens]``. Of :func:`whence.every`, a list, one for each.

    Example:
        >>> e = whence.explain(model, {"input_ids": ids, "attention_mask": mask}, target=1)
        >>> e.scores[0]
    """
    if inside and checkpoints > 1:
        raise MethodError("`inside` looks at all attention maps at once, so `checkpoints` cannot save it memory.")

    def chosen() -> Method:
        new = create(method, options)
        new.inside = inside
        return new

    first = chosen()
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is {type(model).__name__}; Whence explains torch.nn.Module objects.")
    original: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile wraps the module it was given
    args, kwargs, batch = prepare(original, inputs)
    target = checked(target)
    targets = list(target.targets) if isinstance(target, Every) else [target]
    if not targets:
        raise InputError("There is no target: whence.every takes at least one.")
    try:
        found = _explain(original, args, kwargs, batch, first, targets, options, checkpoints)
    except SamplesMixedError:  # experts that gather tokens of all samples, for instance
        if batch == 1:
            raise
        alone = [
            _explain(original, *sample_of((args, kwargs), batch, i), 1, chosen(), own, options, checkpoints)
            for i, own in enumerate(zip(*(each(t, batch) for t in targets), strict=True))
        ]
        found = [Explanation.join(list(parts)) for parts in zip(*alone, strict=True)]
    return Explanations(found) if isinstance(target, Every) else found[0]


def _explain(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    method: Method,
    targets: Sequence[Target],
    options: dict[str, Any],
    checkpoints: int,
) -> list[Explanation]:
    """An explanation for each target, with one forward for all."""
    out = []
    with forwarded(model, args, kwargs, batch, method, targets, checkpoints) as runs:
        for run in runs:
            out.append(_read(run, method, options, lambda: first_bad_value(model, args, kwargs)))
    if runs[0].trace.coverage.opaque and runs[0].rulebook.rules:
        warnings.warn(
            f"The model computes '{runs[0].trace.coverage.opaque[0]}' in a kernel of its own, of which nothing can be "
            f"seen and which may be its attention: it was differentiated plainly, not by the rules of '{method.name}'. "
            'Switch to attention in torch itself (HuggingFace: attn_implementation="sdpa" when the model is loaded).',
            WhenceWarning,
            stacklevel=3,
        )
    return out


def _read(run: Run, method: Method, options: dict[str, Any], diagnose: Callable[[], str]) -> Explanation:
    """What a method reads of a run; the books are its own, also if the same forward is read again."""
    watched = Inside(run) if method.inside and run.rulebook.phase is None and not run.rulebook.maps else None
    reading = method.read(run)
    if watched is not None and reading.pairs is None and any(isinstance(w, Written) for w in run.watched):
        reading.branches, reading.pairs = watched.branches(), watched.pairs()
    if method.inside and reading.pairs is None:
        raise MethodError(
            f"'{method.name}' does not say what each block did: explain without `inside`, or by a method with one "
            "backward of gradients (conservative-lrp, attn-lrp, gradient-x-input) or of maps (generic-attention)."
        )
    scores = zeroed(reading.scores.detach(), run.absent(reading.scores, run.tokens()))
    reading.others = [(dim, zeroed(found.detach(), run.absent(found, dim))) for dim, found in reading.others]
    if not torch.isfinite(scores).all():
        raise NumericalError(
            f"The scores of '{method.name}' are not finite although the model's output is: {diagnose()}"
        )
    run.ledger = copy.copy(run.ledger)
    if run.trace.ledger is not None:
        run.trace.ledger.forget()
    return assemble(run, reading, scores, method, options)


@contextlib.contextmanager
def forwarded(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    method: Method,
    targets: Sequence[Target],
    checkpoints: int = 1,
) -> Iterator[list[Run]]:
    """A traced forward, ready to be read for each target; the model is as it was when the block ends."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        names = stack.enter_context(undisturbed(model))
        runs = _forward(model, args, kwargs, batch, method, targets, padding_of(kwargs), names, checkpoints=checkpoints)
        tokens = runs[0].tokens()
        if any(s.name == "image" and s.grid is None for s in split(tokens, size_of(tokens), runs[0])):
            places = patch_places(runs[0])
            for run in runs:
                run.places = places
        yield runs


# -- the forward ---------------------------------------------------------------------------------------------------


def _forward(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    method: Method,
    targets: Sequence[Target],
    mask: Tensor | None,
    names: Mapping[int, str],
    replaced: Mapping[int, Tensor] | None = None,
    learned: frozenset[int] = frozenset(),
    checkpoints: int = 1,
) -> list[Run]:
    rulebook = method.rulebook()
    rulebook.inside = method.inside
    if rulebook.phase is not None:
        rulebook.phase.masked = mask is not None
    saved = None if checkpoints == 1 else _checkpoints(checkpoints, model, method, rulebook)

    def traced() -> tuple[Trace, Any]:
        head = Head() if rulebook.head else None
        maps = rulebook.maps or rulebook.inside
        trace = Trace(rulebook.rules, batch, maps, rulebook.fan_out, names, replaced, learned, head)
        watched = rulebook.books and rulebook.phase is None and not rulebook.maps
        trace.hold = held if saved else as_it_is
        trace.ledger = Ledger(trace.batch, trace.hold) if watched else None
        return trace, _through(trace, model, args, kwargs)

    trace, outputs = traced() if saved is None else saved.first(traced)
    if trace.asking - learned:  # some tokens are the model's own: follow these, too
        learned = learned | trace.asking
        return _forward(model, args, kwargs, batch, method, targets, mask, names, replaced, learned, checkpoints)
    with trace:
        if trace.replaced:
            raise ModelError(AGAIN)
        last = _last(trace, mask, batch, find_logits(outputs))
        starts = [seed(outputs, target, batch, labels_of(model), last) for target in targets]
    for start in starts:
        start.last = None if rulebook.phase is not None else _last_linear(trace, start)
        _check(start, lambda: first_bad_value(model, args, kwargs))
    trace.coverage.settle(node_of(starts[0].output).reachable())

    def run_to(start: Seed, target: Target) -> Run:
        run = Run(model, trace, start, rulebook, mask)

        def repeat(values: Mapping[int, Tensor]) -> Run:
            again = _fixed(start, target)
            (other,) = _forward(model, args, kwargs, batch, method, [again], mask, names, values, learned, checkpoints)
            if len(values) > 1 and node_of(other.seed.output).seq != node_of(start.output).seq:  # experts: other calls
                raise ModelError(AGAIN)
            return other

        def elsewhere(values: Mapping[int, Tensor], times: int = 1) -> Elsewhere:
            if len(values) > 1 or rulebook.rules or rulebook.maps or rulebook.inside:  # a whole trace has to tell
                there = repeat(values)
                return Elsewhere(there.seed, [there.trace.placed[seq] for seq in values])
            given = repeated((args, kwargs), batch, times)

            def placing() -> tuple[Trace, Any]:
                trace = Placing({}, batch * times, names=names, replaced=values, learned=learned)
                return trace, _through(trace, model, *given)

            placed, outputs = placing() if saved is None else Checkpoints(checkpoints, model).first(placing)
            if placed.replaced:
                raise ModelError(AGAIN)
            with placed:
                begun = seed(outputs, _fixed(start, target, times), batch * times, labels_of(model), None)
            if begun.logits.shape[1:] != start.logits.shape[1:]:  # its classes are other samples of the batch
                raise ModelError(AGAIN)
            begun.last = _last_linear(placed, begun)
            _check(begun, lambda: first_bad_value(model, args, kwargs))
            return Elsewhere(begun, [placed.placed[seq] for seq in values])

        run.repeat, run.elsewhere = repeat, elsewhere
        return run

    runs = [run_to(start, target) for start, target in zip(starts, targets, strict=True)]
    for i, run in enumerate(runs):
        run.followers = runs[i + 1 :]
    return runs


def _through(trace: Trace, model: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a model returns whose operations a trace sees."""
    with uncollected(), trace:
        placed = [trace.input(str(i), a) if isinstance(a, Tensor) else a for i, a in enumerate(args)]
        named = {k: trace.input(k, v) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        return model._call_impl(*placed, **named)  # as model(...), but not compiled


def _checkpoints(pieces: int, model: nn.Module, method: Method, rulebook: Rulebook) -> Checkpoints:
    if rulebook.phase is not None or rulebook.maps:
        raise MethodError(
            f"'{method.name}' goes back twice, or looks at all attention maps at once, so `checkpoints` cannot save it "
            "memory. Methods that can: conservative-lrp, attn-lrp, gradient-x-input, generic-attention, grad-cam."
        )
    return Checkpoints(pieces, model)


def _check(start: Seed, diagnose: Callable[[], str]) -> None:
    """Refuse outputs that cannot be explained."""
    if bool((torch.isnan(start.logits) | (start.logits == torch.inf)).any()) or not bool(start.value.isfinite().all()):
        raise NumericalError(f"The model's output is not finite: {diagnose()}")
    if not start.output.requires_grad:
        raise InputError(
            "The model's output does not depend on any input that can carry relevance: its inputs are integers and no "
            "embedding of them was found. Pass floating-point inputs (inputs_embeds, pixel_values)."
        )


def _fixed(start: Seed, target: Target, times: int = 1) -> Target:
    """The target that was explained, whatever the model says next time; of a batch that is repeated so many times."""
    if start.index is None:
        return target
    classes = start.index.tolist() * times
    asked = classes if start.other is None else Contrast(classes, start.other.tolist() * times)
    return asked if start.place is None else At(start.place.tolist() * times, asked)


def _last_linear(trace: Trace, start: Seed) -> LastLinear | None:
    """The linear layer that made the logits of every position, if nothing came after it."""
    if trace.last_linear is None or start.place is None or start.output.dim() != 3:
        return None
    made, of = trace.last_linear
    return LastLinear(*of) if getattr(start.output, "_whence", None) is made else None


def _last(trace: Trace, mask: Tensor | None, batch: int, logits: Tensor | None) -> Tensor | None:
    """The last real token of each sample, if the model answers at every position and looks only back."""
    if logits is None or logits.dim() != 3 or not any(r.causal for r in trace.attentions):
        return None
    if mask is None or mask.shape != logits.shape[:2]:
        return torch.full((batch,), logits.shape[1] - 1, device=logits.device)
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, -1, positions).amax(1)
