"""``whence.explain``: a model, inputs, a method and a target in; an :class:`Explanation` out."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .axes import Dim
from .diagnosis import first_bad_value
from .errors import AGAIN, InputError, ModelError, NumericalError, SamplesMixedError, WhenceWarning
from .explanation import Explanation
from .ledger import Ledger
from .methods import Method, Reading, create
from .node import node_of
from .run import Run, clean_buffers, evaluating
from .streams import in_order, patch_places, split
from .target import At, Seed, Target, find_logits, seed
from .trace import Trace

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]


def explain(
    model: nn.Module,
    inputs: Inputs,
    method: str = "conservative-lrp",
    target: Target = None,
    **options: Any,
) -> Explanation:
    """Explain a prediction of any PyTorch Transformer, as it is.

    Args:
        model: any ``nn.Module``. It is run in evaluation mode and left exactly as found.
        inputs: a mapping (``model(**inputs)``), or a tensor or sequence (``model(*inputs)``); batch first.
        method: a name from :func:`whence.methods`.
        target: ``None`` (each sample's predicted class), a class number or label for all samples, one per sample, or a
            function ``outputs -> Tensor[batch]``.
        options: the method's options; input-level methods take ``at="position"``, ``"token"`` or ``"pixel"``.

    Returns:
        The explanation of the batch: ``scores`` is ``[batch, tokens]``.

    Example:
        >>> e = whence.explain(model, {"input_ids": ids, "attention_mask": mask}, target=1)
        >>> e.scores[0]
    """
    chosen = create(method, options)
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is {type(model).__name__}; Whence explains torch.nn.Module objects.")
    original: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile wraps the module it was given
    args, kwargs, batch = prepare(original, inputs)
    try:
        return _explain(original, args, kwargs, batch, chosen, target, options)
    except SamplesMixedError:  # experts that gather tokens of all samples, for instance
        if batch == 1:
            raise
        each = [_sample((args, kwargs), batch, i) for i in range(batch)]
        targets = [target] * batch if target is None or callable(target) else _each(target, batch)
        return Explanation.join(
            [
                _explain(original, *given, 1, create(method, options), t, options)
                for given, t in zip(each, targets, strict=True)
            ]
        )


def _explain(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    method: Method,
    target: Target,
    options: dict[str, Any],
) -> Explanation:
    with forwarded(model, args, kwargs, batch, method, target) as run:
        reading = method.read(run)
    if run.trace.coverage.opaque and run.rulebook.rules:
        warnings.warn(
            f"The model computes '{run.trace.coverage.opaque[0]}' in a kernel of its own, of which nothing can be seen "
            f"and which may be its attention: it was differentiated plainly, not by the rules of '{method.name}'. "
            'Switch to attention in torch itself (HuggingFace: attn_implementation="sdpa" when the model is loaded).',
            WhenceWarning,
            stacklevel=3,
        )
    scores = run.zero_padding(reading.scores.detach(), run.tokens())
    reading.others = [(dim, run.zero_padding(found.detach(), dim)) for dim, found in reading.others]
    if not torch.isfinite(scores).all():
        where = first_bad_value(model, args, kwargs)
        raise NumericalError(f"The scores of '{method.name}' are not finite although the model's output is: {where}")
    return _explanation(run, reading, scores, method, options)


@contextlib.contextmanager
def forwarded(
    model: nn.Module, args: list[Any], kwargs: dict[str, Any], batch: int, method: Method, target: Target
) -> Iterator[Run]:
    """A traced forward, ready to be read; the model is as it was when the block ends."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(evaluating(model))
        stack.enter_context(clean_buffers(model))
        stack.enter_context(_eager(model))
        run = _forward(model, args, kwargs, batch, method, target, _padding(kwargs))
        if any(s.name == "image" and s.grid is None for s in split(run.tokens(), _length(run), run)):
            run.places = patch_places(run)
        yield run


def _length(run: Run) -> int:
    return math.prod(atom.size for atom in run.tokens())


def _sample(inputs: tuple[list[Any], dict[str, Any]], batch: int, i: int) -> tuple[list[Any], dict[str, Any]]:
    """The inputs of one sample."""

    def cut(value: Any) -> Any:
        return value[i : i + 1] if isinstance(value, Tensor) and value.dim() and len(value) == batch else value

    return [cut(v) for v in inputs[0]], {k: cut(v) for k, v in inputs[1].items()}


def _each(target: Any, batch: int) -> list[Any]:
    """A target per sample."""
    if isinstance(target, At):
        places = [target.position] * batch if isinstance(target.position, int) else list(target.position)
        inner = [None] * batch if target.target is None else _each(target.target, batch)
        return [At([p], t) for p, t in zip(places, inner, strict=True)]
    items = target.tolist() if isinstance(target, Tensor) else target
    return [items] * batch if isinstance(items, int | str) else [[item] for item in items]


# -- inputs ------------------------------------------------------------------------------------------------------


def prepare(model: nn.Module, inputs: Inputs) -> tuple[list[Any], dict[str, Any], int]:
    """Positional and keyword arguments, and the batch size."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    tensors = {**{str(i): a for i, a in enumerate(args)}, **kwargs}
    tensors = {name: t for name, t in tensors.items() if isinstance(t, Tensor)}
    if not tensors:
        raise InputError(
            f"The inputs ({type(inputs).__name__}) hold no tensor. Pass what the model takes: a dict of tensors for "
            "model(**inputs), or a tensor or tuple for model(*inputs)."
        )
    first, main = next(iter(tensors.items()))
    if main.dim() == 0 or main.numel() == 0:
        raise InputError(f"The input '{first}' is empty (shape {list(main.shape)}): there is nothing to explain.")
    batch = main.shape[0]
    _check_lengths(tensors)
    _check_devices(model, tensors)
    for name, t in tensors.items():
        if t.is_floating_point() and not name.endswith("mask") and not bool(torch.isfinite(t).all()):
            where = torch.nonzero(~torch.isfinite(t))[0].tolist()
            raise NumericalError(
                f"The input '{name}' has a NaN or an infinity at {where}. Remove it and explain again."
            )
    return args, kwargs, batch


def _check_lengths(tensors: Mapping[str, Tensor]) -> None:
    ids = tensors.get("input_ids")
    if ids is None:
        return
    for name in ("attention_mask", "token_type_ids", "position_ids"):
        t = tensors.get(name)
        if t is None or t.dim() != 2 or t.shape == ids.shape or (name == "position_ids" and len(t) == 1):
            continue
        raise InputError(
            f"'{name}' has shape {list(t.shape)} but 'input_ids' has {list(ids.shape)}: they must agree. "
            "Pad all samples to one length."
        )


def _check_devices(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    there = next((p.device for p in model.parameters()), None)
    for name, t in tensors.items():
        if there is not None and t.device != there:
            raise InputError(
                f"The model is on {there} but the input '{name}' is on {t.device}. Move one of them: "
                f"inputs.to('{there}') or model.to('{t.device}')."
            )


def _padding(kwargs: Mapping[str, Any]) -> Tensor | None:
    """``[batch, tokens]``, true at padding, from the masks that models are given."""
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask == 0
    mask = kwargs.get("src_key_padding_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.dtype == torch.bool:
        return mask
    return None


def labels_of(model: nn.Module) -> dict[int, str]:
    """The names that a model's configuration gives its classes."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    return {int(k): str(v) for k, v in names.items()} if isinstance(names, Mapping) else {}


# -- the forward ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """Let compiled submodules run as they were written."""
    compiled = any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules())
    if not compiled:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _forward(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    method: Method,
    target: Target,
    mask: Tensor | None,
    replaced: Mapping[int, Tensor] | None = None,
    learned: frozenset[int] = frozenset(),
) -> Run:
    rulebook = method.rulebook()
    if rulebook.phase is not None:
        rulebook.phase.masked = mask is not None
    names = {id(p): name for name, p in model.named_parameters()}
    trace = Trace(rulebook.rules, batch, rulebook.maps, rulebook.fan_out, names, replaced, learned)
    watched = rulebook.books and rulebook.phase is None and not rulebook.maps
    trace.ledger = Ledger(trace.batch) if watched else None
    with trace:
        placed = [trace.input(str(i), a) if isinstance(a, Tensor) else a for i, a in enumerate(args)]
        named = {k: trace.input(k, v) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        outputs = model._call_impl(*placed, **named)  # as model(...), but not compiled
    if trace.asking - learned:  # some tokens are the model's own: follow these, too
        return _forward(model, args, kwargs, batch, method, target, mask, replaced, learned | trace.asking)
    with trace:
        if trace.replaced:
            raise ModelError(AGAIN)
        start = seed(outputs, target, batch, labels_of(model), _last(trace, mask, batch, find_logits(outputs)))
    if bool((torch.isnan(start.logits) | (start.logits == torch.inf)).any()) or not bool(start.value.isfinite().all()):
        raise NumericalError(f"The model's output is not finite: {first_bad_value(model, args, kwargs)}")
    if not start.output.requires_grad:
        raise InputError(
            "The model's output does not depend on any input that can carry relevance: its inputs are integers and no "
            "embedding of them was found. Pass floating-point inputs (inputs_embeds, pixel_values)."
        )
    trace.coverage.settle(node_of(start.output).reachable())
    run = Run(model, trace, start, rulebook, mask)
    again = _fixed(start, target)

    def repeat(values: Mapping[int, Tensor]) -> Run:
        other = _forward(model, args, kwargs, batch, method, again, mask, values, learned)
        if len(values) > 1 and node_of(other.seed.output).seq != node_of(start.output).seq:  # experts: other operations
            raise ModelError(AGAIN)
        return other

    run.repeat = repeat
    return run


def _fixed(start: Seed, target: Target) -> Target:
    """The target that was explained, whatever the model says next time."""
    if start.index is None:
        return target
    classes = start.index.tolist()
    if start.weights.dim() != 3:
        return classes
    return At(start.weights.any(-1).int().argmax(1).tolist(), classes)


def _last(trace: Trace, mask: Tensor | None, batch: int, logits: Tensor | None) -> Tensor | None:
    """The last real token of each sample, if the model answers at every position and looks only back."""
    if logits is None or logits.dim() != 3 or not any(r.causal for r in trace.attentions):
        return None
    if mask is None or mask.shape != logits.shape[:2]:
        return torch.full((batch,), logits.shape[1] - 1, device=logits.device)
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, -1, positions).amax(1)


