"""A run on disk: a manifest, and parts that are whole or absent.

``manifest.json`` says what the rows depend on; ``rows/part-00000000.parquet`` and so on hold them, each for as many
samples of the dataset, in its order. A part is written beside and then renamed, so what is there is whole, and a run
goes on from what is there.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._utils.atomic_files import write
from .._utils.optional_imports import need
from .._utils.settings_diff import require_same
from ..errors import FileError, WriteError
from .dataset_parts import Chunks
from .worker import Done

FORMAT, VERSION = "whence-run", 1


class Shards:
    """The files of one run.

    Args:
        directory: where they are; made if it is not there.
        settings: what the rows depend on; a directory with rows of other settings is refused.
        source: the dataset's name, or where it lies; what it holds is compared, not this.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any], source: str = "") -> None:
        self.source = source
        self.directory = Path(directory)
        self.rows = self.directory / "rows"
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        if (self.directory / "manifest.json").exists():
            require_same(self.directory, "run", read_manifest(directory)["settings"], self.settings)
        self._clear()
        self.manifest(complete=False)

    def _clear(self) -> None:
        """Remove what a run that was killed had begun to write."""
        for beside in self.rows.glob(".*"):
            with contextlib.suppress(OSError):
                beside.unlink()

    def manifest(self, **more: Any) -> None:
        """Write what the run is, and how far it has come."""
        told = {"format": FORMAT, "version": VERSION, "source": self.source, "settings": self.settings, **more}
        write(self.directory / "manifest.json", json.dumps(told, indent=1).encode())

    def done(self) -> dict[int, Mapping[str, Any]]:
        """Of each part that is there, what is known of it without reading its rows; a damaged one is removed."""
        out: dict[int, Mapping[str, Any]] = {}
        for path in sorted(self.rows.glob("part-*.parquet")):
            known = part(path)
            if known is None:
                path.unlink()
            else:
                out[int(path.stem.removeprefix("part-"))] = known
        return out

    def same(self, chunks: Chunks, known: Mapping[int, Mapping[str, Any]]) -> None:
        """Refuse a dataset that has changed since some parts of it were explained."""
        last = max(known, default=-1)
        left = set(known)
        for chunk in chunks:
            if chunk.number > last:
                break
            if chunk.number in known and known[chunk.number]["digest"] != chunk.digest:
                first = chunk.number * chunks.size + 1
                raise FileError(
                    f"The dataset has changed since '{self.directory}' was written: samples {first} to "
                    f"{first + len(chunk.samples) - 1} are not what they were. Choose another directory, or remove it."
                )
            left.discard(chunk.number)
        if left:
            raise FileError(
                f"The dataset has become shorter since '{self.directory}' was written. Choose another directory, or "
                "remove it."
            )

    def add(self, done: Done) -> None:
        """Write a part, whole or not at all."""
        parquet = need("pyarrow.parquet", "runs over datasets", "data")
        told = {"digest": done.digest, "samples": done.samples, "failed": done.failed}
        table = done.table.replace_schema_metadata({FORMAT: json.dumps(told)})
        content = io.BytesIO()
        parquet.write_table(table, content, compression="zstd")
        write(self.rows / f"part-{done.number:08d}.parquet", content.getvalue())


def part(path: Path) -> dict[str, Any] | None:
    """What a part says of itself; ``None`` if it is damaged."""
    arrow, parquet = (need(name, "runs over datasets", "data") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        told = json.loads(parquet.read_metadata(path).metadata[FORMAT.encode()])
        return dict(told) if {"digest", "samples", "failed"} <= told.keys() else None
    except (OSError, arrow.ArrowException, KeyError, TypeError, ValueError):
        return None


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """What a run is; a sentence where there is none, or a damaged one."""
    path = Path(directory) / "manifest.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"There is no run in '{directory}': it has no manifest.json.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"'{path}' cannot be read ({error}): the run has to begin anew, elsewhere.") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("settings"), dict):
        raise FileError(f"'{path}' is no manifest of a run.")
    if told.get("version") != VERSION:
        raise FileError(f"'{path}' is of version {told.get('version')}; this Whence reads version {VERSION}.")
    return told


def tables(directory: str | Path) -> Iterator[Any]:
    """The rows of a run, part by part, in the dataset's order, as Arrow tables."""
    parquet = need("pyarrow.parquet", "runs over datasets", "data")
    read_manifest(directory)
    for path in sorted((Path(directory) / "rows").glob("part-*.parquet")):
        try:
            yield parquet.read_table(path)
        except (OSError, ValueError) as error:
            raise FileError(f"'{path}' is damaged ({error}): --resume explains its samples again.") from error


def prepare(directory: Path, resume: bool) -> None:
    """Say before any work is done that a directory is not for this run, or cannot be written.

    Args:
        directory: made if it is not there.
        resume: go on with what is there; without it a directory that holds a run is refused.
    """
    if (directory / "manifest.json").exists():
        if not resume:
            raise FileError(
                f"'{directory}' holds a run already. Go on with it by --resume (resume=True), or choose another one."
            )
    elif directory.is_dir() and any(path.name != "rows" or any(path.iterdir()) for path in directory.iterdir()):
        raise FileError(f"'{directory}' holds other files, and no run: choose another directory.")
    try:
        (directory / "rows").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            f"'{directory}' cannot be written: {error.strerror or error}. Choose another directory."
        ) from error
