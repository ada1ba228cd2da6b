"""Words removed from a text, or replaced, with the spaces that a person would leave."""

from __future__ import annotations

from collections.abc import Iterable

from ..results.word_segmentation import words

WINDOW = 40  # characters on each side that decide whether two words would merge


def rewritten(text: str, changes: Iterable[tuple[int, int, str | None]]) -> str:
    """Return a text with some slices replaced, or removed together with the space they leave.

    Args:
        text: the text.
        changes: start, end, and the new text; ``None``: the slice is removed.

    Example:
        >>> rewritten("It is superb, really.", [(6, 12, None)])
        'It is, really.'
        >>> rewritten("a superb film", [(2, 8, "dull")])
        'a dull film'
    """
    for start, end, new in reversed(_merged(text, sorted(changes, key=lambda change: change[:2]))):
        text = _without(text, start, end) if new is None else text[:start] + new + text[end:]
    return text


def _merged(text: str, changes: list[tuple[int, int, str | None]]) -> list[tuple[int, int, str | None]]:
    """Merge removals of adjacent words into one."""
    out: list[tuple[int, int, str | None]] = []
    for start, end, new in changes:
        if out and new is None and out[-1][2] is None and not text[out[-1][1] : start].strip():
            out[-1] = (out[-1][0], end, None)
        else:
            out.append((start, end, new))
    return out


def _without(text: str, start: int, end: int) -> str:
    left = text[:start].rstrip()
    right = text[end:].lstrip()
    if not left or not right:
        return left + right
    gaps = text[len(left) : start], text[end : len(text) - len(right)]
    if all(gaps) or _would_merge(left, right):
        return left + max(*gaps, key=lambda gap: (gap.count("\n"), bool(gap))) + right
    return left + right


def _would_merge(left: str, right: str) -> bool:
    """Return whether the words at the end of ``left`` and the start of ``right`` would merge."""
    cut = len(left[-WINDOW:])
    return any(start < cut < end for start, end in words(left[-WINDOW:] + right[:WINDOW]))
