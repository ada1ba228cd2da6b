"""GradCAM on the last attention, as in the baselines of Chefer, Gur, Wolf (CVPR 2021).

Each head of the last attention is weighted by the mean of its gradient, ``E_h(w_h A_h)^+``, and read at the rows that
the target reads. For ViT the published code takes the mean over the patches of the [CLS] row (``weights="row"``, the
default here), for BERT over the whole map (``weights="map"``), padding included, which is left out here: it would make
the scores depend on the batch. Its min-max scaling is left to :meth:`normalised`.

Cost: one forward pass, and a backward pass through what follows the last attention.
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
from ..tracing.axes import Dim
from ..tracing.fused_attention import Piece
from .attention import AttentionLevel
from .base import Reading
from .registry import method


@method("grad-cam")
@dataclass
class GradCam(AttentionLevel):
    """The last attention, its heads weighted by their gradients.

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
        """Return the explained rows of the weighted map."""
        require_attention(run, self.name)
        if has_several_streams(run):
            return self.streams(run, self._cams(run), keep_last)
        gradient = self.attention(run)
        weights = self._weights(gradient, run.mask, run.mask)
        cam = (run.trace.attentions[-1].map() * weights).mean(1).clamp(min=0)
        scores = column_sums(cam, run.mask) if self.rows == "all" else (target_rows(gradient) @ cam)[:, 0]
        return Reading(scores)

    def _cams(self, run: Run) -> list[Tensor]:
        """Return every attention's ``[batch, queries, keys]``; 0 for those that the target does not depend on."""
        records = run.trace.attentions
        cams = [record.zeros(*record.shape[1:]) for record in records]

        def padding(dim: Dim, chunk: Piece) -> Tensor | None:
            return run.mask[chunk[:1]] if run.mask is not None and dim == run.tokens else None

        def visit(i: int, chunk: Piece, A: Tensor, gradient: Tensor) -> None:
            queries = records[i].axes[records[i].query]
            keys = records[i].axes[records[i].key]
            weights = self._weights(gradient, padding(queries, chunk), padding(keys, chunk), own=queries == keys)
            cams[i][chunk[:1]] += (A * weights).sum(1) / records[i].shape[0]

        visit_gradients(run, visit, keep=True)
        return [cam.clamp(min=0) for cam in cams]

    def _weights(
        self, gradient: Tensor, query_padding: Tensor | None, key_padding: Tensor | None, own: bool = True
    ) -> Tensor:
        """Return ``w_h``, ``[batch, heads, 1, 1]``, to multiply maps with.

        Args:
            gradient: of the maps, ``[batch, heads, queries, keys]``.
            query_padding, key_padding: queries and keys that are padding.
            own: whether queries and keys are the same tokens.
        """
        rows = target_rows(gradient)
        real = _real(gradient[:, 0, 0], key_padding)
        if self.weights == "map":
            pairs = real[:, None, None, :] * _real(gradient[:, 0, :, 0], query_padding)[:, None, :, None]
            weights = (gradient * pairs).sum((-2, -1)) / pairs.sum((-2, -1))
        else:
            others = real * (rows[:, 0] == 0) if own else real
            others = torch.where(others.any(-1, keepdim=True), others, real)  # if every row is read, all columns count
            read = (rows[:, None] @ gradient)[:, :, 0]  # [batch, heads, keys]
            weights = (read * others[:, None]).sum(-1) / others.sum(-1)[:, None]
        return weights[:, :, None, None]


def _real(like: Tensor, padding: Tensor | None) -> Tensor:
    """Return 1 at tokens and 0 at padding, ``[batch, tokens]``."""
    ones = torch.ones_like(like)
    return ones if padding is None or padding.shape != ones.shape else ones.masked_fill(padding, 0.0)
