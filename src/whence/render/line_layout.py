"""Words laid out in lines: for figures in inches, for terminals in columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..results.input_origin import Span, TextOrigin
from ..results.word_segmentation import UNSPACED, Piece, characters
from .phrases import visible
from .view_model import Panel

OPENING = ("Ps", "Pi")  # brackets and quotation marks that belong to what follows
RIGHT = ("R", "AL", "AN")  # Unicode's classes of what is written from right to left


class Fragment(NamedTuple):
    """A part of a text on one line. A line feed ends a line; spaces have no score."""

    text: str
    score: float | None = None
    unread: bool = False

    @property
    def space(self) -> bool:
        """Whether it is a space between other fragments."""
        return self.score is None and self.text.isspace()


def fragments(panel: Panel, show: Callable[[str], str] = visible) -> Iterator[Fragment]:
    """Yield a text's words and spaces, in reading order; each of the user's texts begins on a new line."""
    unread = panel.origin.unread if isinstance(panel.origin, TextOrigin) else ()
    part = None
    for piece in panel.pieces or _tokens(panel):
        if part is not None and piece.part != part:
            yield Fragment("\n")
        part = piece.part
        if piece.score is None or piece.text.isspace():
            yield from _gap(piece, unread, show)
        else:
            yield Fragment(show(_marked(piece.text)), piece.score, _unread(piece, unread))


def _tokens(panel: Panel) -> Iterator[Piece]:
    """Yield the tokens, a space between two, where the user's own text is not known."""
    for i, token in enumerate(panel.tokens):
        if i:
            yield Piece(" ", None, i, i, 0, ())
        yield Piece(token, float(panel.scores[i]), i, i + 1, 0, (i,))


def _marked(text: str) -> str:
    """Make line feeds and tabs visible that are inside a word or have a score."""
    return visible(text).replace("\n", "↵").replace("\t", "⇥")


def _gap(piece: Piece, unread: Sequence[Span], show: Callable[[str], str]) -> Iterator[Fragment]:
    """Yield the fragments of text between tokens, cut at spaces, and of spaces that have a score."""
    grey = _unread(piece, unread)
    for part in re.findall(r"\n|[^\S\n]+|\S+", visible(piece.text)):
        if piece.score is not None:
            yield Fragment(show(_marked(part)), piece.score, grey)
        if part == "\n":
            yield Fragment("\n")
        elif piece.score is None:
            yield Fragment(part.replace("\t", "    ") if part.isspace() else show(part), None, grey)


def _unread(piece: Piece, unread: Sequence[Span]) -> bool:
    """Whether truncation left out all of a word, or any part of a piece without a score."""
    here = [s for s in unread if s.part == piece.part]
    if piece.score is None:
        return any(piece.start < s.end and piece.end > s.start for s in here)
    return any(piece.start >= s.start and piece.end <= s.end for s in here)


def lines(
    parts: Iterable[Fragment], width: float, measure: Callable[[str], float]
) -> Iterator[tuple[list[Fragment], bool]]:
    """Break fragments into lines no wider than ``width``; the flag is true where the text itself ends the line.

    A line breaks at spaces, and in scripts without spaces between any two characters; a word wider than a line is cut.

    Args:
        parts: see :func:`fragments`.
        width: of a line.
        measure: returns the width of a text.

    Example:
        >>> parts = [Fragment("too"), Fragment(" "), Fragment("long"), Fragment("!")]
        >>> [[f.text for f in line] for line, _ in lines(parts, 5, len)]
        [['too'], ['long', '!']]
    """
    line: list[Fragment] = []
    used = 0.0
    for unit in _units(parts):
        if unit[0].text == "\n":
            yield _stripped(line), True
            line, used = [], 0.0
            continue
        wide = sum(measure(f.text) for f in unit)
        if unit[0].space and used + wide > width:  # a space at the end of a line is dropped
            continue
        if line and used + wide > width:
            yield _stripped(line), False
            line, used = [], 0.0
        for f in unit if wide <= width else _cut(unit, width, measure):
            step = measure(f.text)
            if line and used + step > width:
                yield line, False
                line, used = [], 0.0
            line.append(f)
            used += step
    if line:
        yield _stripped(line), True


def _units(parts: Iterable[Fragment]) -> Iterator[list[Fragment]]:
    """Yield groups of fragments that stay on one line if it is long enough."""
    unit: list[Fragment] = []
    for f in parts:
        if unit and (f.space or unit[-1].space or f.text == "\n" or _breakable(unit[-1].text, f.text)):
            yield unit
            unit = []
        unit.append(f)
    if unit:
        yield unit


def _breakable(before: str, after: str) -> bool:
    """Whether a line may end between two words without a space between them."""
    if not before or not after or unicodedata.category(before[-1]) in OPENING:
        return False
    kind = unicodedata.category(after[0])
    return (_unspaced(before[-1]) or _unspaced(after[0])) and (not kind.startswith("P") or kind in OPENING)


def _unspaced(c: str) -> bool:
    return any(low <= ord(c) <= high for low, high in UNSPACED)


def _cut(unit: list[Fragment], width: float, measure: Callable[[str], float]) -> Iterator[Fragment]:
    """Yield fragments wider than a line in parts that fit, at least a character each."""
    for f in unit:
        if measure(f.text) <= width:
            yield f
            continue
        begin, used = 0, 0.0
        for start, end in characters(f.text):
            step = measure(f.text[start:end])
            if start > begin and used + step > width:
                yield f._replace(text=f.text[begin:start])
                begin, used = start, 0.0
            used += step
        yield f._replace(text=f.text[begin:])


def _stripped(line: list[Fragment]) -> list[Fragment]:
    while line and line[-1].space:
        line = line[:-1]
    return line


def leftward(parts: Iterable[Fragment]) -> bool:
    """Whether a text runs from right to left, by its first letter."""
    return next((d for f in parts if (d := _direction(f.text)) is not None), False)


def visual_order(line: list[Fragment], leftwards: bool) -> list[Fragment]:
    """Return a line's fragments in visual order, from left to right; words of both directions may be mixed."""
    ways = [_direction(f.text) for f in line]
    runs: list[tuple[bool, list[Fragment]]] = []
    for i, f in enumerate(line):
        way = ways[i]
        if way is None:  # between two of one direction it takes theirs, else the text's
            after = next((w for w in ways[i + 1 :] if w is not None), leftwards)
            way = runs[-1][0] if runs and runs[-1][0] == after else leftwards
        if not runs or runs[-1][0] != way:
            runs.append((way, []))
        runs[-1][1].append(f)
    ordered = reversed(runs) if leftwards else iter(runs)
    return [f for way, run in ordered for f in (reversed(run) if way else run)]


def _direction(text: str) -> bool | None:
    """Whether the first character with a direction runs leftwards; ``None`` if there is none."""
    for c in text:
        kind = unicodedata.bidirectional(c)
        if kind in RIGHT:
            return True
        if kind in ("L", "EN"):
            return False
    return None
