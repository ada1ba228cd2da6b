"""Python's collector of cycles, held off while a model runs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles until the block ends: a trace makes thousands of small objects and not one cycle.

    They go when the trace does, by counting. Searching them, and all of the process with them, cost a fifth of an
    explanation of a short text.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
