"""Images that programs send as base64."""

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
def uploaded_image(encoded: str, limits: Limits) -> Iterator[str]:
    """Yield the path of a temporary file with an image that is given as base64; empty if none is given."""
    if not encoded:
        yield ""
        return
    content = encoded.partition(",")[2] if encoded.startswith("data:") else encoded
    if len(content) > limits.upload * 4 / 3 + 4:
        raise InputError(f"The picture is too large: {limits.upload_size} at most.")
    try:
        decoded = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("The picture is no base64.") from error
    with tempfile.TemporaryDirectory(prefix="whence-") as folder:
        path = Path(folder) / f"{sha256(decoded).hexdigest()[:16]}.image"
        path.write_bytes(decoded)
        yield str(path)
