"""What was found a moment ago, so that a look at another layer of it costs nothing; bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from torch import Tensor

from ..explanations.explanation import Explanation
from ..results.input_origin import ImageOrigin

BYTES = 256 * 2**20


class Kept:
    """The things used last, as long as they fit.

    Args:
        most: bytes that they may take together.
    """

    def __init__(self, most: int = BYTES) -> None:
        self.most = most
        self.bytes = 0
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """What is kept under a key, or ``None``."""
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return self._found[key][0]

    def add(self, key: Hashable, found: Any, size: int | None = None) -> None:
        """Keep something; what was not used for longest makes room.

        Args:
            key: what it answers.
            found: explanations, or something else whose size is given.
            size: in bytes; of explanations it is known.
        """
        size = sum(map(size_of, found)) if size is None else size
        with self._lock:
            self.bytes -= self._found.pop(key, (None, 0))[1]
            self._found[key] = found, size
            self.bytes += size
            while self.bytes > self.most and self._found:
                _, (_, freed) = self._found.popitem(last=False)
                self.bytes -= freed

    def __len__(self) -> int:
        return len(self._found)


def size_of(e: Explanation) -> int:
    """Bytes that an explanation takes, but for small things."""
    tensors = [value for value in vars(e).values() if isinstance(value, Tensor)] + list(e.streams.values())
    pictures = [o.image for origins in e.origins for o in origins.values() if isinstance(o, ImageOrigin)]
    return sum(t.numel() * t.element_size() for t in tensors) + sum(picture.nbytes for picture in pictures)
