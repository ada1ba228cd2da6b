"""Bootstrap intervals of measures, and of paired differences between methods."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from .case import Floats

COVERAGE = (2.5, 97.5)  # percentiles of a 95 % interval


@functools.lru_cache(maxsize=4)
def resampled(samples: int, times: int, seed: int) -> Floats:
    """Return ``[times, samples]``: the share of each sample in each bootstrap sample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(samples, np.full(samples, 1 / samples), size=times) / samples


def interval(vectors: Floats, finish: Callable[[Floats], Floats], times: int, seed: int) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a measure.

    Args:
        vectors: ``[samples, d]``.
        finish: from means ``[..., d]`` to values ``[...]``.
        times: the number of bootstrap samples.
        seed: of the draws.
    """
    low, high = np.nanpercentile(finish(resampled(len(vectors), times, seed) @ vectors), COVERAGE)
    return float(low), float(high)


def paired_interval(
    a: Floats, b: Floats, finish: Callable[[Floats], Floats], times: int, seed: int
) -> tuple[float, float]:
    """Return the interval of the difference between two methods on the same samples, ``[samples, d]`` each."""
    drawn = resampled(len(a), times, seed)
    low, high = np.nanpercentile(finish(drawn @ a) - finish(drawn @ b), COVERAGE)
    return float(low), float(high)
