"""Uploads are removed again, so that no number of them fills the disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BYTES = 512 * 2**20


def tidy(folder: Path, most: int = BYTES, keep: Path | None = None) -> int:
    """Remove the oldest files until the rest takes at most so many bytes; gives the bytes that remain.

    Args:
        folder: where they are.
        most: bytes.
        keep: a folder in it that is left alone.
    """
    files = (path for path in folder.rglob("*") if keep is None or keep not in path.parents)
    found = [(path, stat) for path in files if (stat := _stat(path)) is not None]
    left = sum(stat.st_size for _, stat in found)
    for path, stat in sorted(found, key=lambda one: one[1].st_mtime):
        if left <= most:
            break
        with contextlib.suppress(OSError):  # another thread was first
            path.unlink()
            left -= stat.st_size
    return left


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat() if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None
