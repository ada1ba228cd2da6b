"""Raw attention: the map of one layer, read at the rows that the target reads.

"A-Last" in Ali et al. 2022, "raw attention" in Chefer et al. 2021: the last layer, heads averaged. The former sum all
rows (``rows="all"``), the latter take the row of [CLS]. It shows which tokens the layer attended to, not what they
contributed to the target: the target matters only in which rows it reads. Of several streams, each gets the last
attention to it from the stream that the target reads.

Cost: one forward pass, and a backward pass through what follows the last attention, to find those rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import MethodError
from ..propagation.rulebook import Rulebook
from ..propagation.rules.gradient import show_map
from ..readout.cross_stream_rollup import Update, explained_scores, keep_last, roll_up_states
from ..readout.map_walk import last_gradient
from ..readout.rollup import column_sums, has_several_streams, require_attention, require_maps, target_rows
from ..runs.run import Run
from .base import Method, Reading
from .registry import method


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
        """Return a rulebook without rules; fused attention stays fused, its maps are recomputed when they are read."""
        return Rulebook({"attention": show_map}, books=False, heads=True)

    def attention(self, run: Run, *layers: int | None) -> Tensor:
        """Return the gradient of the last layer's map, ``[batch, heads, queries, keys]``."""
        require_maps(run, self.name, *layers)
        return last_gradient(run)

    def streams(self, run: Run, maps: list[Tensor], update: Update) -> Reading:
        """Return the explained rows of several streams, from each attention's ``[batch, queries, keys]``."""
        (_, scores), *others = explained_scores(run, roll_up_states(run, maps, update), every=self.rows == "all")
        return Reading(scores, others=others)


@method("attention")
@dataclass
class Attention(AttentionLevel):
    """The attention of one layer.

    Attributes:
        layer: the index of the layer.
        head: the index of the head; ``None``: the mean of all.
    """

    paper: ClassVar[str] = "Bahdanau et al., 2015; A-Last in Ali et al., 2022"
    shows: ClassVar[str] = "How much the last layer's attention looks at each token."
    beware: ClassVar[str] = (
        "Attention is where a model looks, not what it uses: it is the same for every answer, and says nothing of"
        " for or against."
    )

    layer: int = -1
    head: int | None = None

    def read(self, run: Run) -> Reading:
        """Return the explained rows of the map."""
        require_attention(run, self.name, self.layer)
        if has_several_streams(run):
            if self.layer != -1:
                raise MethodError(f"The model has several streams of tokens: `layer` must be -1, not {self.layer}.")
            return self.streams(run, [self._heads(record.map()) for record in run.trace.attentions], keep_last)
        gradient = self.attention(run, self.layer)
        A = self._heads(run.trace.attentions[self.layer].map())
        scores = column_sums(A, run.mask) if self.rows == "all" else (target_rows(gradient) @ A)[:, 0]
        return Reading(scores)

    def _heads(self, maps: Tensor) -> Tensor:
        if self.head is None:
            return maps.mean(1)
        if not -maps.shape[1] <= self.head < maps.shape[1]:
            raise MethodError(f"Head {self.head} is out of range: the layer has {maps.shape[1]} heads.")
        return maps[:, self.head]
