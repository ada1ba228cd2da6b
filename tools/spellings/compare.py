"""Compare the explanation of a spelling with that of the usual spelling."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

import whence
from tools.spellings.case import Case
from tools.spellings.model import Net, inputs

#: of the largest score, logit and gradient; torch's own hardsigmoid has a constant of float32 in its backward pass
EQUAL, SAME = 1e-6, {"logits": 1e-8, "gradients": 1e-7}
TARGET = 1
#: seconds; an explanation of these models takes a hundredth of one
LONGEST = 20.0

#: the methods of ``make test``
CORE = (
    "conservative-lrp", "attn-lrp", "gradient-x-input", "libragrad", "res-lrp",
    "generic-attention", "rollout", "transformer-attribution", "attention",
)  # fmt: skip
#: methods that sample or rerun the model often; a composition tries one of them now and then
SAMPLED = (
    "attention-flow", "bi-attention", "dave", "integrated-gradients", "kernel-shap", "lime", "occlusion", "smooth-grad",
)  # fmt: skip
#: options in place of those that make a method quick, where these leave nothing to compare
OPTIONS: dict[str, dict[str, Any]] = {
    "occlusion": {"window": 1},
    "integrated-gradients": {"steps": 2},
    "kernel-shap": {"samples": 8},
    "lime": {"samples": 8},
}


def every_method() -> list[str]:
    """Return the names of all methods whose scores are a function of the model."""
    return [name for name in whence.list_methods() if name != "random"]


def options(method: str) -> dict[str, Any]:
    """Return the options with which a method is called."""
    return {**whence.list_methods()[method].quick, **OPTIONS.get(method, {})}


@dataclass(frozen=True)
class Answer:
    """What a method returned for a model.

    Attributes:
        scores: by name: ``scores``, and ``patches`` of an image.
        notes: operations that use their plain gradient, and warnings.
        refused: the sentence of a ``WhenceError``.
        crashed: type and first line of any other exception.
    """

    scores: dict[str, Tensor] = field(default_factory=dict)
    notes: frozenset[str] = frozenset()
    refused: str = ""
    crashed: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a spelling compares with the usual one.

    Attributes:
        kind: ``equal``, ``noted``, ``refused``, ``SILENT``, ``CRASH``, or ``inapplicable`` where the usual spelling is
            refused as well.
        said: the distance, the new notes or the sentence.
    """

    kind: str
    said: str = ""

    @property
    def failed(self) -> bool:
        """Whether this must not happen."""
        return self.kind in ("SILENT", "CRASH")


class SlowError(Exception):
    """An explanation that takes longer than the limit."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise after some seconds, where signals can be had: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise SlowError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(model: nn.Module, given: Tensor, method: str, explain: Callable[..., Any] = whence.explain) -> Answer:
    """Explain a model; return scores and notes, or what was raised."""
    try:
        with time_limit(LONGEST), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            e = explain(model, given, method=method, target=TARGET, **options(method))
        scores = {"scores": e.scores}
        if given.dim() == 4 and e.grid is not None:
            scores["patches"] = e.patches
        plain = [f"plain gradient: {name}" for name in (e.coverage.plain if e.coverage is not None else ())]
        said = [str(w.message) for w in seen if issubclass(w.category, whence.WhenceWarning)]
        return Answer({k: s.detach() for k, s in scores.items()}, frozenset(plain + said))
    except whence.EngineError as error:
        return Answer(crashed=str(error))
    except whence.WhenceError as error:
        return Answer(refused=f"{type(error).__name__}: {error}")
    except Exception as error:
        line = next(iter(str(error).splitlines()), "")
        return Answer(crashed=f"{type(error).__name__}: {line}")


def distance(values: Tensor, usual: Tensor, scale: Tensor | None = None) -> float:
    """Return the largest difference over the largest value of ``scale`` (``usual``); infinity where shapes differ."""
    if values.shape != usual.shape:
        return float("inf")
    largest = (usual if scale is None else scale).abs().max().clamp(min=1e-300)
    return float((values - usual).abs().max() / largest)


def outcome(usual: Answer, other: Answer) -> Outcome:
    """Compare an answer with that of the usual spelling."""
    if usual.crashed:
        return Outcome("CRASH", f"the usual spelling: {usual.crashed}")
    if other.crashed:
        return Outcome("CRASH", other.crashed)
    if usual.refused:
        return Outcome("inapplicable", usual.refused)
    if other.refused:
        return Outcome("refused", other.refused)
    scale = usual.scores["scores"]  # patches may be zero beside a class token
    apart = {k: distance(s, usual.scores[k], scale) for k, s in other.scores.items() if k in usual.scores}
    off = [f"{k} {d:.0e}" for k, d in apart.items() if not d < EQUAL]
    new = sorted(other.notes - usual.notes)
    if off:
        return Outcome("noted", f"{', '.join(off)}: {'; '.join(new)}") if new else Outcome("SILENT", ", ".join(off))
    missing = usual.scores.keys() - apart.keys()  # reading them is an error with a sentence
    return Outcome("refused", f"no {', '.join(missing)}") if missing else Outcome("equal")


@functools.lru_cache(maxsize=8)
def built(case: Case) -> Net:
    """Return the model of a case; the last few are kept."""
    return Net(case)


@functools.lru_cache(maxsize=4096)
def usual_answer(case: Case, method: str) -> Answer:
    """Return the answer of the usual spelling, which many cases share."""
    return answer(built(case), inputs(case), method)


class DifferentFunctionError(Exception):
    """A spelling that does not compute the usual function: a mistake in the tables."""


@functools.lru_cache(maxsize=256)
def function_of(case: Case) -> tuple[Tensor, Tensor]:
    """Return a model's logits, and the gradient of one of them with respect to the positions."""
    model = built(case)
    logits = model(inputs(case))
    (gradient,) = torch.autograd.grad(logits[:, TARGET].sum(), model.positions)
    return logits.detach(), gradient


def check_function(case: Case) -> None:
    """Raise if logits or gradients of a case are not those of its usual spelling."""
    for name, own, usual in zip(SAME, function_of(case), function_of(case.usual), strict=True):
        if not distance(own, usual) < SAME[name]:
            raise DifferentFunctionError(f"{case.name}: {name} differ by {distance(own, usual):.1e}")


def compared(case: Case, methods: list[str] | tuple[str, ...]) -> dict[str, Outcome]:
    """Compare a case with its usual spelling for each method."""
    check_function(case)
    given = inputs(case)
    return {
        m: outcome(usual_answer(case.usual, m), _beyond_unfused(case, m, answer(built(case), given, m)))
        for m in methods
    }


def _beyond_unfused(case: Case, method: str, own: Answer) -> Answer:
    """Return an answer without the notes that the usual spelling has if its attention is not fused."""
    if not own.notes:
        return own
    return replace(own, notes=own.notes - usual_answer(case.unfused, method).notes)
