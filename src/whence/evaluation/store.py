"""The output directory of an evaluation, written as it goes, so that an interrupted evaluation can resume.

A directory holds ``settings.json``, ``parts/*.parquet`` while the work goes on, and in the end ``samples.parquet`` (one
row per sample, method and measure), ``results.json`` (every value with its interval) and ``table.txt``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .._utils.atomic_files import write
from .._utils.optional_imports import need
from .._utils.parquet_directory import ParquetDirectory
from ..errors import FileError
from .measurement import Measurement
from .results import Evaluation

PURPOSE = "results on disk"
EXTRA = "evaluation"
SETTINGS = "settings.json"


class EvaluationDirectory:
    """The output directory of one evaluation.

    Args:
        directory: created if it does not exist.
        settings: what the results depend on; a directory of other results is an error.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", PURPOSE, EXTRA)
        self.directory = Path(directory)
        self.files = ParquetDirectory(
            directory=self.directory,
            kind="evaluation",
            folder="parts",
            prefix="",
            digits=6,
            purpose=PURPOSE,
            extra=EXTRA,
            remedy="remove it, and its samples are measured again.",
        )
        self.files.parts.mkdir(parents=True, exist_ok=True)
        path = self.directory / SETTINGS
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        self.settings = self.files.check_settings(stored, settings)
        if stored is None:
            self.files.write_json(SETTINGS, self.settings)

    def rows(self) -> list[Measurement]:
        """Return all measurements so far."""
        out: list[Measurement] = []
        for path in self.files.paths():
            table = self.files.read(path)
            try:
                out += [_from_record(record) for record in table.to_pylist()]
            except (ValueError, KeyError, TypeError) as error:
                raise self.files.damaged(path, error) from error
        return out

    def add(self, rows: Sequence[Measurement]) -> None:
        """Write the measurements of some samples as one part, atomically."""
        last = max(map(self.files.number, self.files.paths()), default=-1)
        self.files.write_part(last + 1, _to_table(rows))

    def finish(self, found: Evaluation) -> None:
        """Write the results."""
        self.files.write_table(self.directory / "samples.parquet", _to_table(found.rows))
        self.files.write_json("results.json", found.summary())
        write(self.directory / "table.txt", f"{found.table()}\n".encode())


def load(directory: str | Path) -> Evaluation:
    """Read an evaluation from its directory, finished or not.

    Example:
        >>> print(whence.evaluation.load("results/sst2").table())
    """
    path = Path(directory) / SETTINGS
    if not path.exists():
        raise FileError(f"There is no evaluation in '{directory}': it has no settings.json.")
    stored = EvaluationDirectory(directory, json.loads(path.read_text(encoding="utf-8")))
    results = Path(directory) / "results.json"
    summary = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    return Evaluation(stored.settings, stored.rows(), summary.get("refused", {}), summary.get("warned", {}))


def _from_record(record: Mapping[str, Any]) -> Measurement:
    values = {f.name: record[f.name] for f in fields(Measurement)}
    return Measurement(**{**values, "vector": tuple(values["vector"])})


def _to_table(rows: Sequence[Measurement]) -> Any:
    arrow = need("pyarrow", PURPOSE, EXTRA)
    types = {"vector": arrow.list_(arrow.float64()), "seconds": arrow.float64()} | dict.fromkeys(
        ("prediction", "target", "label"), arrow.int64()
    )
    schema = arrow.schema([(f.name, types.get(f.name, arrow.string())) for f in fields(Measurement)])
    return arrow.Table.from_pylist([asdict(row) for row in rows], schema)
