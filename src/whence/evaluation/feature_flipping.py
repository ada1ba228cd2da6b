"""Removing features one after the other, in an order that the scores give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .case import Case, Flags, Floats
from .measure import Measure


def removed_first(case: Case, keys: Floats, counts: Sequence[int]) -> Flags:
    """``[steps, features]``: at each step, that many features of the largest keys are removed."""
    order = case.order(keys)
    out = np.zeros((len(counts), len(keys)), bool)
    for row, count in zip(out, counts, strict=True):
        row[order[:count]] = True
    return out


def kept_first(case: Case, keys: Floats, counts: Sequence[int]) -> Flags:
    """``[steps, features]``: at each step, that many features of the largest keys are there, and the rest removed."""
    return ~removed_first(case, keys, counts)


def at_least(fractions: Floats, features: int) -> list[int]:
    """How many features a fraction is, rounded up."""
    return [int(np.ceil(fraction * features)) for fraction in fractions]


def area(axis: Floats, curves: Floats) -> Floats:
    """``[...]``: the area under curves ``[..., d]``, by trapezoids."""
    return np.asarray(np.trapezoid(curves, axis, axis=-1))


def spread(steps: int) -> Floats:
    """``[steps + 1]``: fractions from 0 to 1."""
    return np.linspace(0, 1, steps + 1)


@dataclass(frozen=True)
class Curve(Measure):
    """Base of measures that follow the class's probability from no feature to all, or from all to none.

    Attributes:
        steps: how many times something is removed, or put in.
    """

    steps: int = 20

    def counts(self, case: Case) -> list[int]:
        """How many features, at each step."""
        return at_least(spread(self.steps), len(case.scores))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The class's probability, at each step."""
        return case.probabilities(logits)[:, case.target]

    def finish(self, mean: Floats) -> Floats:
        """The area under the curve."""
        return area(spread(self.steps), mean)

    def axis(self) -> Floats:
        """The share of features, at each step."""
        return spread(self.steps)
