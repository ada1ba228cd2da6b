"""A bounded cache of recent results, so that looking at another layer of one runs no model."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from cachetools import LRUCache
from torch import Tensor

from ..explanations.explanation import Explanation
from ..results.input_origin import ImageOrigin

MAX_BYTES = 256 * 2**20


class ResultCache:
    """The most recently used results, within a bound on their total size.

    Args:
        max_bytes: the bound. A result that is larger by itself is not stored.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: LRUCache[Hashable, tuple[Any, int]] = LRUCache(max_bytes, getsizeof=lambda entry: entry[1])

    @property
    def bytes(self) -> int:
        """The total size of the stored results."""
        return int(self._entries.currsize)

    def get(self, key: Hashable) -> Any:
        """Return the result stored under a key, or ``None``."""
        with self._lock:
            return self._entries.get(key, (None, 0))[0]

    def add(self, key: Hashable, result: Any, size: int | None = None) -> None:
        """Store a result in place of the least recently used ones.

        Args:
            key: everything that the result depends on.
            result: explanations, or anything else together with its size.
            size: in bytes; computed for explanations.
        """
        size = sum(map(size_of, result)) if size is None else size
        with self._lock:
            self._entries.pop(key, None)
            if size <= self.max_bytes:
                self._entries[key] = result, size

    def __len__(self) -> int:
        return len(self._entries)


def size_of(e: Explanation) -> int:
    """Return the bytes of an explanation's tensors and images."""
    tensors = [value for value in vars(e).values() if isinstance(value, Tensor)] + list(e.streams.values())
    images = [o.image for origins in e.origins for o in origins.values() if isinstance(o, ImageOrigin)]
    return sum(t.numel() * t.element_size() for t in tensors) + sum(image.nbytes for image in images)
