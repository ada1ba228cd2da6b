"""``whence.summarize``: what drives each class over a whole dataset.

The rows are read twice, part by part: first to sum up words and maps, then to compare each sample with its class.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._utils.atomic_files import write
from .._utils.optional_imports import need
from .._utils.parquet_directory import write_parquet
from .output_dir import read_manifest, tables
from .report import page
from .row_schema import Row, schema
from .summary import Group, Summary

SHOWN = 5  # samples of each kind


@dataclass
class Tally:
    """A running mean with its interval."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.total / self.count

    @property
    def half(self) -> float:
        """Half the width of the mean's 95 % interval, by Student's t; infinite for one value."""
        if self.count < 2:
            return math.inf
        variance = max(0.0, self.squares - self.total * self.total / self.count) / (self.count - 1)
        return _t_quantile(self.count - 1) * math.sqrt(variance / self.count)

    @property
    def sure(self) -> float:
        """The end of the interval that is nearer to zero, or zero if the interval contains it."""
        return math.copysign(max(0.0, abs(self.mean) - self.half), self.mean)


def summarize(directory: str | Path, min_count: int = 5) -> Summary:
    """Summarise what drives each class over the dataset of a run.

    Words are ranked by the end of their interval that is nearer to zero, so that a rare word with a large score does
    not lead the table; words in fewer than ``min_count`` samples are left out.

    Args:
        directory: the output directory of :func:`whence.run`.
        min_count: the number of samples that a word must be in.

    Returns:
        The summary, which is also written to ``directory/summary``: ``words.parquet``, ``maps.parquet``,
        ``examples.parquet`` and ``report.html``.

    Example:
        >>> found = whence.summarize("why")
        >>> [row["word"] for row in found.top(("conservative-lrp", "positive"), 3)]
        ['brilliant', 'wonderful', 'best']
    """
    read_manifest(directory)
    totals = _Totals()
    for row in _rows(directory):
        totals.add(row)
    summary = Summary(
        Path(directory),
        totals.samples,
        totals.failed,
        totals.word_rows(min_count),
        totals.map_rows(),
        _examples(directory, totals.words, min_count),
    )
    _write(summary)
    return summary


@dataclass
class _MeanMap:
    """The sum of maps of one size."""

    total: np.ndarray[Any, Any]
    count: int = 0

    def add(self, values: np.ndarray[Any, Any]) -> None:
        self.count += 1
        self.total += values


