"""Phrases that figures, terminals and LaTeX share, and characters made safe to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from .view_model import Card, View

PICTURES = 0x2400  # the control pictures ␀ to ␟, and ␡ for delete
MARKS = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

EMPTY = "There is nothing to show: the input is empty."


def visible(text: str) -> str:
    """Replace every control character except line feeds and tabs by a visible one.

    Control characters become control pictures; characters that change the direction of writing, lone surrogates and
    code points that are no characters become their number.

    Example:
        >>> visible("a\\x1b[31m \\u202eb")
        'a␛[31m ⟨U+202E⟩b'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) for c in text.replace("\r\n", "\n"))


def _visible(c: str) -> str:
    code = ord(c)
    if c in "\n\t":
        return c
    if code < 32 or code == 127:
        return chr(PICTURES + min(code, 33))
    if c in MARKS or unicodedata.category(c) in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE:
        return f"⟨U+{code:04X}⟩"
    return c


def flat(text: str) -> str:
    """Return a text on one line, every character visible."""
    return " ".join(visible(text).split())


def percent(share: float) -> str:
    """Format a probability in percent: whole numbers, one digit more near 0 and 1.

    Example:
        >>> percent(0.934), percent(0.9991), percent(1e-9)
        ('93 %', '99.9 %', '<0.1 %')
    """
    if 0 < share < 0.0005:
        return "<0.1\u00a0%"
    if 0.9995 <= share < 1:
        return ">99.9\u00a0%"
    digits = 0 if 0.01 <= share <= 0.99 or share in (0, 1) else 1
    return f"{100 * share:.{digits}f}\u00a0%"


def number(score: float, limit: float) -> str:
    """Format a score with its sign, in a number of digits that suits the largest score.

    Example:
        >>> number(0.637, 0.8), number(-0.00031, 0.0009), number(1520.0, 2000.0)
        ('+0.64', '-0.00031', '+1520')
    """
    if 0.1 <= limit < 100:
        return f"{score:+.2f}"
    return f"{score:+.2g}" if limit < 100 else f"{score:+.0f}"


def prediction(card: Card) -> str:
    """Return the model's prediction; empty where there is none."""
    distinct = dict.fromkeys(
        flat(v.prediction) + (f", {percent(v.probability)}" if v.probability is not None else "") for v in card.views
    )
    known = " / ".join(name for name in distinct if name)
    return f"predicted: {known}" if known else ""


def method(view: View) -> str:
    """Return the method's name and its options."""
    return flat(f"{view.method} ({view.options})" if view.options else view.method)


def target(view: View) -> str:
    """Return the target and its probability."""
    share = view.target_probability
    return f"for {flat(view.target)}" + (f" ({percent(share)})" if share is not None else "")


def ledger(view: View) -> str:
    """Return how much of the target's value reached the input; empty without a ledger."""
    if not view.block_relevance:
        return ""
    return f"{100 * view.block_relevance[0]:.0f} % of the target's value reached the input"


def notes(card: Card) -> list[str]:
    """Return the notes of a card, each once."""
    return list(dict.fromkeys(flat(note) for view in card.views for note in view.notes))


def channel(names: Sequence[str], index: int, count: int) -> str:
    """Return the name of a series' channel, or of all of them together."""
    if count == 1 and len(names) > 1:
        return "all channels"
    return flat(names[index]) if index < len(names) else f"channel {index + 1}"
