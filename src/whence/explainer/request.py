"""What is asked of a model, and its explanations: one forward pass, read for each target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..errors import MethodError, NumericalError, WhenceWarning
from ..explanations.explanation import Explanation
from ..methods.base import Method
from ..methods.registry import create
from ..readout.block_relevance import BlockRelevance
from ..readout.rollup import has_several_streams
from ..runs.boundaries import HeadRelevance
from ..runs.forward import forwarded, forwarded_once
from ..runs.nonfinite import first_bad_value
from ..runs.padding import zeroed
from ..runs.quantised_layers import DEQUANTISED
from ..runs.run import Run
from ..targets.specs import Target
from .assemble import Unnamed, assemble

#: where scores can only have become infinite if nothing in the forward pass is
BACKWARD = "It appears in the backward pass: try float64, or another method."


@dataclass(frozen=True)
class Request:
    """What is asked of a model, whatever the inputs; the attributes are the arguments of :func:`explain`."""

    model: nn.Module
    method: str
    options: dict[str, Any]
    checkpoints: int = 1
    inside: bool = False

    @property
    def request(self) -> Request:
        """The request itself."""
        return self

    def explain(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation]:
        """Return an explanation for each target, with one forward pass for all."""
        return [found.named() for found in self.compute(args, kwargs, batch, targets)]

    def compute(self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]) -> list[Unnamed]:
        """Return the same, before names are read."""
        method = create(self.method, self.options)
        with forwarded(self.model, args, kwargs, batch, method, targets, self.checkpoints, self.inside) as runs:
            return self.read(runs, method)

    def replay(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation] | None:
        """Return ``None``: there is no capture."""
        return None

    def note(
        self,
        args: list[Any],
        kwargs: dict[str, Any],
        batch: int,
        targets: Sequence[Target],
        found: list[Unnamed],
        seconds: float,
    ) -> None:
        """Do nothing: nothing is captured."""

    def read(self, runs: Sequence[Run], method: Method) -> list[Unnamed]:
        """Return what a method reads of the runs of a forward pass, one for each target."""
        forward = runs[0].forward
        found = [
            self._read(run, method, lambda: first_bad_value(self.model, forward.args, forward.kwargs, BACKWARD))
            for run in runs
        ]
        hidden = runs[0].trace.coverage.hidden
        if hidden:
            warnings.warn(
                f"Part of the model runs in code that is not seen ({', '.join(sorted(set(hidden)))}: TorchScript, "
                "torch.vmap, an extension). It was differentiated plainly, and attentions and residual connections in "
                f"it are missed by '{method.name}'. Explain the model in eager mode, without torch.jit.",
                WhenceWarning,
                stacklevel=3,
            )
        if runs[0].trace.coverage.rounds_input:
            warnings.warn(DEQUANTISED, WhenceWarning, stacklevel=3)
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

    def _read(self, run: Run, method: Method, diagnose: Callable[[], str]) -> Unnamed:
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
        several = bool(run.trace.attentions) and has_several_streams(run)
        if several and not any(bool(found.any()) for found in (scores, *(other for _, other in others))):
            warnings.warn(
                f"All scores of '{method.name}' are 0: the attention maps that it follows do not lead from the target "
                "to the input. Compare with an input-level method (gradient-x-input).",
                WhenceWarning,
                stacklevel=4,
            )
        explanation = assemble(run, replace(reading, scores=scores, others=others), method, self.options)
        if run.trace.ledger is not None:
            run.trace.ledger.clear()
        return explanation


def sharing_forward(requests: Sequence[Request]) -> list[list[int]]:
    """Group requests, by their index, that have the same traced forward pass: their rulebooks are equal."""
    keys = [
        (request.model, request.checkpoints, request.inside, create(request.method, request.options).rulebook())
        for request in requests
    ]
    groups: list[list[int]] = []
    for i, key in enumerate(keys):
        group = next((group for group in groups if keys[group[0]] == key), None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    return groups


def compute_together(
    requests: Sequence[Request], args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
) -> list[list[Unnamed] | None]:
    """Return an explanation for each request and target, with one forward pass for all.

    The requests are one group of :func:`sharing_forward`. ``None`` stands for a request whose method raised an error:
    computed by itself, it says why.
    """
    methods = [create(request.method, request.options) for request in requests]
    first = requests[0]
    out: list[list[Unnamed] | None] = []
    with forwarded_once(
        first.model, args, kwargs, batch, methods, targets, first.checkpoints, first.inside
    ) as runs_of_each:
        for request, method, runs in zip(requests, methods, runs_of_each, strict=True):
            try:
                out.append(request.read(runs, method))
            except Exception:
                runs[0].forget()
                out.append(None)
    return out


def original_of(model: nn.Module) -> nn.Module:
    """Return the module that a user wrote: ``torch.compile`` wraps it."""
    original: nn.Module = getattr(model, "_orig_mod", model)
    return original
