"""Salience-guided faithfulness (Wu et al., CVPR 2024, SaCo).

Features are ranked and split into groups of equal size; removing a group with more salience should reduce the
probability at least as much. Each pair of groups is weighted by its difference in salience: 1 if all pairs are in
order, -1 if none is. Only the order and the proportions of scores matter, not their scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Flags, Floats
from ..measure import Measure, measure


@measure("saco")
@dataclass(frozen=True)
class SalienceFaithfulness(Measure):
    """The weighted share of pairs of groups whose order by salience is that of their effects.

    Attributes:
        groups: the number of groups.
    """

    paper: ClassVar[str] = "Wu et al., CVPR 2024"

    groups: int = 10

    def plan(self, case: Case) -> Flags:
        """Return flags that remove each group alone, the most salient first."""
        out = np.zeros((min(self.groups, len(case.scores)), len(case.scores)), bool)
        for row, group in zip(out, np.array_split(case.order(case.scores), len(out)), strict=True):
            row[group] = True
        return out

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the coefficient, from -1 to 1; 0 where all groups have the same salience."""
        salience = self.plan(case) @ case.scores
        whole = case.probabilities(case.logits[None])[0, case.target]
        cost = whole - case.probabilities(logits)[:, case.target]
        first, second = np.triu_indices(len(salience), 1)
        weight = salience[first] - salience[second]
        signed = np.where(cost[first] >= cost[second], weight, -weight)
        total = np.abs(weight).sum()
        return np.array([signed.sum() / total if total > 0 else 0.0])
