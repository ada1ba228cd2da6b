"""SmoothGrad (Smilkov, Thorat, Kim, Viegas, Wattenberg, 2017).

The gradient, averaged over noisy copies of the input: ``E[df/dx (x + n)]``, ``n ~ N(0, sigma^2)``, times the input
(``times_input=False``: the gradient alone, summed over the features). ``sigma`` is ``noise`` times the difference of
the largest and the smallest value of the sample's own input, as in the paper (0.1 to 0.2).

Noise is drawn position by position from ``seed``, so that it is the same in any batch.

Cost: ``1 + samples`` forward passes and ``samples`` backward passes, batched as those of
:mod:`~whence.methods.integrated_gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodError
from ..runs.run import Run
from ..runs.token_streams import row_by_row
from ..tracing.axes import Axes, Dim, order_of, size_of
from ..tracing.reductions import arrange, precise, restored, spread
from ..tracing.tensor_info import node_of
from .base import Reading
from .integrated_gradients import GradientAverage
from .registry import method


@method("smooth-grad")
@dataclass
class SmoothGrad(GradientAverage):
    """The mean gradient of noisy copies.

    Attributes:
        samples: the number of copies.
        noise: the strength of the noise, as a fraction of the input's range.
        times_input: multiply the mean gradient by the input.
        seed: the seed of the noise.
    """

    paper: ClassVar[str] = "Smilkov et al., 2017"
    shows: ClassVar[str] = "Gradients averaged over slightly disturbed copies of the input."
    beware: ClassVar[str] = "It depends on how strong the disturbance is; slow."
    forwards: ClassVar[int] = 26
    backwards: ClassVar[int] = 25
    quick: ClassVar[Mapping[str, Any]] = {"samples": 1}

    samples: int = 25
    noise: float = 0.15
    times_input: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 1 or self.noise < 0:
            raise MethodError(
                f"`samples` must be at least 1 and `noise` not negative, not {self.samples} and {self.noise}."
            )

    def read(self, run: Run) -> Reading:
        """Return the mean over the copies, ``[batch, tokens]``."""
        places = self.places(run)
        clean = [t.detach() for t in places]
        totals = [torch.zeros_like(precise(t)) for t in clean]
        noisy = (
            [t + self._noise(run, place, t, k) for place, t in zip(places, clean, strict=True)]
            for k in range(self.samples)
        )
        for found in self.gradients(run, places, noisy):
            for total, gradient in zip(totals, found, strict=True):
                total += gradient / self.samples
        if self.times_input:
            totals = [total * precise(t) for total, t in zip(totals, clean, strict=True)]
        return self.reading(run, places, totals)

    def _noise(self, run: Run, place: Tensor, clean: Tensor, k: int) -> Tensor:
        """Draw the noise of one copy, the same for every sample except for its strength; padding is skipped."""
        axes, batch = node_of(place).token_axes, run.trace.batch
        shape = [1 if batch in dim else n for n, dim in zip(clean.shape, axes, strict=True)]
        drawn = torch.from_numpy(np.random.default_rng([self.seed, k]).standard_normal(shape)).to(clean.device)
        tokens = run.tokens if run.tokens in axes else axes[1]
        order = order_of(node_of(place).axes[axes.index(tokens)])
        index = None if order is None else order.places
        clean = restored(clean, axes.index(tokens), index)
        padding = _padding(run, axes, tokens)
        if padding.dim():
            rank = ((~padding).long().cumsum(axes.index(tokens)) - 1).clamp(min=0)
            drawn = drawn.expand(clean.shape).gather(axes.index(tokens), rank.expand(clean.shape))
        high, low = (
            arrange(precise(clean).masked_fill(padding, limit), axes, batch) for limit in (-torch.inf, torch.inf)
        )
        sigma = self.noise * (high.amax(1) - low.amin(1))
        noise = (drawn.to(sigma) * spread(sigma, axes, batch)).to(clean)
        rows = row_by_row(run, size_of(tokens)) if tokens == run.tokens and axes[0] == (batch,) else None
        noise = noise if rows is None else restored(noise.expand_as(clean), axes.index(tokens), rows)
        return noise if index is None else restored(noise.expand_as(clean), axes.index(tokens), index.argsort(-1))


def _padding(run: Run, axes: Axes, tokens: Dim) -> Tensor:
    """Return a mask that is true at padding, shaped to mask a tensor with these axes."""
    mask, batch = run.padding(tokens), (run.trace.batch,)
    if mask is None or batch not in axes or mask.shape[1] != size_of(tokens):
        return torch.zeros((), dtype=torch.bool, device=run.seed.output.device)
    first, second = axes.index(batch), axes.index(tokens)
    shape = [1] * len(axes)
    shape[first], shape[second] = mask.shape
    return (mask if first < second else mask.T).reshape(shape)
