"""Explanations that are captured: computed once, then replayed on other inputs of the same shapes.

An explanation is a fixed sequence of tensor operations, as long as the model takes the same way through its code.
:class:`Captures` records that sequence for each *signature* (shapes and types of the inputs, kind of target) and runs
it again without autograd, tracing or analysis. The result is the same, bit for bit.

A replay is refused, and the explanation computed as usual, if anything differs that the sequence depends on: the model
(:class:`whence.capture.model_state.ModelState`), or a value that was read into Python
(:class:`whence.capture.tape.Guard`).
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._utils.offloading import device_of
from ..capture.function_key import function_key
from ..capture.model_state import ModelState
from ..capture.nested import leaves, mapped
from ..capture.program import Program
from ..capture.tape import CaptureError, Guard, Tape
from ..errors import WhenceWarning
from ..explanations.explanation import Explanation
from ..methods.registry import REGISTRY, create
from ..targets.seed import class_indices, labels_of
from ..targets.specs import At, Chosen, Contrast, LabelledTarget, Target
from .assemble import Unnamed
from .request import Request, original_of

#: how many different ways through a model are captured for one signature
WAYS = 4
#: how many signatures are kept for one model, method and options
MOST = 128
#: seconds that tracing takes for each operation of a model: what a replay saves
TRACING = 1e-4
#: what a capture takes: as long as tracing so many times, and as long as the model's own arithmetic so many times
CAPTURING = 4, 2
#: how much memory the constants of their captures may take, in bytes
BOUND = 2**30
UNKNOWN = "an input is not laid out in memory as usual, or what the target computes with may change without notice"


@dataclass(frozen=True)
class Capture:
    """One captured explanation.

    Attributes:
        program: computes the tensors of the explanations.
        state: what it assumes of the model.
        found: the explanations of the inputs that it was captured from, computed as usual.
        warnings: what was warned of.
    """

    program: Program
    state: ModelState
    found: list[Unnamed]
    warnings: list[str]

    def compare(self, inputs: list[Tensor], same: Callable[[Tensor, Tensor, float], bool]) -> None:
        """Replay the inputs that it was captured from, and refuse it if the result is not the one that was found."""
        replayed = self.program(inputs)
        expected = [t for one in self.found for t in _tensors(one)]
        sizes = [size for one in self.found for size in _sizes(one)]
        if (
            isinstance(replayed, Guard)
            or len(replayed) != len(expected)
            or not all(map(same, replayed, expected, sizes))
        ):
            raise CaptureError("a replay of the same input gave other numbers")

    def replay(self, inputs: list[Tensor]) -> list[Unnamed] | Guard:
        """Return the explanations of other inputs; if they take another way through the model, the guard that fails."""
        tensors = self.program(inputs)
        if isinstance(tensors, Guard):
            return tensors
        for message in self.warnings:
            warnings.warn(message, WhenceWarning, stacklevel=5)
        remaining = iter(tensors)
        return [_with_tensors(one, remaining) for one in self.found]


@dataclass
class _Signature:
    """What is known of the explanations of one signature.

    Attributes:
        seen: how many were computed as usual.
        seconds: how long the fastest of them took.
        made: how many were captured.
        classes: the number of classes.
        length: the number of positions that the model answers at, if it answers at several.
        first: how many of these, at the start, are of tokens of the model's own (a tuned prompt).
        captures: the ways through the model that were captured, the last used first.
        shortcuts: whether the next one may leave out rows of zeros; not if other inputs have other rows.
        refusal: why there will be no more of them; empty if there may be.
    """

    seen: int = 0
    seconds: float = math.inf
    made: int = 0
    classes: int = 0
    length: int | None = None
    first: int = 0
    captures: list[Capture] = field(default_factory=list)
    shortcuts: bool = True
    refusal: str = ""

    def note(self, found: Unnamed, seconds: float) -> None:
        """Note an explanation that was computed as usual, in so many seconds."""
        self.seen += 1
        self.seconds = min(self.seconds, seconds)
        self.classes = found.explanation.logits.shape[-1]
        self.length = found.length
        self.first = found.first

    def pays(self, operations: int) -> bool:
        """Return whether a capture would have paid by now: the time spent on tracing exceeds what a capture takes.

        Args:
            operations: how many operations the model runs.
        """
        tracing = max(operations, 1) * TRACING
        times, arithmetic = CAPTURING
        return self.seen > times + arithmetic * max(0.0, self.seconds / tracing - 1)

    def refuse(self, why: str) -> None:
        """Capture no more explanations of this signature, if there is a reason."""
        self.refusal = why

    def may_capture(self) -> bool:
        """Return whether another way through the model may be captured, and count it."""
        if len(self.captures) == WAYS:
            self.refuse(f"{WAYS} captures were made, and inputs go further ways through the model")
        elif self.made == 2 * WAYS:
            self.refuse(f"the model has changed after each of {self.made} captures")
        self.made += 1
        return not self.refusal

    def replay(self, inputs: list[Tensor]) -> list[Unnamed] | None:
        """Return the explanations by the first capture that holds for some inputs."""
        for capture in list(self.captures):
            if not capture.state.holds():
                self.captures = [other for other in self.captures if other is not capture]
                continue
            try:
                found = capture.replay(inputs)
            except Exception:  # computed as usual, the error says what is wrong
                return None
            if not isinstance(found, Guard):
                return found
            self.shortcuts &= not found.shortcut
        return None


class Captures:
    """Computes the explanations of a request, and captures them for each signature of inputs.

    Args:
        request: the model, method and options.
        eager: whether the first explanation of a signature is captured; if not, when it pays.
        exact: whether replays must be the same bit for bit. If not, sums may be rounded in another order: by a capture
            that leaves out no rows of zeros and so serves inputs with zeros in different rows, or where torch lays out
            a tensor in another way while it is recorded.
        backend: a backend of ``torch.compile`` for replays, which are then the same up to rounding; see
            :class:`whence.capture.program.Program`.
    """

    def __init__(self, request: Request, eager: bool = False, exact: bool = True, backend: str | None = None) -> None:
        self.request = request
        self.eager = eager
        self.exact = exact
        self.backend = backend
        self._signatures: OrderedDict[Hashable, _Signature] = OrderedDict()
        self._met_unknown = False
        self._lock = threading.Lock()

    @property
    def refusals(self) -> list[str]:
        """Return why some explanations are not captured."""
        found = [known.refusal for known in self._signatures.values() if known.refusal]
        return [*found, UNKNOWN] if self._met_unknown else found

    def explain(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation]:
        """Return an explanation for each target, as :meth:`Request.explain` does."""
        replayed = self.replay(args, kwargs, batch, targets)
        if replayed is not None:
            return replayed
        start = time.perf_counter()
        found = self.request.compute(args, kwargs, batch, targets)
        self.note(args, kwargs, batch, targets, found, time.perf_counter() - start)
        return [one.named() for one in found]

    def replay(
        self, args: list[Any], kwargs: dict[str, Any], batch: int, targets: Sequence[Target]
    ) -> list[Explanation] | None:
        """Return an explanation for each target by a capture; ``None`` if there is none that holds."""
        known = self._known(_signature(args, kwargs, targets))
        if known is None or not known.captures:
            return None
        given = _Arguments(args, kwargs, batch, _chosen(known, targets, batch, self.request))
        replayed = known.replay(given.tensors)
        return None if replayed is None else [one.named() for one in replayed]

    def note(
        self,
        args: list[Any],
        kwargs: dict[str, Any],
        batch: int,
        targets: Sequence[Target],
        found: list[Unnamed],
        seconds: float,
    ) -> None:
        """Note explanations that were computed as usual, in so many seconds, and capture them when it pays."""
        known = self._known(_signature(args, kwargs, targets))
        if known is None:
            self._met_unknown = True
            return
        known.note(found[0], seconds)
        operations = sum(found[0].explanation.coverage.seen.values())
        if (self.eager or known.pays(operations)) and not known.refusal:
            with self._lock:
                if known.may_capture():
                    given = _Arguments(args, kwargs, batch, _chosen(known, targets, batch, self.request))
                    known.refuse(self._capture(known, given, found))

    def _known(self, key: Hashable) -> _Signature | None:
        """Return what is known of a signature; ``None`` where there is none."""
        if key is None:
            return None
        with self._lock:
            known = self._signatures.setdefault(key, _Signature())
            self._signatures.move_to_end(key)
            while len(self._signatures) > MOST:
                self._signatures.popitem(last=False)
            return known

    def _capture(self, known: _Signature, given: _Arguments, found: list[Unnamed]) -> str:
        """Record the computation of explanations, and keep it if it returns what was found; if not, say why."""
        try:
            capture = self._recorded(given, found, known.shortcuts or self.exact)
        except CaptureError as error:
            return str(error)
        except Exception as error:  # the explanation is there: what fails under a tape must not take it away
            return f"recording failed with {type(error).__name__}: {error}"
        if capture.program.size > BOUND:
            return f"constants take {capture.program.size / 2**30:.1f} GiB, more than the bound of 1 GiB"
        known.captures.insert(0, capture)
        while self.size > BOUND:  # the one used longest ago goes first
            next(other for other in self._signatures.values() if other.captures).captures.pop()
        return ""

    def _recorded(self, given: _Arguments, found: list[Unnamed], shortcuts: bool) -> Capture:
        """Record the computation of explanations and compare a replay; without the backend, if that cannot be used."""
        capture = _record(self.request, given, found, shortcuts, self.backend)
        if self.backend is None:
            capture.compare(given.tensors, _equal if self.exact else _equal_up_to_rounding)
            return capture
        try:
            capture.compare(given.tensors, _equal_up_to_rounding)
        except Exception as error:
            warnings.warn(
                f"The backend '{self.backend}' cannot be used for these explanations, so replays run without it: "
                f"{str(error).splitlines()[0]}.",
                WhenceWarning,
                stacklevel=6,
            )
            self.backend = None
            return self._recorded(given, found, shortcuts)
        return capture

    @property
    def size(self) -> int:
        """The memory of the constants of all captures, in bytes."""
        return sum(capture.program.size for known in self._signatures.values() for capture in known.captures)


class CaptureCache:
    """The captures of one model, by method and options.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._captures: dict[Hashable, Captures] = {}

    def __reduce__(self) -> tuple[type[CaptureCache], tuple[nn.Module]]:
        """Return how it is copied or pickled: with the model, and without captures."""
        return CaptureCache, (self._model,)

    def of(self, method: str, options: Mapping[str, Any]) -> Captures | None:
        """Return the captures of a method; ``None`` where its options may change without notice."""
        plain = (int, float, str, bool, type(None))
        if not all(isinstance(value, plain) for value in options.values()) or options.get("checkpoints", 1) != 1:
            return None
        key = (REGISTRY.get(method), *sorted(options.items(), key=str))
        if key not in self._captures:
            own = dict(options)
            create(method, {k: v for k, v in own.items() if k not in ("inside", "checkpoints")})
            inside = own.pop("inside", False)
            own.pop("checkpoints", None)
            self._captures[key] = Captures(Request(original_of(self._model), method, own, inside=inside))
        return self._captures[key]


