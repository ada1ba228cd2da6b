"""``whence.explain``: a model, inputs, a method and a target in; an :class:`Explanation` out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import nn

from ..errors import (
    InputError,
    MethodError,
    ModelError,
    NumericalError,
    SamplesMixedError,
    WhenceError,
    WhenceWarning,
)
from ..explanations.explanation import Explanation, Explanations
from ..methods.base import Method
from ..methods.registry import create
from ..readout.block_relevance import BlockRelevance
from ..runs.boundaries import HeadRelevance
from ..runs.forward import forwarded
from ..runs.model_inputs import Inputs, each, prepare, sample_of
from ..runs.nonfinite import first_bad_value
from ..runs.padding import zeroed
from ..runs.run import Run
from ..targets.specs import Every, OneTarget, Target, parse_target
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
    if inside and checkpoints > 1:
        raise MethodError("`inside` looks at all attention maps at once, so `checkpoints` cannot save it memory.")
    create(method, options)  # a wrong name or option is refused before anything else
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is {type(model).__name__}; Whence explains torch.nn.Module objects.")
    original: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile wraps the module it was given
    args, kwargs, batch = prepare(original, inputs)
    target = parse_target(target)
    targets = list(target.targets) if isinstance(target, Every) else [target]
    if not targets:
        raise InputError("There is no target: whence.every takes at least one.")
    request = Request(original, method, options, checkpoints, inside)
    try:
        found = request.explain(args, kwargs, batch, targets)
    except SamplesMixedError:  # experts that gather tokens of all samples, for instance
        if batch == 1:
            raise
        alone = [
            _alone(request, sample_of((args, kwargs), batch, i), own)
            for i, own in enumerate(zip(*(each(t, batch) for t in targets), strict=True))
        ]
        found = [_joined(list(parts)) for parts in zip(*alone, strict=True)]
    return Explanations(found) if isinstance(target, Every) else found[0]


def _joined(parts: list[Explanation]) -> Explanation:
    """Join explanations of single samples, which must be of the same number of positions."""
    lengths = sorted({part.scores.shape[1] for part in parts})
    if len(lengths) > 1:
        raise ModelError(
            "The model removes padding and runs the tokens of all samples in one row, so its samples have scores of "
            f"different lengths ({', '.join(map(str, lengths))}). Explain one sample at a time."
        )
    return Explanation.join(parts)


def _alone(request: Request, given: tuple[list[Any], dict[str, Any]], targets: Sequence[Target]) -> list[Explanation]:
    """Explain one sample of a batch whose samples cannot be told apart inside the model."""
    try:
        return request.explain(*given, 1, targets)
    except WhenceError:
        raise
    except Exception as error:
        raise ModelError(
            "The samples of the batch cannot be told apart inside the model, and it does not run on one of them alone "
            f"({type(error).__name__}: {error}). Explain the model that it was made from (before torch.export, for "
            "instance), or export it with a dynamic batch."
        ) from error


@dataclass(frozen=True)
class Request:
    """What is asked of a model, whatever the inputs; the attributes are the arguments of :func:`explain`."""

    model: nn.Module
    method: str
    options: dict[str, Any]
    checkpoints: int
    inside: bool

    def explain(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation]:
        """Return an explanation for each target, with one forward pass for all."""
        method = create(self.method, self.options)
        with forwarded(self.model, args, kwargs, batch, method, targets, self.checkpoints, self.inside) as runs:
            found = [self._read(run, method, lambda: first_bad_value(self.model, args, kwargs)) for run in runs]
        hidden = runs[0].trace.coverage.hidden
        if hidden:
            warnings.warn(
                f"Part of the model runs in code that is not seen ({', '.join(sorted(set(hidden)))}: TorchScript, "
                "torch.vmap, an extension). It was differentiated plainly, and attentions and residual connections in "
                f"it are missed by '{method.name}'. Explain the model in eager mode, without torch.jit.",
                WhenceWarning,
                stacklevel=3,
            )
        opaque = runs[0].trace.coverage.opaque
        if opaque and runs[0].rulebook.rules:
            warnings.warn(
                f"The model computes '{opaque[0]}' in a kernel of its own, of which nothing can be seen and which may "
                f"be its attention: it was differentiated plainly, not by the rules of '{method.name}'. Switch to "
                'attention in torch itself (HuggingFace: attn_implementation="sdpa" when the model is loaded).',
                WhenceWarning,
                stacklevel=3,
            )
        return found

    def _read(self, run: Run, method: Method, diagnose: Callable[[], str]) -> Explanation:
        """Return what a method reads of a run, with a ledger of its own: the forward pass may be read again."""
        run = method.start(run)
        gradients_alone = run.rulebook.phase is None and not run.rulebook.maps
        watched = BlockRelevance(run) if self.inside and gradients_alone else None
        reading = method.read(run)
        if watched is not None and reading.pairs is None and any(isinstance(w, HeadRelevance) for w in run.watched):
            reading = replace(reading, branches=watched.branches(), pairs=watched.pairs())
        if self.inside and reading.pairs is None:
            raise MethodError(
                f"'{method.name}' does not say what each block did: explain without `inside`, or by a method with one "
                "backward of gradients (conservative-lrp, attn-lrp, gradient-x-input) or of maps (generic-attention)."
            )
        scores = zeroed(reading.scores.detach(), run.absent(reading.scores, run.tokens))
        others = [(dim, zeroed(other.detach(), run.absent(other, dim))) for dim, other in reading.others]
        if not torch.isfinite(scores).all():
            raise NumericalError(
                f"The scores of '{method.name}' are not finite although the model's output is: {diagnose()}"
            )
        explanation = assemble(run, replace(reading, scores=scores, others=others), method, self.options)
        if run.trace.ledger is not None:
            run.trace.ledger.clear()
        return explanation
