"""Compare explanations of a model as it is loaded with those of the plain model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import whence
from tools.ecosystem.case import Case, Pair

#: difference relative to the largest score up to which scores are equal: rounding in another order, in float32
ROUNDING = 1e-4
EQUAL, CLOSE, REFUSED, NEITHER, DIFFERENT, ABSENT = "equal", "close", "refused", "-", "DIFFERENT", "absent"
GOOD = (EQUAL, CLOSE)


@dataclass(frozen=True)
class Outcome:
    """How a method fares on one case.

    Attributes:
        kind: `EQUAL`; `CLOSE` (in rank); `REFUSED` (as it is loaded, by a sentence); `NEITHER` (the method does not
            apply to the plain model either); `DIFFERENT` (a failure, as any other exception is); `ABSENT` (a package).
        said: the sentence, the rank correlation or what is different.
    """

    kind: str
    said: str = ""


def outcomes(case: Case, methods: list[str]) -> dict[str, Outcome]:
    """Return the outcome of each method on a case."""
    warnings.simplefilter("ignore")
    try:
        pair = case.build()
    except whence.WhenceError as error:
        return dict.fromkeys(methods, Outcome(REFUSED, sentence(error)))
    except ImportError as error:
        return dict.fromkeys(methods, Outcome(ABSENT, str(error)))
    return {method: outcome(pair, method, case.correlation) for method in methods}


def outcome(pair: Pair, method: str, correlation: float | None) -> Outcome:
    """Return how the explanations of a pair by a method compare."""
    try:
        wanted = scores(pair.plain(method))
    except whence.WhenceError:
        wanted = None
    try:
        found = scores(pair.loaded(method))
    except whence.WhenceError as error:
        refused = NEITHER if wanted is None else REFUSED
        return Outcome(DIFFERENT if isinstance(error, whence.EngineError) else refused, sentence(error))
    except Exception as error:  # a crash is what this looks for
        return Outcome(DIFFERENT, f"{type(error).__name__}: {error}".splitlines()[0])
    if wanted is None:
        return Outcome(DIFFERENT, "the plain model is refused")
    return compared(found, wanted, correlation)


def compared(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], correlation: float | None) -> Outcome:
    """Return how scores compare with those of the plain model.

    Args:
        found: of the model as it is loaded.
        wanted: of the plain model.
        correlation: the least rank correlation that is close; `None`: only equal scores are good.
    """
    if found.shape != wanted.shape:
        return Outcome(DIFFERENT, f"{found.shape} scores, not {wanted.shape}")
    size = np.abs(wanted).max(initial=0.0)
    apart = np.abs(found - wanted).max(initial=0.0) / (size or 1.0)
    if apart <= ROUNDING:
        return Outcome(EQUAL)
    if correlation is None or found.size < 3:
        return Outcome(DIFFERENT, f"by {apart:.0e} of the largest score")
    rank = float(spearmanr(found, wanted).statistic)
    return Outcome(CLOSE if rank >= correlation else DIFFERENT, f"{rank:.3f}")


def scores(e: Any) -> np.ndarray[Any, Any]:
    """Return all scores of an explanation as one row."""
    flat: np.ndarray[Any, Any] = torch.as_tensor(e.scores).detach().double().flatten().numpy()
    return flat


def sentence(error: Exception) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split())
