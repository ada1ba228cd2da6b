"""Limits on what a visitor may send and request."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from .._utils.image_files import open_image
from .._utils.optional_imports import need
from ..errors import InputError

UNREADABLE = "The file is no picture that can be read: use a PNG, JPEG, WebP, GIF or BMP."
DAMAGED = "The picture is damaged: part of it cannot be read. Save it again, as a PNG or JPEG, and give that."


@dataclass(frozen=True)
class Limits:
    """The largest inputs and requests that the page takes.

    Attributes:
        characters: of a text.
        pixels: of an image.
        upload: bytes of a file.
        methods: that explain one input.
        tokens: that a language model generates.
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
        """The largest file, for messages."""
        return f"{self.upload / 2**20:g} MiB" if self.upload >= 2**20 else f"{self.upload:,} bytes"

    def check_text(self, text: str) -> None:
        """Raise if a text is too long."""
        if len(text) > self.characters:
            raise InputError(f"The text has {len(text):,} characters; this page takes {self.characters:,} at most.")

    def check_image(self, path: str) -> None:
        """Raise if a file is too large, or is no image that can be read.

        The size is read from the file's header: no pixel of an image that is too large is decoded.
        """
        if Path(path).stat().st_size > self.upload:
            raise InputError(f"The picture is too large: {self.upload_size} at most.")
        width, height = _read_size(path)
        if width * height > self.pixels:
            raise InputError(
                f"The picture has {width:,} x {height:,} pixels; this page takes {self.pixels:,} in all. Make it "
                "smaller: the model reads far fewer."
            )
        _decode(path)


def _read_size(path: str) -> tuple[int, int]:
    image = need("PIL.Image", "pictures", "vision")
    try:
        with open_image(path) as opened:
            width, height = opened.size
            return width, height
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError(UNREADABLE) from error


@functools.lru_cache(maxsize=1024)  # no path is written twice: uploads are named by the hash of their content
def _decode(path: str) -> None:
    """Decode all pixels of an image, once."""
    try:
        with open_image(path) as opened:
            opened.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(DAMAGED) from error
