"""The output directory of a run: a manifest, and parts that are complete or absent.

``manifest.json`` holds the settings that the rows depend on; ``rows/part-00000000.parquet`` and so on hold the rows,
each for the same number of samples, in the dataset's order. A run resumes from the parts that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._utils.parquet_directory import ParquetDirectory
from ..errors import FileError, WriteError
from .dataset_parts import ChunkedDataset
from .worker import ChunkResult

FORMAT = "whence-run"
VERSION = 1
MANIFEST = "manifest.json"


class RunDirectory:
    """The output directory of one run.

    Args:
        directory: created if it does not exist.
        settings: what the rows depend on; a directory with rows of other settings is an error.
        source: the dataset's name or path. It is recorded; only the samples are compared.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any], source: str = "") -> None:
        self.source = source
        self.directory = Path(directory)
        self.files = _files(directory)
        exists = (self.directory / MANIFEST).exists()
        self.settings = self.files.check_settings(read_manifest(directory)["settings"] if exists else None, settings)
        self.files.clear_unfinished()
        self.write_manifest(complete=False)

    def write_manifest(self, **progress: Any) -> None:
        """Write the settings, and how far the run has come."""
        head = {"format": FORMAT, "version": VERSION, "source": self.source, "settings": self.settings}
        self.files.write_json(MANIFEST, head | progress)

    def finished_parts(self) -> dict[int, Mapping[str, Any]]:
        """Return the metadata of each finished part by its number; damaged parts are removed."""
        out: dict[int, Mapping[str, Any]] = {}
        for path in self.files.paths():
            metadata = self.files.metadata(path, FORMAT)
            if metadata is None or not {"digest", "samples", "failed"} <= metadata.keys():
                path.unlink()
            else:
                out[self.files.number(path)] = metadata
        return out

    def require_same_samples(self, chunks: ChunkedDataset, finished: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise :class:`FileError` if the dataset has changed since the finished parts were written."""
        last = max(finished, default=-1)
        unseen = set(finished)
        for chunk in chunks:
            if chunk.number > last:
                break
            if chunk.number in finished and finished[chunk.number]["digest"] != chunk.digest:
                first = chunk.number * chunks.size + 1
                raise FileError(
                    f"The dataset has changed since '{self.directory}' was written: samples {first} to "
                    f"{first + len(chunk.samples) - 1} are not what they were. Choose another directory, or remove it."
                )
            unseen.discard(chunk.number)
        if unseen:
            raise FileError(
                f"The dataset has become shorter since '{self.directory}' was written. Choose another directory, or "
                "remove it."
            )

    def add(self, result: ChunkResult) -> None:
        """Write a part atomically."""
        metadata = {"digest": result.digest, "samples": result.samples, "failed": result.failed}
        table = result.table.replace_schema_metadata({FORMAT: json.dumps(metadata)})
        self.files.write_part(result.number, table)


def _files(directory: str | Path) -> ParquetDirectory:
    return ParquetDirectory(
        directory=Path(directory),
        kind="run",
        folder="rows",
        prefix="part-",
        digits=8,
        purpose="runs over datasets",
        extra="data",
        remedy="--resume explains its samples again.",
    )


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """Return the manifest of a run; raise :class:`FileError` where there is none, or a damaged one."""
    path = Path(directory) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"There is no run in '{directory}': it has no manifest.json.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"'{path}' cannot be read ({error}): the run has to begin anew, elsewhere.") from error
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != FORMAT
        or not isinstance(manifest.get("settings"), dict)
    ):
        raise FileError(f"'{path}' is no manifest of a run.")
    if manifest.get("version") != VERSION:
        raise FileError(f"'{path}' is of version {manifest.get('version')}; this Whence reads version {VERSION}.")
    return manifest


def tables(directory: str | Path) -> Iterator[Any]:
    """Yield the rows of a run part by part, in the dataset's order, as Arrow tables."""
    read_manifest(directory)
    yield from _files(directory).tables()


def prepare(directory: Path, resume: bool) -> None:
    """Create the directory, or raise before any work is done if it cannot be used.

    Args:
        directory: created if it does not exist.
        resume: continue a run that is there; otherwise a directory that holds a run is an error.
    """
    if (directory / MANIFEST).exists():
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
