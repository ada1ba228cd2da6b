"""One traced forward pass for all targets, and the same pass again with other values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import AGAIN, InputError, MethodError, ModelError, NumericalError
from ..propagation.ledger import Ledger
from ..propagation.rulebook import Rulebook
from ..targets.seed import LastLinear, Seed, find_logits, labels_of, seed
from ..targets.specs import Chosen, Target
from ..tracing.axes import size_of
from ..tracing.eval_mode import undisturbed
from ..tracing.gc_pause import uncollected
from ..tracing.op_call import as_it_is, tensors_in
from ..tracing.output_head import OutputHead
from ..tracing.tensor_info import info_of, node_of
from ..tracing.tracer import Trace
from .answer_positions import first_given, last_given
from .checkpointing import Checkpoints, held
from .model_inputs import padding_of, repeated
from .nonfinite import first_bad_value
from .quantised_layers import dequantised_layers
from .rerun import ReplacingTrace, Rerun
from .run import Run
from .token_streams import patch_places, split

#: where a value that is not finite can only come from if none is seen in the model
UNSEEN = "It is made by code that is not seen (a kernel of its own), or not in every run: try float32."
OF_THE_TARGET = "The function itself makes it (a logarithm, a quotient), or code of the model that is not seen."


class RulebookSource(Protocol):
    """What a forward pass needs of a method: its name for messages, and a new rulebook for each pass."""

    @property
    def name(self) -> str:
        """The method's name."""

    def rulebook(self) -> Rulebook:
        """Return which rule each kind of operation follows."""


@contextlib.contextmanager
def forwarded(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    method: RulebookSource,
    targets: Sequence[Target],
    checkpoints: int = 1,
    inside: bool = False,
) -> Iterator[list[Run]]:
    """Trace a forward pass, ready to be read for each target; the model is as it was when the block ends.

    Args:
        method: whose rulebook the operations follow.

    The other arguments are those of :func:`forwarded_once`.
    """
    with forwarded_once(model, args, kwargs, batch, [method], targets, checkpoints, inside) as (runs,):
        yield runs


