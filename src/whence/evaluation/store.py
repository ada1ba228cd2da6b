"""An evaluation on disk: written as it goes, so that nothing is lost, and taken up again where it stopped.

A directory holds ``settings.json``, ``parts/*.parquet`` while the work goes on, and in the end ``samples.parquet`` (one
row per sample, method and measure), ``results.json`` (every value with its interval) and ``table.txt``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .._utils.atomic_files import write
from .._utils.optional_imports import need
from .._utils.settings_diff import require_same
from ..errors import FileError
from .measurement import Row
from .results import Evaluation


class Shards:
    """The files of one evaluation.

    Args:
        directory: where they are; made if it is not there.
        settings: what the results depend on; a directory of other results is refused.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", "results on disk", "evaluation")
        self.directory = Path(directory)
        self.parts = self.directory / "parts"
        self.parts.mkdir(parents=True, exist_ok=True)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        known = self.directory / "settings.json"
        if known.exists():
            before = json.loads(known.read_text(encoding="utf-8"))
            require_same(self.directory, "evaluation", before, self.settings)
        else:
            write(known, json.dumps(self.settings, indent=1).encode())

    def rows(self) -> list[Row]:
        """All that was measured so far."""
        parquet = need("pyarrow.parquet", "results on disk", "evaluation")
        out: list[Row] = []
        for path in sorted(self.parts.glob("*.parquet")):
            try:
                out += [_row(record) for record in parquet.read_table(path).to_pylist()]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise FileError(
                    f"'{path}' is damaged ({error}): remove it, and its samples are measured again."
                ) from error
        return out

    def add(self, rows: Sequence[Row]) -> None:
        """Write the measurements of some samples, whole or not at all."""
        last = max((int(path.stem) for path in self.parts.glob("*.parquet")), default=-1)
        _write_rows(self.parts / f"{last + 1:06d}.parquet", rows)

    def finish(self, found: Evaluation) -> None:
        """Write what was found."""
        _write_rows(self.directory / "samples.parquet", found.rows)
        write(self.directory / "results.json", json.dumps(found.summary(), indent=1).encode())
        write(self.directory / "table.txt", f"{found.table()}\n".encode())


def load(directory: str | Path) -> Evaluation:
    """An evaluation from its directory, finished or not.

    Example:
        >>> print(whence.evaluation.load("results/sst2").table())
    """
    path = Path(directory) / "settings.json"
    if not path.exists():
        raise FileError(f"There is no evaluation in '{directory}': it has no settings.json.")
    shards = Shards(directory, json.loads(path.read_text(encoding="utf-8")))
    results = Path(directory) / "results.json"
    told = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    return Evaluation(shards.settings, shards.rows(), told.get("refused", {}), told.get("warned", {}))


def _row(record: Mapping[str, Any]) -> Row:
    values = {f.name: record[f.name] for f in fields(Row)}
    return Row(**{**values, "vector": tuple(values["vector"])})


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    arrow, parquet = (need(name, "results on disk", "evaluation") for name in ("pyarrow", "pyarrow.parquet"))
    kinds = {"vector": arrow.list_(arrow.float64()), "seconds": arrow.float64()} | dict.fromkeys(
        ("prediction", "target", "label"), arrow.int64()
    )
    schema = arrow.schema([(f.name, kinds.get(f.name, arrow.string())) for f in fields(Row)])
    content = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist([asdict(row) for row in rows], schema), content, compression="zstd")
    write(path, content.getvalue())
