"""Image files, opened only if they are of a known format and not too large once decompressed."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from .optional_imports import need

#: the formats that are read: Pillow has more, some of which start other programs (EPS starts Ghostscript)
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")


def open_image(source: str | Path | BytesIO, formats: tuple[str, ...] = FORMATS) -> Any:
    """Return a PIL image whose pixels are not read yet.

    Args:
        source: a path, or a file's bytes.
        formats: the formats that are read, whatever the file is called.

    Raises:
        PIL.Image.DecompressionBombError: more pixels than ``PIL.Image.MAX_IMAGE_PIXELS``.
        OSError: not an image of these formats.

    Example:
        >>> with open_image("two-pets.jpg") as opened:
        ...     opened.size
        (640, 480)
    """
    image = need("PIL.Image", "pictures", "vision")
    image.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", image.DecompressionBombWarning)  # raised as an error below
        opened = image.open(source, formats=[name for name in formats if name in image.OPEN])
    limit = image.MAX_IMAGE_PIXELS
    if limit is not None and opened.width * opened.height > limit:
        opened.close()
        raise image.DecompressionBombError(f"it unpacks to {opened.width:,} x {opened.height:,} pixels")
    return opened
