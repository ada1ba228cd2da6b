"""A dataset in chunks: each has as many samples as one file of results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .._utils.fingerprint import of_values
from ..datasets import Dataset, Item
from ..errors import InputError


@dataclass(frozen=True)
class JobSample:
    """A sample as a worker receives it.

    Attributes:
        id: as in the dataset.
        input: as :class:`whence.Explainer` takes it.
        label: the dataset's label.
        error: why the sample could not be read, if so.
    """

    id: str
    input: Any = None
    label: str | int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Samples that one worker explains, and whose rows are in one file.

    Attributes:
        number: its place in the dataset.
        samples: in the dataset's order.
        digest: hash of their ids, inputs and labels.
    """

    number: int
    samples: tuple[JobSample, ...]
    digest: str


@dataclass(frozen=True)
class ChunkedDataset:
    """A dataset in chunks, read lazily.

    The batches of a worker depend on the chunk alone, so the rows are bit-identical whatever worker explains it, and
    in whatever order.

    Attributes:
        dataset: the samples.
        size: the number of samples in a chunk.
        limit: the number of samples that are read; ``None``: all.
        skip: the numbers of chunks that are finished.
    """

    dataset: Dataset
    size: int
    limit: int | None = None
    skip: frozenset[int] = frozenset()

    @property
    def total(self) -> int | None:
        """The number of samples, if it is known."""
        counts = [count for count in (self.dataset.count, self.limit) if count is not None]
        return min(counts, default=None)

    def __iter__(self) -> Iterator[Chunk]:
        samples = islice(self._samples(), self.limit)
        number = 0
        while chunk := tuple(islice(samples, self.size)):
            if number not in self.skip:
                yield Chunk(number, chunk, _digest(chunk))
            number += 1

    def _samples(self) -> Iterator[JobSample]:
        items = iter(self.dataset)
        row = 0
        while True:
            row += 1
            try:
                item: Item = next(items)
            except StopIteration:
                return
            except InputError as error:
                yield JobSample(f"row {row}", error=str(error))
            else:
                yield JobSample(item.id, item.input, item.label)


def _digest(samples: tuple[JobSample, ...]) -> str:
    """Return a hash of the samples; an image file is identified by its name and size."""
    return of_values((s.id, s.input, s.label, s.error) for s in samples)