# -- the result ----------------------------------------------------------------------------------------------------


def _explanation(run: Run, reading: Reading, scores: Tensor, method: Method, options: dict[str, Any]) -> Explanation:
    layout = _layout(run, reading, scores)
    scores = layout.scores
    image = next((s.tensor.shape[-2:] for s in run.trace.sources if s.tensor.dim() == 4), None)
    labels = labels_of(run.model)
    names = labels if len(labels) == run.seed.logits.shape[-1] else {}
    task = _task(run.model, run.seed)
    return Explanation(
        scores=scores,
        special=layout.special,
        method=method.name,
        options=options,
        logits=run.seed.logits.detach(),
        value=run.seed.value,
        prediction=run.seed.prediction,
        target=run.seed.index,
        coverage=run.trace.coverage,
        labels=names,
        task=task,
        streams=layout.streams,
        grid=layout.grid,
        patch_start=layout.patch_start,
        image_size=(int(image[0]), int(image[1])) if image is not None and layout.grid is not None else None,
        ledger=run.ledger,
        layers=None if reading.layers is None else _layers(run, reading.layers, layout.order),
        heads=None if reading.heads is None else reading.heads.detach(),
        target_names=tuple(run.seed.names(names)),
        prediction_names=tuple(run.seed.said(names, task)),
    )


