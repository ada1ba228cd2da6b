"""A directory of results that grows while the work goes on: settings, and numbered parquet files.

Every file is written atomically, so a part is complete or absent, and interrupted work resumes from the parts that are
there.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FileError
from .atomic_files import write
from .optional_imports import need
from .settings_diff import require_same


def write_parquet(path: Path, table: Any, purpose: str, extra: str) -> None:
    """Write an Arrow table to a parquet file atomically.

    Args:
        path: the file.
        table: an Arrow table.
        purpose, extra: what pyarrow is needed for, and the extra that installs it.
    """
    content = io.BytesIO()
    need("pyarrow.parquet", purpose, extra).write_table(table, content, compression="zstd")
    write(path, content.getvalue())


@dataclass(frozen=True)
class ParquetDirectory:
    """Settings and numbered parquet files in one directory.

    Attributes:
        directory: where they are.
        kind: the kind of results, for error messages: an evaluation, a run.
        folder: the name of the folder of the parts.
        prefix, digits: a part is named by the prefix and its number with so many digits.
        purpose, extra: what pyarrow is needed for, and the extra that installs it.
        remedy: what to do about a damaged part.
    """

    directory: Path
    kind: str
    folder: str
    prefix: str
    digits: int
    purpose: str
    extra: str
    remedy: str

    # -- settings ----------------------------------------------------------------------------------------------------

    def check_settings(self, stored: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings as JSON stores them; raise :class:`FileError` if they differ from the stored ones."""
        current: dict[str, Any] = json.loads(json.dumps(settings))
        if stored is not None:
            require_same(self.directory, self.kind, stored, current)
        return current

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a JSON file beside the folder of parts."""
        write(self.directory / name, json.dumps(document, indent=1).encode())

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Path:
        """The folder of the parts."""
        return self.directory / self.folder

    def paths(self) -> list[Path]:
        """Return the files of all parts, in the order of their numbers."""
        return sorted(self.parts.glob(f"{self.prefix}*.parquet"))

    def number(self, path: Path) -> int:
        """Return the number of a part."""
        return int(path.stem.removeprefix(self.prefix))

    def write_part(self, number: int, table: Any) -> None:
        """Write a part atomically."""
        self.write_table(self.parts / f"{self.prefix}{number:0{self.digits}d}.parquet", table)

    def write_table(self, path: Path, table: Any) -> None:
        """Write an Arrow table atomically."""
        write_parquet(path, table, self.purpose, self.extra)

    def read(self, path: Path) -> Any:
        """Return a part as an Arrow table."""
        try:
            return self._parquet().read_table(path)
        except (OSError, ValueError) as error:
            raise self.damaged(path, error) from error

    def tables(self) -> Iterator[Any]:
        """Yield all parts in order, one Arrow table at a time."""
        return map(self.read, self.paths())

    def metadata(self, path: Path, key: str) -> dict[str, Any] | None:
        """Return a part's metadata without reading its rows; ``None`` if the part is damaged."""
        arrow = need("pyarrow", self.purpose, self.extra)
        try:
            return dict(json.loads(self._parquet().read_metadata(path).metadata[key.encode()]))
        except (OSError, arrow.ArrowException, KeyError, TypeError, ValueError):
            return None

    def damaged(self, path: Path, error: Exception) -> FileError:
        """Return the error for a part that cannot be read."""
        return FileError(f"'{path}' is damaged ({error}): {self.remedy}")

    def clear_unfinished(self) -> None:
        """Remove temporary files that a killed process left behind."""
        for temporary in self.parts.glob(".*"):
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _parquet(self) -> Any:
        return need("pyarrow.parquet", self.purpose, self.extra)
