"""Measurements on disk: each is written when it is made, and not made again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "measured"


class Kept:
    """Measurements by name, in a JSON file.

    Example:
        >>> kept = Kept("costs")
        >>> if "bert/1/lrp" not in kept: kept.add("bert/1/lrp", {"value": 2.0})
    """

    def __init__(self, name: str, directory: Path = DIRECTORY) -> None:
        self.path = directory / f"{name}.json"
        self.rows: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Keep a measurement."""
        self.rows[name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".writing")
        half.write_text(json.dumps(self.rows, indent=1))
        os.replace(half, self.path)
