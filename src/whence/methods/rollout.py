"""Attention rollout (Abnar, Zuidema, ACL 2020).

Heads are averaged, the skip connection is an identity with the same weight as the attention, ``A = (E_h(A) + I) / 2``
(rows sum to 1), and the layers are multiplied: ``A_L ... A_1``. The scores are the rows that the target reads. Ali et
al. 2022 sum all rows (``rows="all"``). The target matters only in which rows it reads.

Between several streams, the stream that is read has the same weight as the queries' own, ``R = (R + A R') / 2``, with
``R'`` the matrix of the stream that is read. (Chefer et al. 2021b roll each stream up by itself and join them by the
last co-attention.)

Cost: one forward pass, and a backward pass through what follows the last attention, to find those rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..readout.cross_stream_rollup import State, accumulate, zero_layers_before
from ..readout.rollup import (
    all_rows,
    column_sums,
    has_several_streams,
    require_attention,
    require_local,
    roll_layer,
    target_rows,
)
from ..runs.run import Run
from ..tracing.axes import Dim
from .attention import AttentionLevel
from .base import Reading
from .registry import method


@method("rollout")
@dataclass
class Rollout(AttentionLevel):
    """The product of all layers' attention.

    Attributes:
        start_layer: the first layer taken into account.
        residual: add the identity of the skip connection.
    """

    paper: ClassVar[str] = "Abnar, Zuidema, ACL 2020"
    shows: ClassVar[str] = "Attention multiplied through all layers: which tokens could have reached the answer."
    beware: ClassVar[str] = "It is the same for every answer, and says nothing of for or against."

    start_layer: int = 0
    residual: bool = True

    def read(self, run: Run) -> Reading:
        """Return the explained rows of the product."""
        require_attention(run, self.name, self.start_layer)
        require_local(run, self.name)
        if has_several_streams(run):
            maps = zero_layers_before(run, [record.map().mean(1) for record in run.trace.attentions], self.start_layer)
            return self.streams(run, maps, self.update)
        gradient = self.attention(run, self.start_layer)
        total = target_rows(gradient)
        if self.rows == "all":
            total = all_rows(total)
        for record in reversed(run.trace.attentions[self.start_layer :]):
            A = record.map().mean(1)
            if self.residual:
                total = roll_layer(total, A, normalise=True)
            else:
                total = total @ (A / A.sum(-1, keepdim=True).clamp(min=1e-30))
        return Reading(column_sums(total, run.mask) if self.rows == "all" else total[:, 0])

    def update(self, mine: State, read: State, A: Tensor, queries: Dim, keys: Dim, begun: State | None = None) -> State:
        """Return the mean of the queries' state and of the state that is read."""
        before = mine if self.residual else {}
        total = A.sum(-1, keepdim=True) + bool(self.residual)
        return {
            stream: R / total.clamp(min=1e-30)
            for stream, R in accumulate(before, read, A, queries, keys, begun).items()
        }
