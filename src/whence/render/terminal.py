"""Explanations in a terminal: words on their colours, images in half blocks; without colours, words and numbers."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from ..results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin
from . import phrases
from .line_layout import Fragment, fragments, lines
from .palette import AGAINST, FOR, blend, ink
from .view_model import Card, Floats, Panel, View

WHITE, GREY = (255, 255, 255), (118, 118, 118)
RESET = "\x1b[0m"
CARDS = 40
CHANNELS = 12
STRONGEST = 8  # words that are listed with their scores where there are no colours
RAMP = " .:-=+*#%@"
LEVELS = " ▁▂▃▄▅▆▇█"
NARROWEST = 20
MARKED = 0.25  # of the strongest word's score, at least
#: shades of red and of blue among the 256 colours; the nearest to any other shade may be brown or green
REDS = ((255, 255, 255), (255, 215, 215), (255, 175, 175), (255, 135, 135), (215, 95, 95))
BLUES = ((255, 255, 255), (215, 215, 255), (175, 215, 255), (135, 175, 255), (95, 135, 215))
CUBE = (0, 95, 135, 175, 215, 255)  # of the 256 colours, 216 are combinations of these

RGB = tuple[int, int, int]


def show(cards: Sequence[Card]) -> None:
    """Write explanations to the terminal, in colours if it has them.

    Colours are used if the output is a terminal and ``NO_COLOR`` is not set, or if ``FORCE_COLOR`` is set: 24-bit
    colours if ``COLORTERM`` is ``truecolor`` or ``24bit``, 256 otherwise. A character that the output cannot encode is
    written as its number.

    Args:
        cards: the explanations, by input.

    Example:
        >>> show(cards)  # doctest: +SKIP
    """
    out = text(cards, colours(), shutil.get_terminal_size().columns)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(out.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def text(cards: Sequence[Card], colour: bool | int = True, width: int = 80) -> str:
    """Return explanations as lines for a terminal.

    Every character is safe to print: those that would move the cursor, change colours or change the direction of
    writing are made visible. Text that runs from right to left is written in reading order: terminals reverse it.

    Args:
        cards: the explanations, by input.
        colour: ``True`` for 24-bit colours, ``256`` for a terminal that has no more, ``False`` for none.
        width: columns of the terminal.

    Example:
        >>> print(text(cards, colour=False, width=60))  # doctest: +SKIP
    """
    screen = Screen(colour, max(width, NARROWEST))
    out: list[str] = []
    for card in cards[:CARDS]:
        out += [*_card(card, screen), ""]
    if len(cards) > CARDS:
        out += screen.plain(f"…and {len(cards) - CARDS:,} more inputs: save as .html to see all.")
    elif out:
        out.pop()
    return "\n".join(out)


def colours() -> bool | int:
    """Return the colours of the terminal: none (false), 256, or 24-bit (true)."""
    if not os.environ.get("FORCE_COLOR") and (os.environ.get("NO_COLOR") or not sys.stdout.isatty()):
        return False
    return True if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") else 256


class Screen:
    """The colours and the width of a terminal."""

    def __init__(self, colour: bool | int, width: int) -> None:
        self.colour = colour
        self.width = width

    def paint(self, shown: str, front: RGB | None = None, back: RGB | None = None, bold: bool = False) -> str:
        """Return a text in colours, if there are any."""
        if not self.colour:
            return shown
        codes = ["1"] * bold + [self._code(c, place) for c, place in ((front, 38), (back, 48)) if c is not None]
        return f"\x1b[{';'.join(codes)}m{shown}{RESET}" if codes else shown

    def ground(self, score: float, limit: float, paper: RGB = WHITE) -> RGB:
        """Return the colour of a score on a background; of 256 colours, that on white."""
        if self.colour is True:
            return blend(score, limit, paper)
        strength = min(abs(score) / limit, 1.0) if limit > 0 else 0.0
        return (REDS if score >= 0 else BLUES)[round(strength * (len(REDS) - 1))]

    def _code(self, colour: RGB, place: int) -> str:
        if self.colour is True:
            return f"{place};2;{colour[0]};{colour[1]};{colour[2]}"
        return f"{place};5;{_nearest(colour)}"

    def plain(self, shown: str, front: RGB | None = None, bold: bool = False) -> list[str]:
        """Return a text as lines of the terminal's width."""
        words = [Fragment(f) for word in shown.split() for f in (word, " ")]
        wrapped = ("".join(f.text for f in line) for line, _ in lines(words, self.width, columns))
        return [self.paint(line, front, bold=bold) for line in wrapped]


@lru_cache(4096)
def _nearest(colour: RGB) -> int:
    """Return the closest of the 256 colours."""
    places = [min(range(6), key=lambda k: abs(CUBE[k] - c)) for c in colour]
    grey = min(max(round((sum(colour) / 3 - 8) / 10), 0), 23)
    choices = [(16 + 36 * places[0] + 6 * places[1] + places[2], [CUBE[p] for p in places])]
    choices.append((232 + grey, [8 + 10 * grey] * 3))
    return min(choices, key=lambda choice: sum((a - b) ** 2 for a, b in zip(choice[1], colour, strict=True)))[0]


