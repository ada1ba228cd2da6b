"""What worker processes are told about memory: what one batch has freed is kept for the next.

By default glibc hands blocks of more than 32 MiB back to the system when they are freed, and gets them again, page by
page, for the next batch: of long texts on CPUs that took a tenth of all time. Elsewhere than with glibc these variables
say nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


@contextmanager
def memory_kept() -> Iterator[None]:
    """Processes that are started meanwhile keep their memory; what the user has set stays."""
    new = {name: value for name, value in ALLOCATOR.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
