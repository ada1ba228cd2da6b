"""Attention as it is: the map of one layer, read at the rows that the target reads.

"A-Last" in Ali et al. 2022, "raw attention" in Chefer et al. 2021: the last layer, heads averaged. The former add up
all rows (``rows="all"``), the latter take the row of [CLS]. It says what the layer looked at, not what the target owes
it: the target matters only in which rows it reads.

Cost: one forward, and the backward of what follows the last attention, to find those rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..axes import precise
from ..errors import MethodError
from ..rollup import column_sums, read_rows, require_maps
from ..run import Rulebook, Run
from . import Method, Reading, method


@dataclass
class AttentionLevel(Method):
    """Methods that read attention maps alone.

    Attributes:
        rows: ``"target"`` (the rows that the target reads) or ``"all"`` (the sum of all rows).
    """

    class_specific: ClassVar[bool] = False
    needs: ClassVar[str] = "attention"

    rows: str = "target"

    def __post_init__(self) -> None:
        if self.rows not in ("target", "all"):
            raise MethodError(f"`rows` must be 'target' or 'all', not {self.rows!r}.")

    def rulebook(self) -> Rulebook:
        """Attention maps written out."""
        return Rulebook(maps=True)

    def attention(self, run: Run, *layers: int | None) -> tuple[list[Tensor], Tensor]:
        """Every layer's map ``[batch, heads, queries, keys]``, and the gradient of the last one's."""
        require_maps(run, self.name, *layers)
        records = run.trace.attentions
        probabilities = [r.probabilities for r in records if r.probabilities is not None]
        (gradient,) = run.backward(probabilities[-1:])
        maps = [precise(r.arrange(p.detach())) for r, p in zip(records, probabilities, strict=True)]
        return maps, precise(records[-1].arrange(gradient))


@method("attention")
@dataclass
class Attention(AttentionLevel):
    """The attention of one layer.

    Attributes:
        layer: which one.
        head: which head; ``None``: the mean of all.
    """

    paper: ClassVar[str] = "Bahdanau et al., 2015; A-Last in Ali et al., 2022"

    layer: int = -1
    head: int | None = None

    def read(self, run: Run) -> Reading:
        """The explained rows of the map."""
        maps, gradient = self.attention(run, self.layer)
        chosen = maps[self.layer]
        if self.head is not None and not -chosen.shape[1] <= self.head < chosen.shape[1]:
            raise MethodError(f"Head {self.head} is out of range: the layer has {chosen.shape[1]} heads.")
        A = chosen.mean(1) if self.head is None else chosen[:, self.head]
        scores = column_sums(A, run.mask) if self.rows == "all" else (read_rows(gradient) @ A)[:, 0]
        return Reading(scores)