def columns(shown: str) -> int:
    """Return an upper bound of the columns that a text takes in a terminal.

    Example:
        >>> columns("café"), columns("日本")
        (4, 4)
    """
    return len(shown) if shown.isascii() else sum(_columns(c) for c in shown)


def _columns(c: str) -> int:
    if c == "\ufe0f":  # the character before it becomes an emoji, which may be one column wider
        return 1
    if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def _card(card: Card, screen: Screen) -> Iterator[str]:
    yield from screen.plain(phrases.flat(card.title), bold=True)
    yield from screen.plain(phrases.prediction(card))
    for view in card.views:
        yield ""
        yield from screen.plain(f"{phrases.method(view)} {phrases.target(view)}", GREY)
        for panel in view.panels:
            yield from _panel(view, panel, screen)
        yield from screen.plain(phrases.ledger(view), GREY)
    if screen.colour and card.views:
        yield _legend(screen, any(v.signed for v in card.views))
    for note in phrases.notes(card):
        yield from screen.plain(note, GREY)


def _legend(screen: Screen, signed: bool) -> str:
    scale = range(-4, 5) if signed else range(5)
    strip = "".join(screen.paint(" ", back=screen.ground(k, 4)) for k in scale)
    return f"{'against ' if signed else '0 '}{strip} for"


def _panel(view: View, panel: Panel, screen: Screen) -> Iterator[str]:
    grid = panel.patches if panel.patches is not None else panel.heat
    if panel.pieces or panel.tokens:
        yield from (_words if screen.colour else _marked)(view, panel, screen)
    elif isinstance(panel.origin, SeriesOrigin):
        yield from _series(view, panel, screen)
    elif isinstance(panel.origin, AudioOrigin):
        scores = panel.scores[~panel.special] if panel.patches is None else panel.patches.sum(0)
        limit = view.limit if panel.patches is None else float(np.abs(scores).max())
        yield from _bars(scores, limit, screen)
        yield from screen.plain(f"0 to {panel.origin.heard:.2f} seconds", GREY)
    elif grid is not None:
        yield from (_picture if screen.colour else _grid)(view, panel, grid, screen)
    elif not len(panel.scores):
        yield from screen.plain(phrases.EMPTY, GREY)
    else:
        yield from _bars(panel.scores, view.limit, screen)
        yield from screen.plain(f"positions 0 to {len(panel.scores) - 1}", GREY)


def _words(view: View, panel: Panel, screen: Screen) -> Iterator[str]:
    """Yield lines of words on their colours and a white background, so that zero is white on a dark terminal too."""
    for line, _ in lines(fragments(panel), screen.width - 2, columns):
        used = sum(columns(f.text) for f in line)
        padded = [Fragment(" "), *line, Fragment(" " * (screen.width - 1 - used))]
        yield "".join(_word(f, view.limit, screen) for f in padded)


def _word(f: Fragment, limit: float, screen: Screen) -> str:
    if f.unread:
        return screen.paint(f.text, GREY, WHITE)
    ground = screen.ground(f.score, limit) if f.score is not None else WHITE
    return screen.paint(f.text, ink(ground), ground)


def _marked(view: View, panel: Panel, screen: Screen) -> Iterator[str]:
    """Yield the text with the scores of its strongest words, and a table of them."""
    parts = list(fragments(panel))
    scored = [i for i, f in enumerate(parts) if f.score and not f.unread]
    ranked = sorted(scored, key=lambda i: -abs(parts[i].score or 0.0))[:STRONGEST]
    strongest = [i for i in ranked if abs(parts[i].score or 0.0) >= MARKED * abs(parts[ranked[0]].score or 0.0)]
    marks = {i: f"({phrases.number(parts[i].score or 0.0, view.limit)})" for i in strongest}
    shown = [f._replace(text=f.text + marks.get(i, "")) for i, f in enumerate(parts)]
    yield from ("".join(f.text for f in line) for line, _ in lines(_bracketed(shown), screen.width, columns))
    yield from _table([parts[i] for i in strongest], view.limit, screen.width)


def _bracketed(parts: Iterable[Fragment]) -> Iterator[Fragment]:
    """Put square brackets around truncated text."""
    before = False
    for f in parts:
        if f.unread != before and not f.space and f.text != "\n":
            yield Fragment("[not read:" if f.unread else "]")
            yield Fragment(" ")
            before = f.unread
        yield f
    if before:
        yield Fragment("]")


