"""Files are written whole or not at all."""

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
    """Whether there is a file of this name; a text that is too long for a name, or has a NUL, is none."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def shortened(name: str) -> str:
    """A name for a message."""
    return name if len(name) <= 100 else f"{name[:100]}…"


def write(path: str | Path, content: bytes) -> None:
    """Write beside, then rename: a reader sees the old file or the whole new one, and a failure leaves no trace.

    Example:
        >>> write("report.html", page.encode())
    """
    path = Path(path)
    beside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        beside = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        why = REASONS.get(error.errno or 0, error.strerror or str(error))
        raise WriteError(f"'{path}' could not be written: {why}.") from error
    finally:
        if beside is not None:
            with contextlib.suppress(OSError):
                beside.unlink()
