"""Random scores: the floor of every comparison.

Each sample's scores are drawn from a normal distribution by a generator that is seeded with the sample's own input, so
that they are the same in any batch, and with ``seed``, so that they can be drawn again.

Cost: one forward.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..axes import precise
from ..node import node_of
from ..run import Rulebook, Run
from . import Method, Reading, method


@method("random")
@dataclass
class Random(Method):
    """Normally distributed scores.

    Attributes:
        seed: other seeds give other scores.
    """

    paper: ClassVar[str] = "none"
    class_specific: ClassVar[bool] = False
    backwards: ClassVar[int] = 0

    seed: int = 0

    def rulebook(self) -> Rulebook:
        """None is needed."""
        return Rulebook(books=False)

    def read(self, run: Run) -> Reading:
        """``[batch, tokens]``, drawn sample by sample for its own tokens; padding is 0."""
        entry = run.position("position")
        scores = torch.zeros_like(run.per_token(precise(entry.detach()), node_of(entry).axes))
        for i in range(len(scores)):
            padding = None if run.mask is None or run.mask.shape != scores.shape else run.mask[i]
            own = torch.arange(scores.shape[1], device=scores.device) if padding is None else (~padding).nonzero()[:, 0]
            generator = torch.Generator().manual_seed(zlib.crc32(_content(run, i, padding), self.seed))
            scores[i, own] = torch.randn(len(own), generator=generator).to(scores)
        return Reading(scores)


def _content(run: Run, i: int, padding: Tensor | None) -> bytes:
    """A sample's input, without padding, as bytes."""
    tensor = run.source(embedded=None).tensor
    source, axes = tensor.detach(), node_of(tensor).axes
    if padding is not None and run.tokens() in axes:
        source = source.index_select(axes.index(run.tokens()), (~padding).nonzero()[:, 0])
    where = next((d for d, dim in enumerate(axes) if run.trace.batch in dim), None)
    own = source if where is None else source.select(where, i)
    return bytes(own.contiguous().cpu().view(torch.uint8).numpy().tobytes())
