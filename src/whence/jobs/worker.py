"""Explains one part of a dataset after another, with a model that is loaded once."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from .._utils.optional_imports import need
from ..errors import WhenceError, WhenceWarning
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample, batches
from .dataset_parts import Chunk, Given
from .row_schema import Row, found, named, schema
from .worker_config import Task

#: tokens of one batch, at most: what a batch takes in memory is in proportion
TOKENS = 8192


@dataclass
class Done:
    """What became of a part.

    Attributes:
        number: the part's.
        digest: of what was explained.
        table: its rows, in the dataset's order, as an Arrow table.
        samples: how many there were.
        failed: how many rows have an error.
        warned: what there was to say, with how often.
    """

    number: int
    digest: str
    table: Any
    samples: int
    failed: int
    warned: Counter[str]


class Worker:
    """A loaded model.

    Example:
        >>> Worker(Task("my-model", (("conservative-lrp", {}),)))(chunk).table.to_pandas()
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.explainer = task.explainer()
        self.schema = schema()

    def __call__(self, chunk: Chunk) -> Done:
        """Explain a part: a row for each sample and method; what fails is a row that says why."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WhenceWarning)
            rows = self._rows(chunk)
        said = Counter(re.sub(r"\d+", "…", str(w.message)) for w in caught if issubclass(w.category, WhenceWarning))
        arrow = need("pyarrow", "runs over datasets", "data")
        table = arrow.Table.from_pylist(rows, schema=self.schema)
        failed = sum(row["error"] is not None for row in rows)
        return Done(chunk.number, chunk.digest, table, len(chunk.samples), failed, said)

    def _rows(self, chunk: Chunk) -> list[Row]:
        read: dict[int, Sample] = {}
        rows = [named(given) for given in chunk.samples]
        for i, given in enumerate(chunk.samples):
            if given.error is None:
                try:
                    read[i] = self.explainer.read(given.input)
                except (WhenceError, OSError, ValueError) as error:
                    rows[i]["error"] = _told(error)
        out: list[list[Row]] = [[] for _ in rows]
        common = {"model": self.task.fingerprint, "whence": metadata.version("whence")}
        for method, options in self.task.methods:
            which = {"method": method, "options": json.dumps(dict(options), sort_keys=True)} | common
            explained = self._explained(chunk.samples, read, method, dict(options))
            for i, row in enumerate(rows):
                out[i].append(row | explained.get(i, {}) | which)
        return [row for several in out for row in several]

    def _explained(
        self, given: tuple[Given, ...], read: dict[int, Sample], method: str, options: dict[str, Any]
    ) -> dict[int, Row]:
        places = list(read)
        out: dict[int, Row] = {}
        for batch in batches([read[i] for i in places], self.task.batch_size, TOKENS):
            chosen = [places[k] for k in batch]
            for i, answer in zip(chosen, self._batch(given, read, chosen, method, options), strict=True):
                out[i] = {"error": _told(answer)} if isinstance(answer, Exception) else found(answer)
        return out

    def _batch(
        self, given: tuple[Given, ...], read: dict[int, Sample], places: list[int], method: str, options: dict[str, Any]
    ) -> list[Explanation | Exception]:
        """An explanation of each; where the batch as a whole fails, of each alone, or why not."""
        wanted: Any = self.task.target
        try:
            if wanted == "label":
                wanted = [given[i].label for i in places]
                if None in wanted:
                    raise WhenceError("The sample has no label to explain.")
            return list(self.explainer.batch([read[i] for i in places], method, wanted, options))
        except (WhenceError, RuntimeError, ValueError, IndexError) as error:
            if len(places) == 1:
                return [error]
            return [self._batch(given, read, [i], method, options)[0] for i in places]


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, WhenceError) else f"{type(error).__name__}: {str(error).splitlines()[0]}"
