"""The characters that the installed fonts can draw, and the width of a text in them."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.ft2font import LoadFlags

from ..phrases import PICTURES

#: the first ships with matplotlib; the installed ones of the others are fallbacks for characters that it lacks
FAMILIES = [
    "DejaVu Sans", "Noto Sans", "Noto Sans Hebrew", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Bengali",
    "Noto Sans Tamil", "Noto Sans Thai", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC",
    "Noto Sans KR", "Source Han Sans", "WenQuanYi Micro Hei", "IPAexGothic", "Hiragino Sans", "PingFang SC",
    "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Nirmala UI", "Leelawadee UI",
    "Arial Unicode MS", "Noto Sans Symbols", "Noto Sans Symbols 2", "Noto Emoji", "Segoe UI Symbol",
    "Segoe UI Emoji", "Symbola",
]  # fmt: skip
INVISIBLE = frozenset("\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff")  # joiners and the like: nothing to draw
POINTS = 72.0  # in an inch
LONG = 100  # characters; a longer text is measured character by character


class Fonts:
    """The fonts of this machine: substitutes characters that they lack, measures and shortens texts.

    Args:
        keep: whether characters that no font here has are kept, for a viewer that may have one (SVG); otherwise their
            number is drawn instead: ``U+1F44D``.
    """

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self._widths: dict[tuple[str, float, bool], float] = {}

    def show(self, text: str) -> str:
        """Return a text with every character that cannot be drawn replaced."""
        return text if text.isascii() else "".join(_drawable(c, self.keep) for c in text)

    def properties(self, size: float, bold: bool = False) -> FontProperties:
        """Return matplotlib's description of the font."""
        return FontProperties(family=_families(bold), size=size, weight="bold" if bold else "normal")

    def bold(self, text: str) -> bool:
        """Whether a text can be written in bold."""
        return set(text) <= _glyphs(True)

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """Return the width of a text in inches; that of characters that no font here has is estimated."""
        key = (text, size, bold)
        if key not in self._widths:
            if len(text) > LONG:
                return sum(self.width(c, size, bold) for c in text)
            glyphs = _glyphs(bold)
            known = "".join(c for c in text if c in glyphs)
            guess = sum(_guess(c) for c in text if c not in glyphs)
            self._widths[key] = (_advance(known, size, bold) + guess * size) / POINTS
        return self._widths[key]

    def shorten(self, text: str, size: float, width: float, bold: bool = False) -> str:
        """Return the beginning of a text, as much as fits."""
        text = text[:400]
        if self.width(text, size, bold) <= width:
            return text
        while text and self.width(text + "…", size, bold) > width:
            text = text[:-1]
        return text.rstrip() + "…"


@lru_cache(2)
def _families(bold: bool) -> tuple[str, ...]:
    """Return the installed families, in order; in bold only the first, because few others have a bold face."""
    installed = set(fontManager.get_font_names())
    return tuple(name for name in FAMILIES[: 1 if bold else None] if name in installed)


@lru_cache(2)
def _paths(bold: bool) -> tuple[str, ...]:
    weight = "bold" if bold else "normal"
    return tuple(fontManager.findfont(FontProperties(family=name, weight=weight)) for name in _families(bold))


@lru_cache(2)
def _glyphs(bold: bool = False) -> frozenset[str]:
    """Return every character that can be drawn."""
    return frozenset(chr(c) for path in _paths(bold) for c in get_font(path).get_charmap())


def _drawable(c: str, keep: bool) -> str:
    if c in INVISIBLE and not keep:
        return ""
    if c in _glyphs():
        return c
    picture = ord(c) - PICTURES
    if 0 <= picture <= 33:  # a control picture that no font here has: write the control character's number
        return f"⟨U+{picture if picture < 33 else 127:04X}⟩"
    if keep:
        return c
    return " " if c.isspace() else f"U+{ord(c):04X}"


def _advance(text: str, size: float, bold: bool) -> float:
    """Return the width of a text in points."""
    font = get_font(_paths(bold))
    font.set_size(size, POINTS)
    font.set_text(text, 0.0, flags=LoadFlags.NO_HINTING)
    return float(font.get_width_height()[0]) / 64


def _guess(c: str) -> float:
    """Return the estimated width of a character in another font, as a share of the font's size."""
    if c in INVISIBLE or unicodedata.combining(c):
        return 0.0
    return 1.0 if unicodedata.east_asian_width(c) in "WF" else 0.65
