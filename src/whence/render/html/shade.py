"""Scores as a page shows them: one of a few shades, for light and dark themes, with a readable text colour."""

from __future__ import annotations

from ..palette import AGAINST, FOR, blend, ink

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
NIGHT: Colour = (24, 26, 31)
MINUS = "\u2212"
LEVELS = 32  # shades of each sign; more could not be distinguished


def shade_class(score: float, limit: float) -> str:
    """Return the CSS class of a score's shade, empty where it is too weak to be seen.

    Example:
        >>> shade_class(-0.5, 1.0)
        'whence-a16'
    """
    level = round(LEVELS * min(abs(score) / limit, 1.0)) if limit > 0 else 0
    return f"whence-{'f' if score >= 0 else 'a'}{level}" if level else ""


def shade_rules() -> str:
    """Return the CSS rules of every shade and of the backgrounds."""
    rules = [
        f".whence{{--whence-paper:{rgb(PAPER)};--whence-for:{rgb(FOR)};--whence-against:{rgb(AGAINST)}}}",
        f"@supports (color:light-dark(#000,#fff)){{.whence{{--whence-paper:{_light_dark(PAPER, NIGHT)}}}}}",
    ]
    for sign, letter in ((1, "f"), (-1, "a")):
        for level in range(1, LEVELS + 1):
            day, night = (blend(sign * level, LEVELS, paper) for paper in (PAPER, NIGHT))
            rules.append(
                f".whence .whence-{letter}{level}{{{_both('background-color', day, night)}"
                f"{_both('color', ink(day), ink(night))}}}"
            )
    return "\n".join(rules)


def number(value: float) -> str:
    """Format a score with four significant digits and its sign, a typographic minus.

    Example:
        >>> number(-0.123456)
        '−0.1235'
    """
    return signed(value).replace("-", MINUS)


def signed(value: float) -> str:
    """Format a score with four significant digits and its sign, an ASCII minus."""
    return f"{value:+.4g}" if value else "0"


def rounded(share: float) -> str:
    """Format a share of the target's value in percent; it can be negative or above 100."""
    return f"{100 * share:.0f}\u00a0%".replace("-", MINUS)


def rgb(colour: Colour) -> str:
    """Format a colour as ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _both(name: str, day: Colour, night: Colour) -> str:
    """Return a property with ``light-dark``, preceded by a fallback for browsers without it."""
    return f"{name}:{rgb(day)};{name}:{_light_dark(day, night)};" if day != night else f"{name}:{rgb(day)};"


def _light_dark(day: Colour, night: Colour) -> str:
    return f"light-dark({rgb(day)},{rgb(night)})"
