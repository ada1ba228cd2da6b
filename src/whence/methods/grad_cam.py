"""GradCAM on the last attention, as in the baselines of Chefer, Gur, Wolf (CVPR 2021).

Each head of the last attention is weighed by the mean of its gradient, ``E_h(w_h A_h)^+``, and read at the rows that
the target reads. For ViT the published code takes the mean over the patches of the [CLS] row (``weights="row"``, the
default here), for BERT over the whole map (``weights="map"``), padding included, which is left out here: it would make
the scores depend on the batch. Its min-max scaling is left to :meth:`normalised`.

Cost: one forward, and the backward of what follows the last attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import MethodError
from ..readout.cross_stream_rollup import keep_last
from ..readout.map_walk import visit_gradients
from ..readout.rollup import column_sums, has_several_streams, require_attention, target_rows
from ..runs.run import Run
from ..tracing.fused_attention import Piece
from .attention import AttentionLevel
from .base import Reading
from .registry import method


@method("grad-cam")
@dataclass
class GradCam(AttentionLevel):
    """The last attention, its heads weighed by their gradients.

    Attributes:
        weights: the mean gradient over the row that is read, without its own column (``"row"``), or over the whole map
            (``"map"``).
    """

    paper: ClassVar[str] = "Selvaraju et al., 2017; on attention as in Chefer et al., CVPR 2021"
    shows: ClassVar[str] = "The last layer's attention, weighted by how much it helped the answer."
    beware: ClassVar[str] = "It sees one layer only; in deep models that layer may have mixed all tokens already."
    class_specific: ClassVar[bool] = True

    weights: str = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in ("row", "map"):
            raise MethodError(f"`weights` must be 'row' or 'map', not {self.weights!r}.")

    def read(self, run: Run) -> Reading:
        """The explained rows of the weighed map."""
        require_attention(run, self.name)
        if has_several_streams(run):
            return self.streams(run, self._cams(run), keep_last)
        gradient = self.attention(run)
        weights = self._weights(gradient, run.mask, run.mask)
        cam = (run.trace.attentions[-1].map() * weights).mean(1).clamp(min=0)
        scores = column_sums(cam, run.mask) if self.rows == "all" else (target_rows(gradient) @ cam)[:, 0]
        return Reading(scores)

    def _cams(self, run: Run) -> list[Tensor]:
        """Every attention's ``[batch, queries, keys]``; 0 for those that the target does not depend on."""
        records = run.trace.attentions
        cams = [record.zeros(*record.shape[1:]) for record in records]

        def visit(i: int, piece: Piece, A: Tensor, gradient: Tensor) -> None:
            queries, keys = records[i].axes[records[i].query], records[i].axes[records[i].key]
            absent, hidden = (run.mask if dim == run.tokens() else None for dim in (queries, keys))
            absent, hidden = (None if mask is None else mask[piece[:1]] for mask in (absent, hidden))
            weights = self._weights(gradient, absent, hidden, own=queries == keys)
            cams[i][piece[:1]] += (A * weights).sum(1) / records[i].shape[0]

        visit_gradients(run, visit, keep=True)
        return [cam.clamp(min=0) for cam in cams]

    def _weights(self, gradient: Tensor, absent: Tensor | None, hidden: Tensor | None, own: bool = True) -> Tensor:
        """``w_h``, ``[batch, heads, 1, 1]``, to multiply maps with.

        Args:
            gradient: of the maps, ``[batch, heads, queries, keys]``.
            absent, hidden: queries and keys that are padding.
            own: whether queries and keys are the same tokens.
        """
        rows = target_rows(gradient)
        real = _real(gradient[:, 0, 0], hidden)
        if self.weights == "map":
            pairs = real[:, None, None, :] * _real(gradient[:, 0, :, 0], absent)[:, None, :, None]
            weights = (gradient * pairs).sum((-2, -1)) / pairs.sum((-2, -1))
        else:
            others = real * (rows[:, 0] == 0) if own else real
            others = torch.where(others.any(-1, keepdim=True), others, real)  # every row is read: so is every column
            read = (rows[:, None] @ gradient)[:, :, 0]  # [batch, heads, keys]
            weights = (read * others[:, None]).sum(-1) / others.sum(-1)[:, None]
        return weights[:, :, None, None]


def _real(like: Tensor, padding: Tensor | None) -> Tensor:
    """1 where there is a token, shaped like ``[batch, tokens]``."""
    ones = torch.ones_like(like)
    return ones if padding is None or padding.shape != ones.shape else ones.masked_fill(padding, 0.0)
