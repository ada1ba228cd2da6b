"""A dataset: where it comes from, and its samples one after the other."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..errors import InputError
from .item import Item


@dataclass(frozen=True)
class Dataset:
    """Samples that are read as they are asked for, never all at once.

    Attributes:
        name: the set's name, or its path.
        split: the part of it, as the set itself calls it; empty if it has no parts.
        labels: the names of its classes, in its own order; ``None`` if it does not say.
        source: the paper, or the path.
        licence: if it is known.
        items: begins to read. A damaged row raises :class:`InputError` with its number; the iterator can go on after
            it.
        count: how many there are, if that is known without reading them all.

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
        return True  # also while its length is unknown

    def sample(self, limit: int, seed: int = 0) -> list[Item]:
        """``limit`` samples, or all if there are fewer: the same for a seed, in whatever order the file has them.

        The samples are put in the order of a hash of seed and id, and the first are taken. So a larger limit adds to
        a smaller one.

        Example:
            >>> load("sst2").sample(500, seed=1)
        """
        if limit < 1:
            raise InputError(f"A sample has at least 1 item, not {limit}.")
        return heapq.nsmallest(limit, self, key=lambda item: _order(seed, item.id))


def _order(seed: int, id: str) -> bytes:
    return hashlib.sha256(f"{seed}:{id}".encode(errors="surrogatepass")).digest()
