"""Word segmentation: a text cut into words, or into tokens, that keeps every character and every score."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

#: scripts written without spaces between words: each character is a word, unless a token joins several
UNSPACED = [
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
]  # fmt: skip
JOINER = "\u200d"  # zero-width joiner: the emoji before and after are one
TONES = range(0x1F3FB, 0x1F400)
FLAGS = range(0x1F1E6, 0x1F200)


class Word(NamedTuple):
    """A word of the user's text: ``texts[part][start:end]``, and the sum of its tokens' scores."""

    text: str
    score: float
    start: int
    end: int
    part: int = 0


class Piece(NamedTuple):
    """A part of the user's text; ``score`` is ``None`` where it has no token (spaces, truncated text)."""

    text: str
    score: float | None
    start: int
    end: int
    part: int
    positions: tuple[int, ...]


def characters(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of characters as a reader sees them: accents, joined emoji and flags stay together."""
    start = 0
    for i in range(1, len(text) + 1):
        if i == len(text) or not _continues(text, start, i):
            if i > start:
                yield start, i
            start = i


def _continues(text: str, start: int, i: int) -> bool:
    c, before = text[i], text[i - 1]
    if unicodedata.category(c) in ("Mn", "Me", "Mc") or c == JOINER or ord(c) in TONES:
        return not before.isspace()
    if before == JOINER:
        return not c.isspace()
    return ord(c) in FLAGS and ord(before) in FLAGS and (i - start) % 2 == 1


def words(text: str) -> list[tuple[int, int]]:
    """Return the spans of the words and punctuation marks of a text, in order, without spaces."""
    out: list[tuple[int, int]] = []
    joined = False  # whether the last span can still grow
    units = list(characters(text))
    for k, (start, end) in enumerate(units):
        c = text[start]
        if c.isspace():
            joined = False
            continue
        spaced = c.isalnum() or c == "_"
        unspaced = any(low <= ord(c) <= high for low, high in UNSPACED)
        inner = joined and k + 1 < len(units) and _inner(text[start:end], text[units[k - 1][0]], text[units[k + 1][0]])
        if joined and (inner or (spaced and not unspaced)):
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
        joined = inner or (spaced and not unspaced)
    return out


def _inner(mark: str, before: str, after: str) -> bool:
    """Whether a mark joins the characters on both sides: don't, well-made, 3.14."""
    if mark in "'\u2019-":
        return before.isalnum() and after.isalnum()
    return mark in ".," and before.isdigit() and after.isdigit()


def pieces(
    text: str, spans: Iterable[tuple[int, int, int]], scores: Sequence[float], whole_words: bool, part: int = 0
) -> list[Piece]:
    """Cut a text so that every position's score is in exactly one piece, and the pieces joined are the text.

    Tokens that share characters (the bytes of one emoji) are in one piece; with ``whole_words``, those of a word, too.

    Args:
        text: the user's own string.
        spans: position, start and end of each token.
        scores: one per position.
        whole_words: whether the tokens of a word are one piece.
        part: which of the user's texts this is.
    """
    tokens = sorted((_trim(text, start, end), i) for i, start, end in spans)
    word_spans = [list(span) for span in words(text)] if whole_words else []
    blank = whole_words and bool(word_spans)  # tokens of spaces alone go to a word beside them
    written = [[s, e] for (s, e), _ in tokens if e > s and not (blank and not text[s:e].strip())]
    solid = _merge(sorted([*word_spans, *written]))
    members: dict[int, list[int]] = {}
    loose: list[tuple[int, int]] = []
    at = 0
    for (start, end), i in tokens:
        while at + 1 < len(solid) and solid[at + 1][0] <= start:
            at += 1
        if not solid:
            loose.append((start, i))
            continue
        inside = end > start and solid[at][0] <= start < solid[at][1]
        nearest = at if inside else _nearest(solid, end)
        members.setdefault(nearest, []).append(i)
    if loose:  # a text of spaces alone that has tokens
        positions = tuple(sorted(i for _, i in loose))
        return [Piece(text, sum(float(scores[i]) for i in positions), 0, len(text), part, positions)]
    out: list[Piece] = []
    done = 0
    for k, (start, end) in enumerate(solid):
        if start > done:
            out.append(Piece(text[done:start], None, done, start, part, ()))
        positions = tuple(sorted(members.get(k, ())))
        score = sum(float(scores[i]) for i in positions) if positions else None
        out.append(Piece(text[start:end], score, start, end, part, positions))
        done = end
    if done < len(text):
        out.append(Piece(text[done:], None, done, len(text), part, ()))
    return out


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a token's span without the spaces around it, unless it is all spaces."""
    inside = text[start:end]
    if not inside.strip():
        return start, end
    return start + len(inside) - len(inside.lstrip()), end - len(inside) + len(inside.rstrip())


def _merge(spans: list[list[int]]) -> list[list[int]]:
    """Merge spans that share a character."""
    out: list[list[int]] = []
    for start, end in spans:
        if out and start < out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return out


def _nearest(solid: list[list[int]], place: int) -> int:
    """Return the index of the span that contains a place, or of the one closest to it."""
    return min(range(len(solid)), key=lambda k: max(solid[k][0] - place, place - solid[k][1], 0))
