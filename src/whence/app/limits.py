"""How much a visitor may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from ..extras import need
from ..raster import open_raster


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

    def text(self, text: str) -> str:
        """The same text, if it is not too long."""
        if len(text) > self.characters:
            raise InputError(f"The text has {len(text):,} characters; this page takes {self.characters:,} at most.")
        return text

    def picture(self, path: str) -> str:
        """The same path, if what it leads to is a picture that is not too large; its pixels are not read for that."""
        image = need("PIL.Image", "pictures", "vision")
        try:
            with open_raster(path) as opened:
                width, height = opened.size
        except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
            raise InputError("The file is no picture that can be read: use a PNG, JPEG, WebP, GIF or BMP.") from error
        if width * height > self.pixels:
            raise InputError(
                f"The picture has {width:,} x {height:,} pixels; this page takes {self.pixels:,} in all. Make it "
                "smaller: the model reads far fewer."
            )
        return path