def _task(model: nn.Module, start: Seed) -> str:
    """Whether one class is true, several can be, or the output is a value."""
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if start.prediction is None:
        return ""
    if problem == "multi_label_classification":
        return "multi-label"
    return "regression" if problem == "regression" or start.logits.shape[-1] == 1 else "single-label"


def _layers(run: Run, layers: Tensor, order: Tensor | None) -> Tensor:
    """Relevance per layer, padding exactly 0."""
    if order is not None and order.shape[1] == layers.shape[2]:
        layers = layers.gather(2, order[:, None].expand(-1, layers.shape[1], -1))
    if run.mask is None or run.mask.shape != layers[:, 0].shape:
        return layers.detach()
    return layers.detach().masked_fill(run.mask[:, None], 0.0)


@dataclass
class _Layout:
    """How scores are spread over the user's inputs: fields as in :class:`Explanation`."""

    scores: Tensor
    special: Tensor
    streams: dict[str, Tensor]
    grid: tuple[int, int] | None = None
    patch_start: int = 0
    order: Tensor | None = None


def _layout(run: Run, reading: Reading, scores: Tensor) -> _Layout:
    special = torch.zeros_like(scores, dtype=torch.bool)
    if run.mask is not None and run.mask.shape == scores.shape:
        special |= run.mask
    if reading.grid is not None:  # of pixels
        return _Layout(scores, special, {"image": scores}, reading.grid)
    layout = _Layout(scores, special, {})
    axes: dict[str, Dim] = {}  # of each stream
    main = run.tokens() if reading.tokens is None or len(scores[0]) == _length(run) else reading.tokens
    for n, (tokens, found) in enumerate([(main, scores), *reading.others]):
        streams = split(tokens, found.shape[1], run)
        order = in_order(run, streams, found.shape[1]) if n == 0 and tokens == run.tokens() else None
        if order is not None:
            layout.scores = found = found.gather(1, order)
            layout.order = order
        for stream in streams:
            if n == 0:
                special[:, stream.start : stream.start + stream.length] |= stream.special.to(special.device)
            name = stream.name
            if name in axes and (_reads(run, tokens, axes[name]) or _reads(run, axes[name], tokens)):
                other, name = ("encoder", "decoder") if _reads(run, tokens, axes[name]) else ("decoder", "encoder")
                layout.streams = {other if k == stream.name else k: v for k, v in layout.streams.items()}
                axes[other] = axes.pop(stream.name)
            elif name in axes:
                name = f"{name} {len(layout.streams) + 1}"
            axes[name] = tokens
            layout.streams[name] = found[:, stream.start : stream.start + stream.length].detach()
            if stream.grid is not None and layout.grid is None:
                layout.grid, layout.patch_start = stream.grid, stream.patch_start
    return layout


def _reads(run: Run, one: Dim, other: Dim) -> bool:
    """Whether some attention looks from one stream at the other."""
    return any(r.axes[r.query] == one and r.axes[r.key] == other for r in run.trace.attentions)
