"""Time as a multiple of a baseline that is run before and after, and the growth of memory during a call."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """A time as a multiple of the baseline: the median, the extremes, and the median time in seconds."""

    value: float
    low: float
    high: float
    seconds: float


def timed(run: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratio(run: Callable[[], Any], plain: Callable[[], Any], repeats: int) -> Ratio:
    """The median of the ratios to a baseline run before and after, so that a noisy machine slows both alike."""
    ratios, times = [], []
    before = timed(plain)
    for _ in range(repeats):
        spent, after = timed(run), timed(plain)
        ratios.append(2 * spent / (before + after))
        times.append(spent)
        before = after
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), statistics.median(times))


def peak_memory(run: Callable[[], Any]) -> float:
    """MiB by which the resident set grows at most during a call; NaN where the system cannot say."""
    return observed(run)[0]


def observed(run: Callable[[], Any]) -> tuple[float, float]:
    """Return the growth of memory during a call as :func:`peak_memory` does, and its seconds."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return float("nan"), timed(run)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")

    def read(key: str) -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith(key)).split()[1])

    before = read("VmRSS")
    seconds = timed(run)
    return (read("VmHWM") - before) / 1024, seconds
