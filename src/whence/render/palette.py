"""One palette for every output: red for the target, blue against it, and no colour at zero.

Red and blue can be distinguished with all common kinds of colour vision. The opacity shows how strong a score is, so
zero is the page's own background, be it white or black.
"""

from __future__ import annotations

FOR = (202, 54, 44)  # positive scores
AGAINST = (30, 102, 190)  # negative scores
OPAQUE = 0.85  # of the strongest score


def shade(score: float, limit: float) -> tuple[tuple[int, int, int], float]:
    """Return the colour of a score and its opacity, 0 to ``OPAQUE``; ``limit`` is the score that gets full colour.

    Example:
        >>> shade(-0.5, 1.0)
        ((30, 102, 190), 0.425)
    """
    strength = min(abs(score) / limit, 1.0) if limit > 0 else 0.0
    return (FOR if score >= 0 else AGAINST), OPAQUE * strength


def blend(score: float, limit: float, background: tuple[int, int, int] = (255, 255, 255)) -> tuple[int, int, int]:
    """Return the colour of a score laid over a background."""
    colour, alpha = shade(score, limit)
    red, green, blue = (round(alpha * c + (1 - alpha) * b) for c, b in zip(colour, background, strict=True))
    return red, green, blue


def ink(background: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return black or white, whichever is easier to read on a background (WCAG 2 contrast)."""
    return (0, 0, 0) if luminance(background) > 0.179 else (255, 255, 255)


def luminance(colour: tuple[int, int, int]) -> float:
    """Return the relative luminance as WCAG 2 defines it."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
