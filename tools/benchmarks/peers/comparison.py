"""One method of a peer beside the method of Whence that computes the same, or the nearest to it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import whence
from tools.benchmarks import stamp
from tools.benchmarks.costs import LONG, runs
from tools.benchmarks.measure import observed, peak_memory, ratio
from tools.benchmarks.peers.cases import CASES, Case
from tools.replays import computations
from whence.evaluation.correlation import rank_correlation

Scores = Callable[[], Tensor]  # an explanation, from the input to its scores
#: seconds that the repeats of one comparison may take, if there are more than 3; and from which on a call is slow
SECONDS, SLOW = 10, 4


def nothing(case: Case) -> dict[str, Any]:
    """No options."""
    return {}


@dataclass(frozen=True)
class Comparison:
    """What a peer computes, and what Whence does.

    Attributes:
        peer: the peer's name in the package index.
        method: its own name of the method.
        case: a name from ``cases.CASES``.
        theirs: sets the peer up for a case (not timed; it imports the peer), and gives what explains (timed).
        whence: the method of Whence.
        options: its options for a case; with ``target`` in place of the case's own.
        same: whether the two are the same method, so that their numbers must agree.
        note: how they were made to agree, or why they cannot.
        finish: brings the scores of Whence to the peer's scale, for the comparison only.
    """

    peer: str
    method: str
    case: str
    theirs: Callable[[Case], Scores]
    whence: str
    options: Callable[[Case], dict[str, Any]] = nothing
    same: bool = True
    note: str = ""
    finish: Callable[[Tensor], Tensor] = field(default=lambda scores: scores)

    def about(self) -> dict[str, Any]:
        """What is known before anything is run."""
        names = {"peer": self.peer, "version": version(self.peer), "method": self.method, "case": self.case}
        names |= stamp.current()
        return names | {"whence": self.whence, "same": self.same, "note": self.note, **environment()}

    def row(self, repeats: int) -> dict[str, Any]:
        """The comparison as a line of the table; if it cannot be run, with the first line of the error."""
        about = self.about()
        try:
            case = CASES[self.case]()
            options = self.options(case)
            about["whence"] = label(self.whence, options)
            theirs, ours, warm = self.theirs(case), self.ours(case, options), self.warm(case, options)
            return about | measured(case, theirs, ours, warm, self.finish, repeats)
        except Exception as error:
            return about | {"error": first_line(error)}

    def ours(self, case: Case, options: dict[str, Any]) -> Scores:
        """Whence on the same case."""
        options = {"target": case.target, **options}
        return lambda: whence.explain(case.model, case.inputs, self.whence, **options).scores[0]

    def warm(self, case: Case, options: dict[str, Any]) -> Scores | None:
        """Whence on the same case, replayed; ``None`` if it is not captured."""
        if runs(self.whence) >= LONG:
            return None
        options = {"target": case.target, **options}
        target = options.pop("target")
        compiled = whence.compile(case.model, self.whence, **options)
        compiled(case.inputs, target)
        with computations() as computed:
            compiled(case.inputs, target)
        return None if computed else lambda: compiled(case.inputs, target).scores[0]


def measured(
    case: Case, theirs: Scores, ours: Scores, warm: Scores | None, finish: Callable[[Tensor], Tensor], repeats: int
) -> dict[str, Any]:
    """Return agreement, times as multiples of the case's plain forward and backward, and growth of memory in MiB."""
    case.plain()
    runs: dict[str, Scores] = {"theirs": theirs, "ours": ours} | ({"warm": warm} if warm else {})
    memory, scores, seconds = {"plain": peak_memory(case.plain)}, {}, {}
    for name, run in runs.items():
        memory[name], scores[name], seconds[name] = _observed(run)
    found = [agreement(scores["theirs"], finish(scores[name])) for name in runs if name != "theirs"]
    worst = max(found, key=lambda one: one["difference"])
    rounds = min(repeats, max(1 if max(seconds.values()) > SLOW else 3, int(SECONDS / sum(seconds.values()))))
    times = {name: ratio(run, case.plain, rounds) for name, run in runs.items()}
    return worst | {
        "time": {name: r.value for name, r in times.items()},
        "extremes": {name: [r.low, r.high] for name, r in times.items()},
        "memory": memory,
        "repeats": rounds,
    }


def _observed(run: Scores) -> tuple[float, Tensor, float]:
    """Return growth of memory, scores and seconds of a call; of quick ones those of the second call."""
    found: list[Tensor] = []

    def once() -> None:
        found[:] = [run()]

    memory, seconds = observed(once)
    if seconds < SLOW:
        memory, seconds = observed(once)
    return memory, found[0], seconds


def agreement(theirs: Tensor, ours: Tensor) -> dict[str, float]:
    """The largest difference as a share of our largest score, and Spearman's rank correlation."""
    a, b = (x.detach().double().flatten() for x in (theirs, ours))
    if a.shape != b.shape:
        raise ValueError(f"The peer has {len(a)} scores, Whence {len(b)}.")
    if not a.isfinite().all():
        raise ValueError("The peer's scores are not finite.")
    difference = float((a - b).abs().max() / b.abs().max())
    return {"difference": difference, "rank_correlation": rank_correlation(a.numpy(), b.numpy())}


def label(method: str, options: dict[str, Any]) -> str:
    """``method(option=value, …)``; functions by their name, tensors by their shape."""

    def short(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"tensor{list(value.shape)}"
        return getattr(value, "__name__", None) or repr(value).replace("'", '"')

    return method + (f"({', '.join(f'{k}={short(v)}' for k, v in options.items())})" if options else "")


def version(package: str) -> str:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, Any]:
    """What the numbers of a row depend on."""
    return {"torch": torch.__version__, "transformers": version("transformers"), "threads": torch.get_num_threads()}


def first_line(error: BaseException) -> str:
    """``Type: the first line of its message``."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
