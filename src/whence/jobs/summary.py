"""What drives a model over a whole dataset: words and regions by class, and the samples to look at.

Two passes over the rows, part by part: the first adds up, the second compares each sample with its class.
"""

from __future__ import annotations

import heapq
import io
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
from .output_dir import read_manifest, tables
from .row_schema import Row, schema

Group = tuple[str, str]  # a method and a class
SHOWN = 5  # samples of each kind


@dataclass
class Tally:
    """A number that is added up: how many there were, their mean and its interval."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count

    @property
    def half(self) -> float:
        """Half the width of the mean's 95 % interval, by Student's t; infinite for one alone."""
        if self.count < 2:
            return math.inf
        variance = max(0.0, self.squares - self.total * self.total / self.count) / (self.count - 1)
        return _t(self.count - 1) * math.sqrt(variance / self.count)

    @property
    def sure(self) -> float:
        """The end of the interval that is nearer to zero, or zero if it is inside: how much it is at least."""
        return math.copysign(max(0.0, abs(self.mean) - self.half), self.mean)


@dataclass
class Summary:
    """What was found over a dataset.

    Attributes:
        directory: of the run.
        samples: how many explanations there are.
        failed: how many rows have an error in place of one.
        words: a row per method, class and word: ``count`` (samples it is in), ``mean`` relevance, ``low``, ``high``.
        maps: a row per method and class of pictures: ``count``, ``height``, ``width``, mean ``map``.
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
        """Methods and classes, in order."""
        return list(dict.fromkeys((row["method"], row["class"]) for row in [*self.words, *self.maps]))

    def top(self, group: Group, k: int = 15, against: bool = False) -> list[Row]:
        """The words that surely speak most for a class, or against it."""
        sign = -1 if against else 1
        rows = [r for r in self.words if (r["method"], r["class"]) == group and sign * r["sure"] > 0]
        return sorted(rows, key=lambda r: -sign * r["sure"])[:k]


def summarize(directory: str | Path, min_count: int = 5) -> Summary:
    """What drives each class over the dataset of a run.

    Words are ranked by the end of the interval that is nearer to zero, so that a rare word with a large score does not
    lead the table; words in fewer than ``min_count`` samples are left out.

    Args:
        directory: where :func:`whence.run` wrote.
        min_count: samples that a word must be in.

    Returns:
        The summary, which is also written to ``directory/summary``: ``words.parquet``, ``maps.parquet``,
        ``examples.parquet`` and ``report.html``.

    Example:
        >>> found = whence.summarize("why")
        >>> [row["word"] for row in found.top(("conservative-lrp", "positive"), 3)]
        ['brilliant', 'wonderful', 'best']
    """
    read_manifest(directory)
    out = Summary(Path(directory))
    words: dict[Group, dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
    maps: dict[tuple[Group, tuple[int, int]], tuple[list[int], np.ndarray[Any, Any]]] = {}
    for row in _rows(directory):
        if row["error"] is not None:
            out.failed += 1
            continue
        out.samples += 1
        group = (row["method"], row["target"])
        for word, score in _words(row).items():
            words[group][word].add(score)
        if row["map"] is not None:
            shape = (row["height"], row["width"])
            count, total = maps.setdefault((group, shape), ([0], np.zeros(shape)))
            count[0] += 1
            total += np.array(row["map"], np.float64).reshape(shape) * row["scale"]
    out.words = [
        {
            "method": group[0], "class": group[1], "word": word, "count": t.count, "mean": t.mean,
            "low": t.mean - t.half, "high": t.mean + t.half, "sure": t.sure,
        }
        for group, found in sorted(words.items()) for word, t in sorted(found.items()) if t.count >= min_count
    ]  # fmt: skip
    out.maps = [
        {"method": group[0], "class": group[1], "count": count[0], "height": shape[0], "width": shape[1],
         "map": (total / count[0]).flatten().tolist()}
        for (group, shape), (count, total) in sorted(maps.items(), key=lambda item: item[0])
    ]  # fmt: skip
    out.examples = _examples(directory, words, min_count)
    _write(out)
    return out


def _rows(directory: str | Path) -> Iterator[Row]:
    for table in tables(directory):
        yield from table.to_pylist()


def _words(row: Row) -> dict[str, float]:
    """What each word of a sample counts, all its places together; in small letters."""
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
    """Whether the dataset says another class, in the model's own words or numbers."""
    label = row["label"]
    if label is None or row["prediction"] is None or row["probability"] is None:
        return False
    said = {row["prediction"].lower(), str(row["prediction_index"])}
    return str(label).lower() not in said


def _unlike(row: Row, known: Mapping[str, Tally], min_count: int) -> float | None:
    """How little a sample's words count as in its class: minus the cosine of the two; ``None`` if few are known."""
    pairs = [(score, known[word].mean) for word, score in _words(row).items() if known[word].count >= min_count]
    if len(pairs) < 3:
        return None
    own, mean = np.array(pairs).T
    size = float(np.linalg.norm(own) * np.linalg.norm(mean))
    return -float(own @ mean) / size if size else None


def _write(found: Summary) -> None:
    from .report import page

    arrow, parquet = (need(name, "summaries", "data") for name in ("pyarrow", "pyarrow.parquet"))
    folder = found.directory / "summary"
    text, number, count = arrow.string(), arrow.float64(), arrow.int64()
    named = [("method", text), ("class", text)]
    words = [*named, ("word", text), ("count", count), *((key, number) for key in ("mean", "low", "high", "sure"))]
    maps = [*named, ("count", count), ("height", count), ("width", count), ("map", arrow.list_(number))]
    examples = schema().append(arrow.field("kind", text)).append(arrow.field("measure", number))
    for name, rows, kinds in (
        ("words", found.words, arrow.schema(words)), ("maps", found.maps, arrow.schema(maps)),
        ("examples", found.examples, examples),
    ):  # fmt: skip
        content = io.BytesIO()
        parquet.write_table(arrow.Table.from_pylist(rows, schema=kinds), content, compression="zstd")
        write(folder / f"{name}.parquet", content.getvalue())
    write(folder / "report.html", page(found).encode())


def _t(freedom: int) -> float:
    """The 97.5 % point of Student's t, to better than 0.5 % (Cornish and Fisher's expansion of the normal point)."""
    z = 1.959963985
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    if freedom < 4:
        return {1: 12.7062, 2: 4.30265, 3: 3.18245}[freedom]
    return z + sum((term / freedom**i for i, term in enumerate(terms, 1)), start=0.0)
