"""Words taken out of a text, or exchanged, so that what is left is a text that someone could have typed."""

from __future__ import annotations

from collections.abc import Iterable

from ..results.word_segmentation import words

WINDOW = 40  # characters on each side that are looked at to see whether two words would become one


def rewritten(text: str, changes: Iterable[tuple[int, int, str | None]]) -> str:
    """A text with some of its stretches exchanged for others, or taken out together with the space they leave.

    Args:
        text: the text.
        changes: start, end, and what shall stand there instead; ``None``: nothing.

    Example:
        >>> rewritten("It is superb, really.", [(6, 12, None)])
        'It is, really.'
        >>> rewritten("a superb film", [(2, 8, "dull")])
        'a dull film'
    """
    for start, end, new in reversed(_joined(text, sorted(changes, key=lambda change: change[:2]))):
        text = _without(text, start, end) if new is None else text[:start] + new + text[end:]
    return text


def _joined(text: str, changes: list[tuple[int, int, str | None]]) -> list[tuple[int, int, str | None]]:
    """Words that are taken out one after the other are taken out as one."""
    out: list[tuple[int, int, str | None]] = []
    for start, end, new in changes:
        if out and new is None and out[-1][2] is None and not text[out[-1][1] : start].strip():
            out[-1] = (out[-1][0], end, None)
        else:
            out.append((start, end, new))
    return out


def _without(text: str, start: int, end: int) -> str:
    left, right = text[:start].rstrip(), text[end:].lstrip()
    if not left or not right:
        return left + right
    gaps = text[len(left) : start], text[end : len(text) - len(right)]
    if all(gaps) or _one_word(left, right):
        return left + max(*gaps, key=lambda gap: (gap.count("\n"), bool(gap))) + right
    return left + right


def _one_word(left: str, right: str) -> bool:
    """Whether two stretches would run into each other."""
    cut = len(left[-WINDOW:])
    return any(start < cut < end for start, end in words(left[-WINDOW:] + right[:WINDOW]))
