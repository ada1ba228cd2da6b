"""Removal of old uploads, so that they do not fill the disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_BYTES = 512 * 2**20


def remove_oldest(folder: Path, max_bytes: int = MAX_BYTES, exclude: Path | None = None) -> int:
    """Remove the oldest files until the others take at most ``max_bytes``; return the bytes that remain.

    Args:
        folder: where the files are.
        max_bytes: the bound.
        exclude: a folder in it whose files are neither counted nor removed.
    """
    candidates = (path for path in folder.rglob("*") if exclude is None or exclude not in path.parents)
    files = [(path, stat) for path in candidates if (stat := _stat_file(path)) is not None]
    total = sum(stat.st_size for _, stat in files)
    for path, stat in sorted(files, key=lambda file: file[1].st_mtime):
        if total <= max_bytes:
            break
        with contextlib.suppress(OSError):  # another thread has removed it
            path.unlink()
            total -= stat.st_size
    return total


def _stat_file(path: Path) -> os.stat_result | None:
    try:
        return path.stat() if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None
