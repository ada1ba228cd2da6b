"""Intervals: what else the value could have been, had other samples been drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from .case import Floats

COVERAGE = (2.5, 97.5)  # percentiles of an interval of 95 %


@functools.lru_cache(maxsize=4)
def resampled(samples: int, times: int, seed: int) -> Floats:
    """``[times, samples]``: how often each sample is drawn, with replacement, as a share of all draws."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(samples, np.full(samples, 1 / samples), size=times) / samples


def interval(vectors: Floats, finish: Callable[[Floats], Floats], times: int, seed: int) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a measure.

    Args:
        vectors: ``[samples, d]``.
        finish: from means ``[..., d]`` to values ``[...]``.
        times: how many bootstrap samples are drawn.
        seed: of the draws.
    """
    low, high = np.nanpercentile(finish(resampled(len(vectors), times, seed) @ vectors), COVERAGE)
    return float(low), float(high)


def paired_interval(
    a: Floats, b: Floats, finish: Callable[[Floats], Floats], times: int, seed: int
) -> tuple[float, float]:
    """The same of the difference between two methods on the same samples, ``[samples, d]`` each."""
    drawn = resampled(len(a), times, seed)
    low, high = np.nanpercentile(finish(drawn @ a) - finish(drawn @ b), COVERAGE)
    return float(low), float(high)
