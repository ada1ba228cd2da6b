"""Generic attention-model explainability (Chefer, Gur, Wolf, ICCV 2021).

Each attention's map is its heads weighted by their gradients, ``A = E_h((dy/dA * A)^+)`` (eq. 5), and relevance
accumulates as ``R = R + A R`` from the identity (eq. 6). The scores are the rows of ``R`` that the target reads: for
a classifier, [CLS]; for a mean over tokens, their mean.

Ali et al. 2022 report two different methods as "GAE": their IMDB code is this one, their SST code divides each row of
``I + A`` by its sum and adds up all rows (``normalise=True, rows="all"``).

Cost: one forward, one backward, with attention maps written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..rollup import all_rows, column_sums, positive_mean, read_rows, require_maps, roll_up
from ..run import Run
from . import Reading, method
from .attention import AttentionLevel


@method("generic-attention")
@dataclass
class GenericAttention(AttentionLevel):
    """Gradient-weighted attention, rolled up.

    Attributes:
        start_layer: the first layer taken into account.
        normalise: divide each row of ``I + A`` by its sum.
    """

    paper: ClassVar[str] = "Chefer, Gur, Wolf, ICCV 2021"
    class_specific: ClassVar[bool] = True

    start_layer: int = 0
    normalise: bool = False

    def read(self, run: Run) -> Reading:
        """The explained rows of ``R``."""
        maps, rows, heads = self.maps(run)
        if self.rows == "all":
            scores = column_sums(roll_up(maps, all_rows(maps[0]), self.normalise), run.mask)
        else:
            scores = roll_up(maps, rows, self.normalise)[:, 0]
        return Reading(scores, heads=heads)

    def maps(self, run: Run) -> tuple[list[Tensor], Tensor, Tensor]:
        """Each layer's ``E_h((dy/dA * A)^+)``, the explained rows, and the heads' shares."""
        require_maps(run, self.name, self.start_layer)
        records = run.trace.attentions
        probabilities = [r.probabilities for r in records if r.probabilities is not None]
        gradients = run.backward(probabilities)
        weighted = [r.arrange(g * p.detach()) for r, g, p in zip(records, gradients, probabilities, strict=True)]
        rows = read_rows(records[-1].arrange(gradients[-1]))
        return [positive_mean(w) for w in weighted][self.start_layer :], rows, head_shares(weighted)


def head_shares(weighted: list[Tensor]) -> Tensor:
    """``[batch, layers, heads]``: the positive mass of each head's map."""
    return torch.stack([w.clamp(min=0).sum((-2, -1)) for w in weighted], 1)