@dataclass(frozen=True)
class _Arguments:
    """The arguments of :meth:`Captures.explain`, with targets in tensors."""

    args: list[Any]
    kwargs: dict[str, Any]
    batch: int
    targets: list[Any]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        chosen = [(t.index, t.other, t.place) for t in self.targets if isinstance(t, Chosen)]
        given = [t for t in leaves(self.args, self.kwargs, chosen) if isinstance(t, Tensor)]
        return [t.clone() if t.storage_offset() else t for t in given]  # as it lay in memory when it was captured

    def copied(self) -> _Arguments:
        """Return the same with copies of all tensors."""

        def copy(value: Any) -> Any:
            return mapped(value, Tensor, lambda t: t.detach().clone())

        targets = [
            replace(t, index=copy(t.index), other=copy(t.other), place=copy(t.place)) if isinstance(t, Chosen) else t
            for t in self.targets
        ]
        return replace(self, args=copy(self.args), kwargs=copy(self.kwargs), targets=targets)


def _record(request: Request, given: _Arguments, found: list[Unnamed], shortcuts: bool, backend: str | None) -> Capture:
    """Compute explanations under a tape.

    Args:
        request: the model, method and options.
        given: the arguments.
        found: the same explanations, computed as usual.
        shortcuts: whether rows of zeros are left out of backward passes. Where other inputs have other rows, not.
        backend: see :class:`Captures`.
    """
    given = given.copied()
    tape = Tape(given.tensors, shortcuts)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with tape:
            recorded = request.compute(given.args, given.kwargs, given.batch, given.targets)
    messages = [str(w.message) for w in seen if issubclass(w.category, WhenceWarning)]
    program = Program(tape, [t for one in recorded for t in _tensors(one)], backend)
    return Capture(program, ModelState(request.model, tape.kept.values(), tape.folded.values()), found, messages)


