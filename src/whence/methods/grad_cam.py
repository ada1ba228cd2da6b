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
from ..rollup import column_sums, read_rows
from ..run import Run
from . import Reading, method
from .attention import AttentionLevel


@method("grad-cam")
@dataclass
class GradCam(AttentionLevel):
    """The last attention, its heads weighed by their gradients.

    Attributes:
        weights: the mean gradient over the row that is read, without its own column (``"row"``), or over the whole map
            (``"map"``).
    """

    paper: ClassVar[str] = "Selvaraju et al., 2017; on attention as in Chefer et al., CVPR 2021"
    class_specific: ClassVar[bool] = True

    weights: str = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in ("row", "map"):
            raise MethodError(f"`weights` must be 'row' or 'map', not {self.weights!r}.")

    def read(self, run: Run) -> Reading:
        """The explained rows of the weighed map."""
        maps, gradient = self.attention(run)
        rows = read_rows(gradient)
        real = _real(gradient, run.mask)
        if self.weights == "map":
            keys = real[:, None, None, :] * real[:, None, :, None]
            weights = (gradient * keys).sum((-2, -1)) / keys.sum((-2, -1))
        else:
            others = real * (rows[:, 0] == 0)
            others = torch.where(others.any(-1, keepdim=True), others, real)  # every row is read: so is every column
            read = (rows[:, None] @ gradient)[:, :, 0]  # [batch, heads, keys]
            weights = (read * others[:, None]).sum(-1) / others.sum(-1)[:, None]
        cam = (maps[-1] * weights[:, :, None, None]).mean(1).clamp(min=0)
        scores = column_sums(cam, run.mask) if self.rows == "all" else (rows @ cam)[:, 0]
        return Reading(scores)


def _real(like: Tensor, padding: Tensor | None) -> Tensor:
    """``[batch, keys]``: 1 where there is a token."""
    ones = like.new_ones(like.shape[0], like.shape[-1])
    return ones if padding is None or padding.shape != ones.shape else ones.masked_fill(padding, 0.0)
