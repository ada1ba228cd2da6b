"""A dataset: its metadata, and a stream of samples."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..errors import InputError
from .item import Item


@dataclass(frozen=True)
class Dataset:
    """A dataset, whose samples are read lazily.

    Attributes:
        name: the dataset's name, or its path.
        split: by the dataset's own name; empty if it has no splits.
        labels: the names of its classes, in its own order; ``None`` if they are not known.
        source: the paper, or the path.
        licence: if it is known.
        items: returns a new iterator. A damaged row raises :class:`InputError` with its number; the iterator continues
            after it.
        count: the number of samples, if it is known without reading them all.

    Example:
        >>> for item in load("reviews.jsonl"):
        ...     explainer(item.input)
    """

    name: str
    split: str
    labels: tuple[str, ...] | None
    source: str
    licence: str | None
    items: Callable[[], Iterator[Item]] = field(repr=False)
    count: int | None = None

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError(f"How many samples '{self.name}' has is known only when all are read.")
        return self.count

    def __bool__(self) -> bool:
        return True  # even if its length is unknown

    def sample(self, limit: int, seed: int = 0) -> list[Item]:
        """Draw ``limit`` samples, or all if there are fewer; the draw depends on the seed, not on the file's order.

        The samples are sorted by a hash of seed and id, and the first are taken, so a larger limit adds to a smaller
        one.

        Example:
            >>> load("sst2").sample(500, seed=1)
        """
        if limit < 1:
            raise InputError(f"A sample has at least 1 item, not {limit}.")
        return heapq.nsmallest(limit, self, key=lambda item: _order(seed, item.id))


def _order(seed: int, id: str) -> bytes:
    return hashlib.sha256(f"{seed}:{id}".encode(errors="surrogatepass")).digest()
