"""Integrated gradients (Sundararajan, Taly, Yan, ICML 2017).

``R_i = (x_i - x'_i) . integral_0^1 df/dx_i (x' + a (x - x')) da`` along the straight line from a baseline ``x'`` to the
input, summed over the features of each token. Complete: the scores sum to ``f(x) - f(x')`` up to the error of the
integral, which is taken by Gauss-Legendre quadrature, exact for polynomials of degree ``2 steps - 1``.

A Transformer's first norm removes the length of its input: all points of the line from zero but zero itself are the
same to it, and the integrand jumps there. A non-zero baseline (a padding token's embedding) is then the better choice.

The line runs where the scores are read (``at``): between inputs of the first block (the default), between token
embeddings, or between pixels.

Cost: ``1 + steps`` forward passes and ``steps`` backward passes, several in one batch (``internal_batch_size``), and
one more of each to test that copies in a batch do not influence each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import MethodError
from ..runs.copies import in_chunks
from ..runs.run import Run
from ..tracing.reductions import precise
from ..tracing.tensor_info import node_of
from .base import Reading
from .changed_copies import ChangedCopies
from .registry import method


@dataclass
class GradientAverage(ChangedCopies):
    """Methods that average gradients over changed inputs."""

    def gradients(self, run: Run, places: list[Tensor], points: Iterable[list[Tensor]]) -> Iterator[list[Tensor]]:
        """Yield the target's gradients with respect to some tensors, at each of several values of them."""

        def at(values: list[list[Tensor]]) -> list[list[Tensor]]:
            return _gradients(run, places, values)

        copies = self.copies(run, places, gradients=True)
        return in_chunks(points, copies, at, lambda value: at([value])[0], _agree)


def _gradients(run: Run, places: list[Tensor], points: list[list[Tensor]]) -> list[list[Tensor]]:
    """Return the gradient at each place, at each of several points, in one forward and one backward pass.

    There are several points only if there is one place.
    """
    nodes = [node_of(t) for t in places]
    if len(points) == 1:
        rerun = run.rerun({node.seq: value for node, value in zip(nodes, points[0], strict=True)})
        return [[precise(g) for g in rerun.gradients()]]
    batch = nodes[0].axes.index((run.trace.batch,))
    rerun = run.rerun({nodes[0].seq: torch.cat([value for (value,) in points], batch)}, len(points))
    return [[precise(g)] for g in rerun.gradients()[0].chunk(len(points), batch)]


def _agree(found: list[list[Tensor]], alone: list[Tensor]) -> bool:
    """Return whether the last of several gradients is that of the same point alone."""
    (last,), (expected,) = found[-1], alone
    return torch.allclose(last, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@method("integrated-gradients")
@dataclass
class IntegratedGradients(GradientAverage):
    """The gradient averaged along the line from a baseline to the input, times their difference.

    Attributes:
        steps: the number of points on the line.
        baseline: where the line begins: a number, or a tensor that broadcasts (``[features]``, for pixels an image).
    """

    paper: ClassVar[str] = "Sundararajan, Taly, Yan, ICML 2017"
    shows: ClassVar[str] = "The change of the answer on the way from an empty input to this one, shared among tokens."
    beware: ClassVar[str] = "It depends on what counts as an empty input; with few steps the shares do not add up."
    conservative: ClassVar[bool] = True
    forwards: ClassVar[int] = 33
    backwards: ClassVar[int] = 32
    quick: ClassVar[Mapping[str, Any]] = {"steps": 1}

    steps: int = 32
    baseline: float | Tensor = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise MethodError(f"`steps` must be at least 1, not {self.steps}.")

    def read(self, run: Run) -> Reading:
        """Return the integral, ``[batch, tokens]``."""
        places = self.places(run)
        ends = [t.detach() for t in places]
        begins = [torch.zeros_like(t) + torch.as_tensor(self.baseline).to(t) for t in ends]
        totals = [torch.zeros_like(precise(t)) for t in ends]
        points, weights = np.polynomial.legendre.leggauss(self.steps)
        line = (
            [torch.lerp(begin, end, float(point)) for begin, end in zip(begins, ends, strict=True)]
            for point in (points + 1) / 2
        )
        for weight, found in zip(weights / 2, self.gradients(run, places, line), strict=True):
            for total, gradient in zip(totals, found, strict=True):
                total += float(weight) * gradient
        lengths = [precise(end) - precise(begin) for begin, end in zip(begins, ends, strict=True)]
        return self.reading(run, places, [length * total for length, total in zip(lengths, totals, strict=True)])