def _signature(args: list[Any], kwargs: dict[str, Any], targets: Sequence[Target]) -> Hashable:
    """Return what two explanations have in common that may be computed by one capture; ``None``: nothing is known."""
    given = _described([args, kwargs])
    kinds = [_kind(target) for target in targets]
    return None if given is None or None in kinds else (given, *kinds)


def _described(value: Any) -> Hashable:
    """Return shapes and types of tensors, and other arguments as they are; ``None`` for one that may change."""
    if isinstance(value, Tensor):
        plain = value.layout is torch.strided and value.is_contiguous()
        return (value.shape, value.dtype, value.device) if plain else None
    if isinstance(value, int | float | str | bool | type(None) | torch.dtype):
        return type(value), value
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, tuple | list):
        return None
    parts = tuple(_described(item) for item in value)
    return None if None in parts else parts


def _kind(target: Any) -> Hashable:
    """Return the kind of a target; ``None`` for a function of which not all is known that it computes with."""
    if isinstance(target, LabelledTarget):
        return function_key(target.function)
    if callable(target):
        return function_key(target)
    if isinstance(target, At):
        inner = _kind(target.target)
        return None if inner is None else (inner, "at a position")
    if isinstance(target, Contrast):
        pair = _kind(target.target), _kind(target.other)
        return None if None in pair else pair
    if isinstance(target, list):
        return None if None in target else "classes"
    if target is None:
        return "prediction"
    return "classes" if isinstance(target, int | str) else None


