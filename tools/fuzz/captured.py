"""Captured explanations: replayed on another input, each must be the explanation that ``whence.explain`` returns.

``python -m tools.fuzz --only captured --cases 1000``
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import whence
from tools.fuzz.case import Case
from tools.fuzz.properties import FailedError, Outcome, distance, explained, outcome_of, placed, readied, rounding
from tools.replays import computations

SAME, ROUNDED, ANEW = "replayed bit for bit", "replayed up to rounding", "computed anew: a guard did not hold"


def tried_captured(case: Case) -> Outcome:
    """Capture the explanation of one input, explain another of the same shapes, and compare with the usual way."""
    return outcome_of(_captured, replace(case, breaks=False))


def _captured(case: Case) -> str:
    model = readied(case.model(), case)
    first, other = case.inputs(), case.inputs(other=True)
    wanted = explained(case, model, inputs=other)
    compiled = whence.compile(model, case.method, **case.asked)
    _compare(case, compiled(first, placed(case)), explained(case, model, inputs=first), "captured")
    with computations() as calls:
        found = compiled(other, placed(case))
    how = _compare(case, found, wanted, "replayed")
    if not calls:
        return how
    if compiled.captures.refusals:
        return f"not captured: {compiled.captures.refusals[0]}"
    _compare(
        case, compiled(other, placed(case)), wanted, "replayed"
    )  # the other way through the model is captured, too
    return ANEW


def _compare(case: Case, found: whence.Explanation, wanted: whence.Explanation, word: str) -> str:
    """Say how an explanation compares with the usual one; raise if they differ."""
    if found == wanted:
        return SAME
    apart, allowed = distance(found, wanted), rounding(case, explained(case, case.model()))
    if not apart <= allowed:
        raise FailedError(word, f"scores differ by {apart:.1e} ({allowed:.0e} allowed)")
    pairs = list(zip(found.tensors(), wanted.tensors(), strict=False))
    if len(found.tensors()) != len(wanted.tensors()) or any(a.shape != b.shape for a, b in pairs):
        raise FailedError(word, "the results have other tensors")
    off = max(_apart(a, b) for a, b in pairs)
    if not off <= allowed:
        raise FailedError(word, f"ledger or other tensors differ by {off:.1e} ({allowed:.0e} allowed)")
    if not off:
        names = [name for name in vars(found) if not _equal(getattr(found, name), getattr(wanted, name))]
        raise FailedError(word, f"the numbers are the same, and other fields differ: {names}")
    return ROUNDED


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, of the largest value; NaN is equal to NaN."""
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    largest = float(b.double().abs().nan_to_num().max())
    return float((a.double() - b.double())[~same].abs().max()) / max(largest, 1e-9)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and not _apart(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return bool(a == b)
