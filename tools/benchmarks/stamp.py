"""The date and the commit of a measurement."""

from __future__ import annotations

import datetime
import functools
import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: what a measurement depends on; not what it writes
CODE = ("src", "tools/benchmarks", ":!tools/benchmarks/measured")


@functools.cache
def current() -> dict[str, str]:
    """Return today's date and the commit, the same for the whole process.

    Changes that are not committed are marked, and told apart by a hash: ``a007b87-dirty-1f2e3d``.
    """
    return {"date": datetime.date.today().isoformat(), "commit": _commit()}


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short", "HEAD").strip()
        changes = _git("status", "--porcelain", "--", *CODE) + _git("diff", "HEAD", "--", *CODE)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty-{hashlib.sha256(changes.encode()).hexdigest()[:6]}" if changes else commit


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def is_current(row: Mapping[str, Any]) -> bool:
    """Return whether a measurement was made today, with the code as it is."""
    return all(row.get(name) == value for name, value in current().items())


def described(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence with the dates and commits of some measurements."""
    found = sorted({(row.get("date", "unknown date"), row.get("commit", "unknown")) for row in rows})
    if not found:
        return "Not measured yet."
    return "Measured on " + ", ".join(f"{date} at commit `{commit}`" for date, commit in found) + "."