def _chosen(known: _Signature, targets: Sequence[Any], batch: int, request: Request) -> list[Any]:
    """Return targets in tensors, functions as they are."""
    labels = labels_of(request.model)
    names = labels if len(labels) == known.classes else {}
    device = device_of(request.model) or torch.device("cpu")

    def classes(target: Any) -> Tensor | None:
        given = class_indices(target, batch, known.classes, names)
        return None if given is None else torch.tensor(given, device=device)

    out: list[Any] = []
    for target in targets:
        if callable(target):
            out.append(target)
            continue
        place = None
        if isinstance(target, At):
            place = target.positions(batch, (known.length or 0) - known.first).to(device) + known.first
            target = target.target
        if isinstance(target, Contrast):
            other = classes(target.other)
            out.append(Chosen(classes(target.target), other, other is None, place))
        else:
            out.append(Chosen(classes(target), place=place))
    return out


def _tensors(one: Unnamed) -> list[Tensor]:
    """Return the tensors of an explanation, in a fixed order."""
    return [*one.explanation.tensors(), *([] if one.other is None else [one.other])]


def _with_tensors(one: Unnamed, tensors: Any) -> Unnamed:
    """Return an explanation with other tensors, taken in the order of :func:`_tensors`."""
    explanation = one.explanation.with_tensors(tensors)
    return replace(one, explanation=explanation, other=None if one.other is None else next(tensors))


def _sizes(one: Unnamed) -> list[float]:
    """Return the size that rounding of each tensor is relative to, in the order of :func:`_tensors`.

    It is the largest entry; for the ledger's losses and gains, which may be nothing but rounding, the relevance in all.
    """
    sizes = [_size(t) for t in _tensors(one)]
    ledger = one.explanation.ledger
    if ledger is not None:
        of_amounts = next(i for i, t in enumerate(_tensors(one)) if t is ledger.amounts)
        sizes[of_amounts] = max(sizes[of_amounts], _size(ledger.total))
    return sizes


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().nan_to_num().max()) if tensor.numel() and tensor.is_floating_point() else 0.0


def _equal(a: Tensor, b: Tensor, size: float) -> bool:
    """Return whether a replay gave the same: bit for bit on a CPU, up to rounding elsewhere."""
    if a.device.type != "cpu":
        return _equal_up_to_rounding(a, b, size)
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _equal_up_to_rounding(a: Tensor, b: Tensor, size: float) -> bool:
    """Return whether a replay gave the same numbers, with rounding in another order, relative to some size."""
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
        return a.shape == b.shape and torch.equal(a, b)
    tolerance = min(1e4 * torch.finfo(a.dtype).eps, 0.05)  # of half precision, a few units in the last place
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True)
