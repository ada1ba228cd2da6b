"""A part of a dataset: as many samples as a file of results holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .._utils.fingerprint import of_values
from ..datasets import Dataset, Item
from ..errors import InputError


@dataclass(frozen=True)
class Given:
    """One sample as it is given to a worker.

    Attributes:
        id: as in the dataset.
        input: what :class:`whence.Explainer` takes.
        label: the class that the dataset says.
        error: why it could not be read, if it could not.
    """

    id: str
    input: Any = None
    label: str | int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Samples that are explained together, and whose rows stand in one file.

    Attributes:
        number: its place in the dataset.
        samples: in the dataset's order.
        digest: of their ids, inputs and labels.
    """

    number: int
    samples: tuple[Given, ...]
    digest: str


@dataclass(frozen=True)
class Chunks:
    """A dataset in parts, read as they are asked for.

    What a worker explains together depends on the part alone, so the rows are the same, to the bit, whoever does the
    work and in whatever order.

    Attributes:
        dataset: where the samples come from.
        size: how many are in a part.
        limit: how many are read; ``None``: all.
        skip: the numbers of parts that are done.
    """

    dataset: Dataset
    size: int
    limit: int | None = None
    skip: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[Chunk]:
        samples = islice(self._samples(), self.limit)
        number = 0
        while part := tuple(islice(samples, self.size)):
            if number not in self.skip:
                yield Chunk(number, part, _digest(part))
            number += 1

    def _samples(self) -> Iterator[Given]:
        items = iter(self.dataset)
        row = 0
        while True:
            row += 1
            try:
                item: Item = next(items)
            except StopIteration:
                return
            except InputError as error:
                yield Given(f"row {row}", error=str(error))
            else:
                yield Given(item.id, item.input, item.label)


def _digest(samples: tuple[Given, ...]) -> str:
    """A hash of what is explained; of a picture in a file, its name and its size."""
    return of_values((s.id, s.input, s.label, s.error) for s in samples)
