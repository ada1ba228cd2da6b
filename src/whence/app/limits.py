"""How much a visitor may ask for."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from .._utils.image_files import open_raster
from .._utils.optional_imports import need
from ..errors import InputError

UNREADABLE = "The file is no picture that can be read: use a PNG, JPEG, WebP, GIF or BMP."
DAMAGED = "The picture is damaged: part of it cannot be read. Save it again, as a PNG or JPEG, and give that."


@dataclass(frozen=True)
class Limits:
    """What is refused, each with a sentence.

    Attributes:
        characters: of a text.
        pixels: of a picture.
        upload: bytes of a file.
        methods: asked about at once.
        tokens: that a language model writes.
        budget: changed inputs that are tried for a counterfactual.
    """

    characters: int = 10_000
    pixels: int = 20_000_000
    upload: int = 10 * 2**20
    methods: int = 8
    tokens: int = 64
    budget: int = 300

    @property
    def upload_size(self) -> str:
        """The bytes of a file, in words."""
        return f"{self.upload / 2**20:g} MiB" if self.upload >= 2**20 else f"{self.upload:,} bytes"

    def text(self, text: str) -> str:
        """The same text, if it is not too long."""
        if len(text) > self.characters:
            raise InputError(f"The text has {len(text):,} characters; this page takes {self.characters:,} at most.")
        return text

    def picture(self, path: str) -> str:
        """The same path, if what it leads to is a picture that can be read and is not too large.

        How large it is stands in its first bytes: of one that is too large no pixel is read.
        """
        if Path(path).stat().st_size > self.upload:
            raise InputError(f"The picture is too large: {self.upload_size} at most.")
        width, height = _size(path)
        if width * height > self.pixels:
            raise InputError(
                f"The picture has {width:,} x {height:,} pixels; this page takes {self.pixels:,} in all. Make it "
                "smaller: the model reads far fewer."
            )
        _whole(path)
        return path


def _size(path: str) -> tuple[int, int]:
    image = need("PIL.Image", "pictures", "vision")
    try:
        with open_raster(path) as opened:
            width, height = opened.size
            return width, height
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError(UNREADABLE) from error


@functools.lru_cache(maxsize=1024)  # no file is written twice: uploads are kept by what is in them
def _whole(path: str) -> None:
    """Read all pixels of a picture, once."""
    try:
        with open_raster(path) as opened:
            opened.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(DAMAGED) from error
