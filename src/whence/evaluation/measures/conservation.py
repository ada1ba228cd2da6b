"""Conservation error: do the scores sum to the target (Bach et al. 2015; Ali et al., ICML 2022)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..case import Case, Floats, as_floats
from ..measure import Measure, measure


@measure("conservation-error")
@dataclass(frozen=True)
class ConservationError(Measure):
    """The distance between the sum of all scores and the value of the target, relative to it.

    For methods whose biases absorb relevance it can be large although nothing is lost: the ledger (``e.ledger``)
    accounts for it.
    """

    paper: ClassVar[str] = "Ali et al., ICML 2022"
    higher: ClassVar[bool | None] = False
    needs: ClassVar[frozenset[str]] = frozenset({"ledger"})

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the relative error."""
        value = float(as_floats(case.explanation.value)[0])
        total = sum(float(as_floats(s).sum()) for s in case.explanation.streams.values())
        return np.array([abs(total - value) / max(abs(value), 1e-12)])
