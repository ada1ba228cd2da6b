"""Atomic file writes: a file is complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from ..errors import WriteError

REASONS = {
    errno.ENOSPC: "the disk is full: free some space or choose another directory",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another directory",
    errno.EACCES: "writing there is not allowed: choose another directory or change its permissions",
    errno.EPERM: "writing there is not allowed: choose another directory or change its permissions",
    errno.EROFS: "the file system is read-only: choose another directory",
    errno.EISDIR: "a directory of that name exists: choose another name",
    errno.ENOTDIR: "a part of the path is a file, not a directory: choose another path",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
}


def is_file(name: str) -> bool:
    """Return whether a file of this name exists; a string that is no valid name gives ``False``."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def shortened(name: str) -> str:
    """Return a name short enough for a message."""
    return name if len(name) <= 100 else f"{name[:100]}…"


def write(path: str | Path, content: bytes) -> None:
    """Write a temporary file, then rename it: readers see the old file or the complete new one.

    Example:
        >>> write("report.html", page.encode())
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        why = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise WriteError(f"'{path}' could not be written: {why}.") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
