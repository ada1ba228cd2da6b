"""Measurements on disk: each is written when it is made, with its date and commit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tools.benchmarks import stamp

DIRECTORY = Path(__file__).parent / "measured"


class Measurements:
    """Measurements by name, in a JSON file.

    A measurement of another day or commit does not count as made: ``in`` is false, and it is measured anew.

    Args:
        name: the name of the file.
        directory: where it is.

    Example:
        >>> made = Measurements("costs")
        >>> if "bert/1/lrp" not in made: made.add("bert/1/lrp", {"value": 2.0})
    """

    def __init__(self, name: str, directory: Path = DIRECTORY) -> None:
        self.path = directory / f"{name}.json"
        self.rows: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def __contains__(self, name: str) -> bool:
        return name in self.rows and stamp.is_current(self.rows[name])

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Keep a measurement."""
        self.rows[name] = row | stamp.current()
        self._write()

    def drop_outdated(self) -> None:
        """Remove what was measured on another day or at another commit."""
        self.rows = {name: row for name, row in self.rows.items() if stamp.is_current(row)}
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".writing")
        half.write_text(json.dumps(self.rows, indent=1))
        os.replace(half, self.path)