@contextlib.contextmanager
def forwarded_once(
    model: nn.Module,
    args: list[Any],
    kwargs: dict[str, Any],
    batch: int,
    methods: Sequence[RulebookSource],
    targets: Sequence[Target],
    checkpoints: int = 1,
    inside: bool = False,
) -> Iterator[list[list[Run]]]:
    """Trace one forward pass for methods with equal rulebooks; they must be read in the order in which they are given.

    Args:
        model: the model, run in evaluation mode; it is as it was when the block ends.
        args, kwargs: its arguments.
        batch: the number of samples.
        methods: whose rulebook the operations follow; a list of runs for each.
        targets: what is explained; one run for each.
        checkpoints: how many chunks of the forward pass are recomputed in the backward pass; 1: none.
        inside: whether the relevance of each block's branches is asked for, too.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(dequantised_layers(model))
        names = stack.enter_context(undisturbed(model))
        forward = Forward(model, args, kwargs, batch, methods[0], padding_of(kwargs), names, checkpoints, inside)
        runs = forward.runs(targets, reused=len(methods) > 1)
        tokens = runs[0].tokens
        if any(s.name == "image" and s.grid is None for s in split(tokens, size_of(tokens), runs[0])):
            runs[0].group.locate(patch_places(runs[0]))
        others = methods[1:]
        yield [runs, *(_read_by(method, runs, reused=method is not others[-1]) for method in others)]


@dataclass(frozen=True)
class Forward:
    """A model with its inputs, to be traced under a method's rulebook.

    Attributes:
        mask: the padding mask that the user gave, true at padding, or ``None``.
        names: the name of each parameter, by ``id``.

    The other attributes are the arguments of :func:`forwarded`.
    """

    model: nn.Module
    args: list[Any]
    kwargs: dict[str, Any]
    batch: int
    method: RulebookSource
    mask: Tensor | None
    names: Mapping[int, str]
    checkpoints: int = 1
    inside: bool = False

    def runs(self, targets: Sequence[Target], reused: bool = False) -> list[Run]:
        """Return a run for each target, all of one forward pass.

        Args:
            targets: what is explained.
            reused: whether another method reads the same forward pass afterwards.
        """
        return self._runs(targets, None, frozenset(), reused)

    def retrace(self, run: Run, values: Mapping[int, Tensor]) -> Run:
        """Trace the forward pass of a run again, with other values in place of some tensors (by ``seq``)."""
        (other,) = self._runs([_fixed(run.seed, run.target)], values, run.trace.learned)
        if len(values) > 1 and node_of(other.seed.output).seq != node_of(run.seed.output).seq:  # experts: other calls
            raise ModelError(AGAIN)
        return other

    def rerun(self, run: Run, values: Mapping[int, Tensor], times: int = 1, *, gradients: bool = True) -> Rerun:
        """Run the model with other values; only the target and its gradients at these values can be asked of it.

        Args:
            run: the run whose target is computed again.
            values: by the ``seq`` of the tensors that they replace.
            times: how many copies of the batch there are; only of one value, and a target that is no function.
            gradients: whether gradients will be asked for; if not, no graph is kept where that is possible.
        """
        rulebook = run.rulebook
        if len(values) > 1 or rulebook.rules or rulebook.maps or rulebook.inside:  # a whole trace has to tell
            there = self.retrace(run, values)
            return Rerun(there.seed, [there.trace.placed[seq] for seq in values])
        args, kwargs = repeated((self.args, self.kwargs), self.batch, times)
        graph = gradients or run.seed.index is None  # a function of the outputs may compute gradients itself

        def replacing() -> tuple[Trace, Any]:
            trace = ReplacingTrace(self.batch * times, self.names, values, run.trace.learned, graph)
            return trace, self._through(trace, args, kwargs)

        trace, outputs = self._checkpoints().first(replacing) if graph and self.checkpoints > 1 else replacing()
        if trace.replaced:
            raise ModelError(AGAIN)
        with trace:
            start = seed(outputs, _fixed(run.seed, run.target, times), self.batch * times, labels_of(self.model), None)
        if start.logits.shape[1:] != run.seed.logits.shape[1:]:  # its classes are other samples of the batch
            raise ModelError(AGAIN)
        start = replace(start, last=_last_linear(trace, start))
        _check_finite(start, self._diagnose)
        if graph:
            _check_differentiable(start, trace, [*args, *kwargs.values()])
        return Rerun(start, [trace.placed[seq] for seq in values])

    def _runs(
        self,
        targets: Sequence[Target],
        replaced: Mapping[int, Tensor] | None,
        learned: frozenset[int],
        reused: bool = False,
    ) -> list[Run]:
        while True:
            rulebook = self._rulebook()
            trace, outputs = self._traced(rulebook, replaced, learned)
            if not trace.asking - learned:
                break
            learned = learned | trace.asking  # some tokens are the model's own: follow these, too
        with trace:
            if trace.replaced:
                raise ModelError(AGAIN)
            logits = find_logits(outputs)
            last = last_given(self.model, trace, self.mask, self.batch, logits)
            first = first_given(trace, logits)
            starts = [seed(outputs, target, self.batch, labels_of(self.model), last, first) for target in targets]
        if rulebook.phase is None:
            starts = [replace(start, last=_last_linear(trace, start)) for start in starts]
        for start in starts:
            _check_finite(start, self._diagnose)
            _check_differentiable(start, trace, [*self.args, *self.kwargs.values()])
        trace.coverage.settle(node_of(starts[0].output).reachable())
        if rulebook.phase is not None:
            rulebook.phase.read(node_of(starts[0].output).readers())
        return Run.each(self, trace, rulebook, list(zip(starts, targets, strict=True)), reused)

    def _rulebook(self) -> Rulebook:
        rulebook = replace(self.method.rulebook(), inside=self.inside)
        if rulebook.phase is not None:
            rulebook.phase.mask(self.mask is not None)
        self._refuse_script(rulebook)
        if self.checkpoints > 1 and (rulebook.phase is not None or rulebook.maps):
            raise MethodError(
                f"'{self.method.name}' goes back twice, or looks at all attention maps at once, so `checkpoints` "
                "cannot save it memory. Methods that can: conservative-lrp, attn-lrp, gradient-x-input, "
                "generic-attention, grad-cam."
            )
        return rulebook

    def _refuse_script(self, rulebook: Rulebook) -> None:
        """Refuse a model that is TorchScript as a whole, where more is read of it than its gradient at its inputs."""
        if not isinstance(self.model, torch.jit.ScriptModule):
            return
        inside = bool(rulebook.rules) or rulebook.maps or rulebook.phase is not None
        given = [t for t in (*self.args, *self.kwargs.values()) if isinstance(t, Tensor)]
        if inside or not any(t.is_floating_point() for t in given):
            what = "rules or attention maps" if inside else "embeddings of integers"
            raise ModelError(
                f"The model is TorchScript (torch.jit.trace or torch.jit.script), whose operations are not seen: "
                f"'{self.method.name}' needs {what} inside it. Explain the model that the script was made from. For "
                "floating-point inputs, methods that need gradients alone also work on a script: gradient-x-input, "
                "integrated-gradients, saliency and smooth-grad with at='pixel'."
            )

    def _traced(
        self, rulebook: Rulebook, replaced: Mapping[int, Tensor] | None, learned: frozenset[int]
    ) -> tuple[Trace, Any]:
        """Return the trace of a forward pass, and what the model returned."""

        def forward() -> tuple[Trace, Any]:
            trace = Trace(
                rulebook.rules,
                self.batch,
                rulebook.maps or rulebook.inside,
                rulebook.fan_out,
                self.names,
                replaced,
                learned,
                OutputHead() if rulebook.head else None,
                held if self.checkpoints > 1 else as_it_is,
                Ledger if rulebook.books and rulebook.phase is None and not rulebook.maps else None,
                rulebook.reads_heads,
            )
            return trace, self._through(trace, self.args, self.kwargs)

        return forward() if self.checkpoints == 1 else self._checkpoints().first(forward)

    def _through(self, trace: Trace, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what the model returns, its operations seen by a trace."""
        with uncollected(), trace:
            placed = [trace.input(str(i), a) if isinstance(a, Tensor) else a for i, a in enumerate(args)]
            named = {k: trace.input(k, v) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
            try:
                return self.model._call_impl(*placed, **named)  # as model(...), but not compiled
            except NotImplementedError as error:
                if not str(error).startswith("FlexAttention"):
                    raise
                raise ModelError(
                    f"The model computes attention by torch's FlexAttention: {error} Load the model with attention "
                    'that can be differentiated here (HuggingFace: attn_implementation="sdpa").'
                ) from error
            except AssertionError as error:
                if not str(error).startswith("Guard failed"):
                    raise
                raise ModelError(
                    f"The model was exported for other inputs than these ({error}). Explain inputs that keep this "
                    "condition, or export it with dynamic shapes."
                ) from error

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.checkpoints, self.model)

    def _diagnose(self, otherwise: str) -> str:
        return first_bad_value(self.model, self.args, self.kwargs, otherwise)


