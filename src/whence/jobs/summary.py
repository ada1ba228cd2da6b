"""The summary of a run: words and maps by class, and the samples to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .row_schema import Row

Group = tuple[str, str]  # a method and a class


@dataclass
class Summary:
    """What drives each class over the dataset of a run.

    Attributes:
        directory: of the run.
        samples: the number of explanations.
        failed: the number of rows with an error instead.
        words: a row per method, class and word: ``count`` (samples it is in), ``mean`` relevance, ``low``, ``high``.
        maps: a row per method and class of images: ``count``, ``height``, ``width``, mean ``map``.
        examples: a row per sample worth a look, with its ``kind``: ``strongest``, ``weakest``, ``wrong and sure``,
            ``unlike its class``.
    """

    directory: Path
    samples: int = 0
    failed: int = 0
    words: list[Row] = field(default_factory=list)
    maps: list[Row] = field(default_factory=list)
    examples: list[Row] = field(default_factory=list)

    def groups(self) -> list[Group]:
        """Return methods and classes, in order."""
        return list(dict.fromkeys((row["method"], row["class"]) for row in [*self.words, *self.maps]))

    def top(self, group: Group, k: int = 15, against: bool = False) -> list[Row]:
        """Return the words with the most certain relevance for a class, or against it."""
        sign = -1 if against else 1
        rows = [r for r in self.words if (r["method"], r["class"]) == group and sign * r["sure"] > 0]
        return sorted(rows, key=lambda r: -sign * r["sure"])[:k]