def _table(rows: list[Fragment], limit: float, width: int) -> Iterator[str]:
    """Yield a line per word: the word, its score and a bar."""
    numbers = [phrases.number(f.score or 0.0, limit) for f in rows]
    second = max((len(n) for n in numbers), default=0)
    words = [_fit(f.text, min(24, width // 3)) for f in rows]
    first = max((columns(w) for w in words), default=0)
    room = max(min(24, width - first - second - 6), 1)
    for f, word, number in zip(rows, words, numbers, strict=True):
        length = max(round(room * min(abs(f.score or 0.0) / (limit or 1.0), 1.0)), 1)
        bar = ("+" if (f.score or 0.0) > 0 else "-") * length
        yield f"  {word}{' ' * (first - columns(word))}  {number:>{second}}  {bar}"


def _fit(word: str, width: int) -> str:
    """Shorten a word to a width."""
    if columns(word) <= width:
        return word
    while columns(word) >= width:
        word = word[:-1]
    return word + "…"


def _picture(view: View, panel: Panel, grid: Floats, screen: Screen) -> Iterator[str]:
    """Yield the image, and beside it the same in pale grey under the colours of its scores."""
    heat = panel.heat if panel.heat is not None else grid
    image = panel.origin.image if isinstance(panel.origin, ImageOrigin) else None
    high, wide = heat.shape if image is None else image.shape[:2]
    across = min(36, (screen.width - 2) // 2)
    down = min(max(round(across * high / wide / 2), 1), 18) * 2
    across = min(max(round(down * wide / high), 2), across)
    scores = _shrunk(heat, down, across)
    if image is None:
        yield from _halves(_blended(scores, np.full((down, across), 255.0), view.limit, screen), screen)
        return
    colours = np.stack([_shrunk(image[..., c].astype(np.float64), down, across) for c in range(3)], -1)
    pale = 255 - 0.5 * (255 - colours @ np.array([0.299, 0.587, 0.114]))
    heated = _blended(scores, pale, view.limit, screen)
    yield from ("  ".join(pair) for pair in zip(_halves(colours, screen), _halves(heated, screen), strict=True))


def _blended(scores: Floats, pale: Floats, limit: float, screen: Screen) -> Floats:
    flat = [screen.ground(s, limit, (round(p),) * 3) for s, p in zip(scores.ravel(), pale.ravel(), strict=True)]
    return np.array(flat, np.float64).reshape(*scores.shape, 3)


def _halves(colours: Floats, screen: Screen) -> Iterator[str]:
    """Yield a line per two rows of pixels: the upper halves of its characters, and the lower."""
    for upper, lower in zip(colours[::2], colours[1::2], strict=True):
        yield "".join(screen.paint("▀", _rgb(a), _rgb(b)) for a, b in zip(upper, lower, strict=True))


def _rgb(colour: Floats) -> RGB:
    red, green, blue = (round(float(c)) for c in colour)
    return red, green, blue


def _shrunk(values: Floats, down: int, across: int) -> Floats:
    """Resize an array; each cell is the mean of the values that it covers."""
    for axis, count in ((0, down), (1, across)):
        size = values.shape[axis]
        edges = [(k * size // count, max(-(-(k + 1) * size // count), k * size // count + 1)) for k in range(count)]
        means = [values.take(range(*edge), axis).mean(axis) for edge in edges]
        values = np.stack(means, axis)
    return values


def _grid(view: View, panel: Panel, grid: Floats, screen: Screen) -> Iterator[str]:
    """Yield a sign and a character for the strength of each patch."""
    high, wide = grid.shape
    across = min(wide, screen.width // 2, 32)
    scores = _shrunk(grid, min(high, max(round(high * across / wide), 1), 32), across)
    for row in scores:
        yield "".join(_cell(float(s), view.limit) for s in row).rstrip()
    yield from screen.plain(f"for: + against: - strength:{RAMP.rstrip()}", GREY)


def _cell(score: float, limit: float) -> str:
    level = round((len(RAMP) - 1) * min(abs(score) / limit, 1.0)) if limit > 0 else 0
    return f"{'-' if score < 0 else '+'}{RAMP[level]}" if level else "  "


def _series(view: View, panel: Panel, screen: Screen) -> Iterator[str]:
    assert isinstance(panel.origin, SeriesOrigin), "a panel shown as a series has one"
    steps = panel.patches if panel.patches is not None else panel.scores[~panel.special][:, None]
    for c in range(min(steps.shape[1], CHANNELS)):
        names = panel.origin.channels
        yield from screen.plain(phrases.channel(names, c, steps.shape[1]), GREY)
        yield from _bars(steps[:, c], view.limit, screen)
    if steps.shape[1] > CHANNELS:
        yield from screen.plain(f"…and {steps.shape[1] - CHANNELS} more channels: save as .html to see all.", GREY)


def _bars(scores: Floats, limit: float, screen: Screen) -> Iterator[str]:
    """Yield a line of bars for the scores for the target; below it, one for those against it."""
    room = screen.width - 8
    slices = np.array_split(scores, min(len(scores), room)) if len(scores) else []
    strongest = [float(values[np.abs(values).argmax()]) for values in slices]
    for name, sign, colour in (("for", 1, FOR), ("against", -1, AGAINST)):
        if sign > 0 or any(s < 0 for s in strongest):
            levels = (min(max(sign * s / limit, 0.0), 1.0) if limit > 0 else 0.0 for s in strongest)
            bars = "".join(LEVELS[-(-round(1000 * v) * 8 // 1000)] for v in levels)
            yield f"{name:<8}{screen.paint(bars, colour)}"
