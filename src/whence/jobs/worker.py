"""A worker: it explains chunks of a dataset with a model that is loaded once."""

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
from .dataset_parts import Chunk, JobSample
from .row_schema import Row, explanation_columns, sample_columns, schema
from .worker_config import WorkerConfig

#: the largest number of tokens in a batch, which bounds its memory
TOKENS = 8192


@dataclass
class ChunkResult:
    """The rows of an explained chunk.

    Attributes:
        number: the number of the chunk.
        digest: hash of its samples.
        table: its rows, in the dataset's order, as an Arrow table.
        samples: the number of samples.
        failed: the number of rows with an error.
        warned: the warnings, each with its count.
    """

    number: int
    digest: str
    table: Any
    samples: int
    failed: int
    warned: Counter[str]


class Worker:
    """A worker with a loaded model.

    Example:
        >>> Worker(WorkerConfig("my-model", (("conservative-lrp", {}),)))(chunk).table.to_pandas()
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.explainer = config.explainer()
        self.schema = schema()

    def __call__(self, chunk: Chunk) -> ChunkResult:
        """Explain a chunk: one row per sample and method; a failure gives a row with its error."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WhenceWarning)
            rows = self._rows(chunk)
        warned = Counter(re.sub(r"\d+", "…", str(w.message)) for w in caught if issubclass(w.category, WhenceWarning))
        arrow = need("pyarrow", "runs over datasets", "data")
        table = arrow.Table.from_pylist(rows, schema=self.schema)
        failed = sum(row["error"] is not None for row in rows)
        return ChunkResult(chunk.number, chunk.digest, table, len(chunk.samples), failed, warned)

    def _rows(self, chunk: Chunk) -> list[Row]:
        read: dict[int, Sample] = {}
        rows = [sample_columns(sample) for sample in chunk.samples]
        for i, sample in enumerate(chunk.samples):
            if sample.error is None:
                try:
                    read[i] = self.explainer.read(sample.input)
                except (WhenceError, OSError, ValueError) as error:
                    rows[i]["error"] = _message(error)
        out: list[list[Row]] = [[] for _ in rows]
        common = {"model": self.config.fingerprint, "whence": metadata.version("whence")}
        for method, options in self.config.methods:
            columns = {"method": method, "options": json.dumps(dict(options), sort_keys=True)} | common
            explained = self._explained(chunk.samples, read, method, dict(options))
            for i, row in enumerate(rows):
                out[i].append(row | explained.get(i, {}) | columns)
        return [row for several in out for row in several]

    def _explained(
        self, samples: tuple[JobSample, ...], read: dict[int, Sample], method: str, options: dict[str, Any]
    ) -> dict[int, Row]:
        places = list(read)
        out: dict[int, Row] = {}
        for batch in batches([read[i] for i in places], self.config.batch_size, TOKENS):
            chosen = [places[k] for k in batch]
            for i, result in zip(chosen, self._batch(samples, read, chosen, method, options), strict=True):
                out[i] = {"error": _message(result)} if isinstance(result, Exception) else explanation_columns(result)
        return out

    def _batch(
        self,
        samples: tuple[JobSample, ...],
        read: dict[int, Sample],
        places: list[int],
        method: str,
        options: dict[str, Any],
    ) -> list[Explanation | Exception]:
        """Return an explanation or an error for each sample; if the batch fails, each is explained alone."""
        target: Any = self.config.target
        try:
            if target == "label":
                target = [samples[i].label for i in places]
                if None in target:
                    raise WhenceError("The sample has no label to explain.")
            return list(self.explainer.batch([read[i] for i in places], method, target, options))
        except (WhenceError, RuntimeError, ValueError, IndexError) as error:
            if len(places) == 1:
                return [error]
            return [self._batch(samples, read, [i], method, options)[0] for i in places]


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, WhenceError) else f"{type(error).__name__}: {str(error).splitlines()[0]}"