@dataclass
class _Totals:
    """What is summed up over the rows of a run."""

    samples: int = 0
    failed: int = 0
    words: dict[Group, dict[str, Tally]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Tally)))
    maps: dict[tuple[Group, tuple[int, int]], _MeanMap] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add a row."""
        if row["error"] is not None:
            self.failed += 1
            return
        self.samples += 1
        group = (row["method"], row["target"])
        for word, score in _words(row).items():
            self.words[group][word].add(score)
        if row["map"] is not None:
            shape = (row["height"], row["width"])
            mean = self.maps.setdefault((group, shape), _MeanMap(np.zeros(shape)))
            mean.add(np.array(row["map"], np.float64).reshape(shape) * row["scale"])

    def word_rows(self, min_count: int) -> list[Row]:
        """Return a row for each method, class and word in at least ``min_count`` samples."""
        return [
            {
                "method": method, "class": name, "word": word, "count": tally.count, "mean": tally.mean,
                "low": tally.mean - tally.half, "high": tally.mean + tally.half, "sure": tally.sure,
            }
            for (method, name), tallies in sorted(self.words.items())
            for word, tally in sorted(tallies.items()) if tally.count >= min_count
        ]  # fmt: skip

    def map_rows(self) -> list[Row]:
        """Return a row for each method, class and size of map."""
        return [
            {
                "method": method, "class": name, "count": mean.count, "height": height, "width": width,
                "map": (mean.total / mean.count).flatten().tolist(),
            }
            for ((method, name), (height, width)), mean in sorted(self.maps.items(), key=lambda item: item[0])
        ]  # fmt: skip


def _rows(directory: str | Path) -> Iterator[Row]:
    for table in tables(directory):
        yield from table.to_pylist()


def _words(row: Row) -> dict[str, float]:
    """Return the relevance of each word of a sample, summed over its occurrences, in lower case."""
    out: dict[str, float] = defaultdict(float)
    for word in row["words"] or ():
        if any(c.isalnum() for c in word["text"]):
            out[word["text"].lower()] += word["score"]
    return out


def _examples(directory: str | Path, words: Mapping[Group, Mapping[str, Tally]], min_count: int) -> list[Row]:
    kinds: dict[str, Callable[[Row], float | None]] = {
        "strongest": lambda row: row["probability"] if row["probability"] is not None else row["value"],
        "weakest": lambda row: -row["probability"] if row["probability"] is not None else -abs(row["value"]),
        "wrong and sure": lambda row: row["probability"] if _wrong(row) else None,
        "unlike its class": lambda row: _unlike(row, words[row["method"], row["target"]], min_count),
    }
    best: dict[tuple[str, str], list[tuple[float, int, Row]]] = defaultdict(list)
    counter = itertools.count()
    for row in _rows(directory):
        if row["error"] is not None:
            continue
        for kind, measure in kinds.items():
            value = measure(row)
            if value is None:
                continue
            heap = best[kind, row["method"]]
            heapq.heappush(heap, (value, -next(counter), row))
            if len(heap) > SHOWN:
                heapq.heappop(heap)
    return [
        row | {"kind": kind, "measure": value}
        for (kind, _), heap in best.items()
        for value, _, row in sorted(heap, key=lambda item: (-item[0], -item[1]))
    ]


def _wrong(row: Row) -> bool:
    """Return whether the dataset's label differs from the predicted class, by name or index."""
    label = row["label"]
    if label is None or row["prediction"] is None or row["probability"] is None:
        return False
    predicted = {row["prediction"].lower(), str(row["prediction_index"])}
    return str(label).lower() not in predicted


def _unlike(row: Row, known: Mapping[str, Tally], min_count: int) -> float | None:
    """Return minus the cosine between a sample's word scores and the class means; ``None`` if few words are known."""
    pairs = [(score, known[word].mean) for word, score in _words(row).items() if known[word].count >= min_count]
    if len(pairs) < 3:
        return None
    own, mean = np.array(pairs).T
    size = float(np.linalg.norm(own) * np.linalg.norm(mean))
    return -float(own @ mean) / size if size else None


def _write(summary: Summary) -> None:
    arrow = need("pyarrow", "summaries", "data")
    text = arrow.string()
    number = arrow.float64()
    count = arrow.int64()
    group = [("method", text), ("class", text)]
    words = [*group, ("word", text), ("count", count), *((key, number) for key in ("mean", "low", "high", "sure"))]
    maps = [*group, ("count", count), ("height", count), ("width", count), ("map", arrow.list_(number))]
    examples = schema().append(arrow.field("kind", text)).append(arrow.field("measure", number))
    folder = summary.directory / "summary"
    _write_table(folder / "words.parquet", summary.words, arrow.schema(words))
    _write_table(folder / "maps.parquet", summary.maps, arrow.schema(maps))
    _write_table(folder / "examples.parquet", summary.examples, examples)
    write(folder / "report.html", page(summary).encode())


def _write_table(path: Path, rows: list[Row], columns: Any) -> None:
    arrow = need("pyarrow", "summaries", "data")
    write_parquet(path, arrow.Table.from_pylist(rows, schema=columns), "summaries", "data")


def _t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to within 0.5 % (Cornish-Fisher expansion of the normal quantile)."""
    z = 1.959963985
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    if freedom < 4:
        return {1: 12.7062, 2: 4.30265, 3: 3.18245}[freedom]
    return z + sum((term / freedom**i for i, term in enumerate(terms, 1)), start=0.0)
