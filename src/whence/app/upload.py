"""A picture that a program sent: a file for as long as it is needed."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from ..errors import InputError
from .limits import Limits


@contextmanager
def uploaded(image: str, limits: Limits) -> Iterator[str]:
    """The path of a picture that is given as base64; empty if none is given."""
    if not image:
        yield ""
        return
    content = image.partition(",")[2] if image.startswith("data:") else image
    if len(content) > limits.upload * 4 / 3 + 4:
        raise InputError(f"The picture is too large: {limits.upload_size} at most.")
    try:
        read = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("The picture is no base64.") from error
    with tempfile.TemporaryDirectory(prefix="whence-") as folder:
        path = Path(folder) / f"{sha256(read).hexdigest()[:16]}.image"
        path.write_bytes(read)
        yield str(path)
