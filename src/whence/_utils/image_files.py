"""Picture files, opened only if they are of a known kind and not too large once they are unpacked."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from .optional_imports import need

#: what is read at all: Pillow knows more, among them formats that start other programs (EPS starts Ghostscript)
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")


def open_raster(source: str | Path | BytesIO, formats: tuple[str, ...] = FORMATS) -> Any:
    """A PIL picture whose pixels are not read yet.

    Args:
        source: a path, or a file's bytes.
        formats: which kinds are read, whatever the file is called.

    Raises:
        PIL.Image.DecompressionBombError: more pixels than ``PIL.Image.MAX_IMAGE_PIXELS``.
        OSError: not a picture of these kinds.

    Example:
        >>> with open_raster("two-pets.jpg") as opened:
        ...     opened.size
        (640, 480)
    """
    image = need("PIL.Image", "pictures", "vision")
    image.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", image.DecompressionBombWarning)  # it is an error below
        opened = image.open(source, formats=[name for name in formats if name in image.OPEN])
    limit = image.MAX_IMAGE_PIXELS
    if limit is not None and opened.width * opened.height > limit:
        opened.close()
        raise image.DecompressionBombError(f"it unpacks to {opened.width:,} x {opened.height:,} pixels")
    return opened
