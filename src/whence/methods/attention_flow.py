"""Attention flow (Abnar, Zuidema, ACL 2020).

The layers are a flow network: token ``i`` of layer ``l`` is connected to token ``j`` of the layer below by an edge of
capacity ``A_l[i, j]``, with ``A = (E_h(A) + I) / 2``. The score of an input token is the maximum flow that can reach it
from the row that the target reads. The published code divides each row of flows by its sum (``normalise=True``); Ali et
al. 2022 do so too and sum all rows (``rows="all"``). The target matters only in which rows it reads.

Each input token is one maximum-flow problem, solved by igraph (push-relabel). Cost: one forward pass and a flow problem
per token: 12 layers of 128 tokens take seconds; with ``rows="all"`` that many for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from .._utils.optional_imports import need
from ..readout.rollup import require_local, require_maps, target_rows
from ..runs.run import Run
from .attention import AttentionLevel
from .base import Reading
from .registry import method

Floats = npt.NDArray[np.float64]


@method("attention-flow")
@dataclass
class AttentionFlow(AttentionLevel):
    """The maximum flow from the explained rows to each token.

    Attributes:
        start_layer: the first layer taken into account.
        residual: add the identity of the skip connection.
        normalise: divide the flows from a row by their sum.
    """

    paper: ClassVar[str] = "Abnar, Zuidema, ACL 2020"
    shows: ClassVar[str] = "How much attention can reach each token through all layers, like water through pipes."
    beware: ClassVar[str] = (
        "It is the same for every answer, and slow for long inputs; attention is not the same as influence."
    )

    start_layer: int = 0
    residual: bool = True
    normalise: bool = False

    def read(self, run: Run) -> Reading:
        """Return scores ``[batch, tokens]``, computed sample by sample without padding."""
        require_maps(run, self.name, self.start_layer)
        require_local(run, self.name)
        gradient = self.attention(run, self.start_layer)
        maps = (record.map().mean(1) for record in run.trace.attentions[self.start_layer :])
        means = torch.stack(list(maps), 1).double().cpu()  # [batch, layers, queries, keys]
        rows = target_rows(gradient)[:, 0].double().cpu()
        scores = torch.zeros_like(rows)
        for i in range(len(rows)):
            real = torch.arange(rows.shape[1])
            if run.mask is not None and run.mask.shape == rows.shape:
                real = (~run.mask[i].cpu()).nonzero()[:, 0]
            layers = means[i][:, real][:, :, real].numpy()
            scores[i, real] = torch.from_numpy(self._scores(layers, rows[i, real].numpy()))
        return Reading(scores.to(gradient))

    def _scores(self, layers: Floats, rows: Floats) -> Floats:
        if self.residual:
            layers = layers + np.eye(layers.shape[-1])
        layers = layers / layers.sum(-1, keepdims=True)
        wanted = np.ones_like(rows) if self.rows == "all" else rows
        total = np.zeros_like(rows)
        for row in np.flatnonzero(wanted):
            found = flows(layers, int(row))
            total += wanted[row] * (found / found.sum() if self.normalise else found)
        return total


def flows(layers: Floats, row: int) -> Floats:
    """Return the maximum flow from a row of the last layer to each token of the input, ``[tokens]``.

    Args:
        layers: ``[layers, tokens, tokens]``, capacities, first layer first.
        row: the row of the last layer where the flow begins.
    """
    igraph = need("igraph", "attention flow", "flow")
    count, tokens = layers.shape[:2]
    edges: list[Sequence[int]] = []
    capacities: list[float] = []
    for layer, A in enumerate(layers):
        above, below = np.nonzero(A)
        edges += zip(((layer + 1) * tokens + above).tolist(), (layer * tokens + below).tolist(), strict=True)
        capacities += A[above, below].tolist()
    graph = igraph.Graph(n=(count + 1) * tokens, edges=edges, directed=True)
    source = count * tokens + row
    return np.array([graph.maxflow_value(source, sink, capacities) for sink in range(tokens)])