def _read_by(method: RulebookSource, runs: Sequence[Run], reused: bool) -> list[Run]:
    """Return runs of the same forward pass for another method, whose rulebook is equal."""
    first = runs[0]
    seeds = [(replace(run.seed), run.target) for run in runs]  # a method may set the weights of its seed
    own = Run.each(replace(first.forward, method=method), first.trace, first.rulebook, seeds, reused)
    own[0].group.locate(first.group.places)
    return own


def _check_finite(start: Seed, diagnose: Callable[[str], str]) -> None:
    """Refuse outputs with a NaN, or an infinity where it cannot be explained."""
    finite = bool(start.value.isfinite().all())
    if start.index is None and not finite:
        raise NumericalError(f"The value of the target function is not finite: {diagnose(OF_THE_TARGET)}")
    if bool((torch.isnan(start.logits) | (start.logits == torch.inf)).any()) or not finite:
        raise NumericalError(f"The model's output is not finite: {diagnose(UNSEEN)}")


def _check_differentiable(start: Seed, trace: Trace, given: Sequence[Any]) -> None:
    """Refuse outputs that do not depend on the input, and say what is known of the reason."""
    if start.output.requires_grad:
        return
    if not (start.output.is_floating_point() or start.output.is_complex()):
        raise InputError(
            f"The model's output is of type {str(start.output.dtype).removeprefix('torch.')}, which has no gradient. "
            "Explain the model before it rounds or chooses (the scores that argmax is taken of, for instance)."
        )
    entered = [f"'{source.name}'" if source.name else "a parameter" for source in trace.sources]
    if entered:
        raise InputError(
            f"No gradient leads from the model's output back to what it reads ({', '.join(dict.fromkeys(entered))}): "
            "the output does not depend on it, or the model leaves autograd on the way (detach, .data, .numpy(), "
            "argmax, integers). Explain the part of the model behind that place, or write it in differentiable "
            "operations."
        )
    nested = [t for a in given if not isinstance(a, Tensor) for t in tensors_in(a) if t.is_floating_point()]
    if nested:
        raise InputError(
            "The model's output does not depend on any input that can carry relevance: floating-point tensors inside "
            "lists and other containers are not followed. Give them as arguments of their own, by a small module."
        )
    raise InputError(
        "The model's output does not depend on any input that can carry relevance: its inputs are integers and no "
        "embedding of them was found. Pass floating-point inputs (inputs_embeds, pixel_values)."
    )


def _fixed(start: Seed, target: Target, times: int = 1) -> Target:
    """The target that was explained, whatever the model says next time; of a batch that is repeated so many times."""
    if start.index is None:
        return target
    index, other, place = (None if t is None else t.repeat(times) for t in (start.index, start.other, start.place))
    return Chosen(index, other, place=place)


def _last_linear(trace: Trace, start: Seed) -> LastLinear | None:
    """The linear layer that made the logits of every position, if nothing came after it."""
    if trace.last_linear is None or start.place is None or start.output.dim() != 3:
        return None
    made, of = trace.last_linear
    return LastLinear(*of) if info_of(start.output).node is made else None
