"""Integrated gradients (Sundararajan, Taly, Yan, ICML 2017).

``R_i = (x_i - x'_i) . integral_0^1 df/dx_i (x' + a (x - x')) da`` along the straight line from a baseline ``x'`` to the
input, summed over the features of each token. Complete: the scores sum to ``f(x) - f(x')`` up to the error of the
integral, which is taken by Gauss-Legendre quadrature, exact for polynomials of degree ``2 steps - 1``.

A Transformer's first norm removes the length of its input: all points of the line from zero but zero itself are the
same to it, and the integrand jumps there. A non-zero baseline (a padding token's embedding) is then the better choice.

The line runs where the scores are read (``at``): between inputs of the first block (the default), between token
embeddings, or between pixels.

Cost: ``1 + steps`` forward passes and ``steps`` backward passes; short inputs are batched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..capture.tape import checking
from ..errors import MethodError, ModelError
from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..tracing.reductions import precise
from ..tracing.tensor_info import node_of
from .base import Reading
from .gradient_x_input import InputLevel
from .registry import method

#: rows (copies x samples x tokens) of one forward pass: more are hardly faster, and take more memory
ROWS = 1024


@dataclass
class GradientAverage(InputLevel):
    """Methods that average gradients over changed inputs."""

    def rulebook(self) -> Rulebook:
        """Return a rulebook without rules: every operation keeps its derivative."""
        return Rulebook(books=False)

    def gradients(self, run: Run, places: list[Tensor], points: Iterable[list[Tensor]]) -> Iterator[list[Tensor]]:
        """Yield the target's gradients with respect to some tensors, at each of several values of them.

        Short inputs are run as several copies in one batch, if copies do not influence each other: to test this, one of
        them is also run by itself.
        """
        points = iter(points)
        copies = self._copies_at_once(run, places)
        checked = False
        while values := list(itertools.islice(points, copies)):
            found = _batched_gradients(run, places[0], [value for value, *_ in values]) if len(values) > 1 else None
            if found is not None and not checked:
                (alone,) = _gradients_at(run, places, values[-1])
                with checking():
                    checked = torch.allclose(found[-1], alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max()))
                found = found if checked else None
            if found is None:
                copies = 1
                yield from (_gradients_at(run, places, value) for value in values)
            else:
                yield from ([g] for g in found)

    def _copies_at_once(self, run: Run, places: list[Tensor]) -> int:
        """Return how many copies of the batch are run in one forward pass."""
        if len(places) > 1 or run.seed.index is None or (run.trace.batch,) not in node_of(places[0]).axes:
            return 1
        tokens = run.boundaries[0].tensor if run.boundaries else places[0]
        return max(1, ROWS // max(1, tokens.numel() // tokens.shape[-1]))


def _gradients_at(run: Run, places: list[Tensor], values: list[Tensor]) -> list[Tensor]:
    """Return the gradient at each of some places, at other values."""
    rerun = run.rerun({node_of(t).seq: value for t, value in zip(places, values, strict=True)})
    return [precise(g) for g in rerun.gradients()]


def _batched_gradients(run: Run, place: Tensor, values: list[Tensor]) -> list[Tensor] | None:
    """Return the gradient at one place at each of several values, in one forward and one backward pass.

    ``None`` if the model cannot be run on several copies.
    """
    node = node_of(place)
    batch = node.axes.index((run.trace.batch,))
    try:
        rerun = run.rerun({node.seq: torch.cat(values, batch)}, len(values))
    except (ModelError, RuntimeError):
        return None
    return [precise(g) for g in rerun.gradients()[0].chunk(len(values), batch)]


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
