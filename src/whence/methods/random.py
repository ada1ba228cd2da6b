"""Random scores: the baseline of every comparison.

Each sample's scores are drawn from a normal distribution by a generator that is seeded with the sample's own input, so
that they are the same in any batch, and with ``seed``, so that they are reproducible.

Cost: one forward pass.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..runs.token_streams import entries
from ..tracing.reductions import per_token, precise
from ..tracing.tensor_info import node_of
from .base import Method, Reading
from .registry import method


@method("random")
@dataclass
class Random(Method):
    """Normally distributed scores.

    Attributes:
        seed: the seed of the scores.
    """

    paper: ClassVar[str] = "none"
    shows: ClassVar[str] = "Nothing: random numbers, the floor that every method must beat."
    beware: ClassVar[str] = "Never trust it; but what looks no better than this deserves no trust either."
    class_specific: ClassVar[bool] = False
    backwards: ClassVar[int] = 0

    seed: int = 0

    def rulebook(self) -> Rulebook:
        """Return an empty rulebook."""
        return Rulebook(books=False)

    def read(self, run: Run) -> Reading:
        """Return scores ``[batch, tokens]``, drawn sample by sample for its own tokens; 0 at padding."""
        entry = run.position("position")
        scores = self._draw(run, run.per_token(precise(entry.detach()), node_of(entry).axes), run.mask, 0)
        others = []
        for number, (tensor, dim) in enumerate(entries(run)):
            if tensor is not entry:
                like = per_token(precise(tensor.detach()), node_of(tensor).axes, run.trace.batch, dim)
                others.append((dim, self._draw(run, like, run.padding(dim), 1 + number)))
        return Reading(scores, others=others)

    def _draw(self, run: Run, like: Tensor, mask: Tensor | None, number: int) -> Tensor:
        """Draw the scores of one stream, ``[batch, tokens]``; each stream has its own number."""
        scores = torch.zeros_like(like)
        for i in range(len(scores)):
            padding = None if mask is None or mask.shape != scores.shape else mask[i]
            own = torch.arange(scores.shape[1], device=scores.device) if padding is None else (~padding).nonzero()[:, 0]
            generator = torch.Generator().manual_seed(zlib.crc32(_content(run, i), self.seed + number))
            scores[i, own] = torch.randn(len(own), generator=generator).to(scores)
        return scores


def _content(run: Run, i: int) -> bytes:
    """Return a sample's input as bytes: that of the main stream, without padding, and any images."""
    out = b""
    main = run.source(embedded=None)
    for source in [main, *(s for s in run.trace.sources if s is not main and not s.embedded and s.tensor.dim() > 2)]:
        values = source.tensor.detach()
        axes = node_of(source.tensor).axes
        where = next((d for d, dim in enumerate(axes) if run.trace.batch in dim), None)
        own = values if where is None else values.select(where, i)
        if source is main and run.given is not None and own.shape[:1] == run.given.shape[1:]:
            own = own[~run.given[i]]
        out += own.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return out
