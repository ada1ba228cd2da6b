"""Feature flipping: remove or insert features in the order of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .case import Case, Flags, Floats
from .measure import Measure


def removed_first(case: Case, keys: Floats, counts: Sequence[int]) -> Flags:
    """Return ``[steps, features]``: at each step, the given count of features with the largest keys is removed."""
    order = case.order(keys)
    out = np.zeros((len(counts), len(keys)), bool)
    for row, count in zip(out, counts, strict=True):
        row[order[:count]] = True
    return out


def kept_first(case: Case, keys: Floats, counts: Sequence[int]) -> Flags:
    """Return ``[steps, features]``: at each step, only the given count of features with the largest keys is kept."""
    return ~removed_first(case, keys, counts)


def at_least(fractions: Floats, features: int) -> list[int]:
    """Return the number of features of each fraction, rounded up."""
    return [int(np.ceil(fraction * features)) for fraction in fractions]


def area(axis: Floats, curves: Floats) -> Floats:
    """Return ``[...]``: the area under curves ``[..., d]``, by the trapezoidal rule."""
    return np.asarray(np.trapezoid(curves, axis, axis=-1))


def spread(steps: int) -> Floats:
    """Return ``[steps + 1]``: fractions from 0 to 1."""
    return np.linspace(0, 1, steps + 1)


@dataclass(frozen=True)
class Curve(Measure):
    """The base class of deletion and insertion curves: the class's probability as features are removed or inserted.

    Attributes:
        steps: the number of removals or insertions.
    """

    steps: int = 20

    def counts(self, case: Case) -> list[int]:
        """Return the number of features at each step."""
        return at_least(spread(self.steps), len(case.scores))

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the class's probability at each step."""
        return case.probabilities(logits)[:, case.target]

    def finish(self, mean: Floats) -> Floats:
        """Return the area under the curve."""
        return area(spread(self.steps), mean)

    def axis(self) -> Floats:
        """Return the share of features at each step."""
        return spread(self.steps)
