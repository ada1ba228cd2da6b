"""A page that is filled from the top: texts, coloured words and axes, placed in inches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text

from ..line_layout import Fragment, leftward, lines, seen
from ..palette import blend, ink
from .fonts import Fonts

MARGIN = 0.18
BODY, LABEL, SMALL, TITLE = 9.5, 8.0, 7.0, 10.0  # points
LINE = 0.235  # from one line of words to the next
ROUND, AROUND = 0.02, 0.014  # of a word's corners; and how far its colour reaches into the space beside it
DARK, GREY, PALE = "#1a1a1a", "#6b6b6b", "#d9d9d9"

Colour = tuple[float, float, float]


class Page:
    """What is drawn, in the order it is drawn; ``y`` is how far down the page has been filled.

    Args:
        width: in inches.
        fonts: what its texts are written in.
    """

    def __init__(self, width: float, fonts: Fonts) -> None:
        self.width = width
        self.inner = width - 2 * MARGIN
        self.fonts = fonts
        self.y = MARGIN
        self._steps: list[Callable[[Figure, float], None]] = []

    def write(
        self,
        text: str,
        x: float,
        y: float,
        size: float = BODY,
        colour: str | Colour = DARK,
        anchor: Literal["left", "center", "right"] = "left",
        bold: bool = False,
    ) -> None:
        """A text on one line, its baseline at ``y``."""
        text = self.fonts.show(text)
        wide = self.fonts.width(text, size, bold)
        font = self.fonts.properties(size, bold)

        def step(figure: Figure, height: float) -> None:
            word = _Word(x, height - y, text, fontproperties=font, color=colour, ha=anchor, parse_math=False)
            word.wide = wide
            word.set_transform(figure.dpi_scale_trans)
            figure.add_artist(word, clip=False)

        self._steps.append(step)

    def paragraph(self, text: str, size: float = SMALL, colour: str = GREY) -> None:
        """A text over as many lines as it needs, and the page filled so far."""
        words = [Fragment(w) for word in self.fonts.show(text).split() for w in (word, " ")]
        for line, _ in lines(words, self.inner, lambda t: self.fonts.width(t, size)):
            self.y += size * 1.35 / 72
            self.write("".join(f.text for f in line), MARGIN, self.y, size, colour)

    def words(self, parts: Sequence[Fragment], limit: float, most: int) -> int:
        """Words on their colours, in ``most`` lines at the most; how many words were left out."""
        boxes: list[tuple[Path, Colour]] = []
        leftwards, begun, blank, shown, count = False, True, False, 0, 0
        for line, ends in lines(parts, self.inner, lambda t: self.fonts.width(t, BODY)):
            if count == most:
                break
            if not line and blank:
                continue
            blank = not line
            if begun:
                leftwards = leftward(line)
            count, begun, shown = count + 1, ends, shown + sum(not f.space for f in line)
            self.y += LINE
            self._line(seen(line, leftwards), leftwards, limit, boxes)
        if boxes:
            self._steps.append(lambda figure, height: _boxes(figure, height, boxes))
        self.y += 0.07
        return max(sum(not f.space and f.text != "\n" for f in parts) - shown, 0)

    def _line(self, line: list[Fragment], leftwards: bool, limit: float, boxes: list[tuple[Path, Colour]]) -> None:
        widths = [self.fonts.width(f.text, BODY) for f in line]
        x = MARGIN + (self.inner - sum(widths) if leftwards else 0.0)
        for i, (f, wide) in enumerate(zip(line, widths, strict=True)):
            ground = (255, 255, 255)
            if f.score is not None and not f.unread:
                ground = blend(f.score, limit)
            if ground != (255, 255, 255):
                before, after = (0.0 if 0 <= k < len(line) and not line[k].space else AROUND for k in (i - 1, i + 1))
                boxes.append((_box(x - before, self.y + 0.056, wide + before + after, 0.2), _share(ground)))
            if not f.text.isspace():
                colour = GREY if f.unread else _share(ink(ground))
                self.write(f.text, x + wide / 2, self.y, BODY, colour, "center")
            x += wide

    def axes(self, x: float, y: float, wide: float, high: float, draw: Callable[[Axes], None]) -> None:
        """Axes whose upper left corner is at ``x``, ``y``."""

        def step(figure: Figure, height: float) -> None:
            ax = figure.add_axes((x / self.width, 1 - (y + high) / height, wide / self.width, high / height))
            ax.patch.set_visible(False)
            ax.tick_params(labelsize=SMALL, width=0.5, length=2, pad=2, colors=GREY, labelcolor=GREY)
            ax.spines[:].set_linewidth(0.5)
            ax.spines[:].set_color(PALE)
            draw(ax)

        self._steps.append(step)

    def rule(self) -> None:
        """A thin line over the page."""
        y = self.y

        def step(figure: Figure, height: float) -> None:
            line = Line2D([MARGIN, self.width - MARGIN], [height - y] * 2, color=PALE, linewidth=0.6)
            line.set_transform(figure.dpi_scale_trans)
            figure.add_artist(line, clip=False)

        self._steps.append(step)

    def figure(self) -> Figure:
        """The page, as high as it has been filled."""
        height = self.y + MARGIN
        figure = Figure(figsize=(self.width, height), facecolor="white")
        for step in self._steps:
            step(figure, height)
        return figure


class _Word(Text):
    """A text that is drawn as wide as it was measured to be: without mathematics, TeX or another look at the fonts."""

    wide = 0.0  # inches

    def draw(self, renderer: RendererBase) -> None:
        x, y = self.get_transform().transform(self.get_unitless_position())
        share = {"left": 0.0, "center": 0.5, "right": 1.0}[self.get_horizontalalignment()]
        x -= share * self.wide * float(np.asarray(renderer.points_to_pixels(72.0)))
        if renderer.flipy():
            y = renderer.get_canvas_width_height()[1] - y
        context = renderer.new_gc()
        context.set_foreground(self.get_color())
        renderer.draw_text(context, x, y, self.get_text(), self.get_fontproperties(), 0.0, ismath=False, mtext=self)
        context.restore()
        self.stale = False


def _share(colour: tuple[int, int, int]) -> Colour:
    red, green, blue = (c / 255 for c in colour)
    return red, green, blue


def _box(x: float, bottom: float, wide: float, high: float) -> Path:
    """A rectangle with round corners; ``bottom`` is measured from the top of the page."""
    r = min(ROUND, wide / 2)
    left, right, low, up = x, x + wide, -bottom, high - bottom
    corners = [
        ((left + r, low), (right - r, low), (right, low)),
        ((right, low + r), (right, up - r), (right, up)),
        ((right - r, up), (left + r, up), (left, up)),
        ((left, up - r), (left, low + r), (left, low)),
    ]
    places, codes = [corners[0][0]], [int(Path.MOVETO)]
    for k, (_, end, corner) in enumerate(corners):
        places += [end, corner, corners[(k + 1) % 4][0]]
        codes += [int(Path.LINETO), int(Path.CURVE3), int(Path.CURVE3)]
    return Path([*places, places[0]], [*codes, int(Path.CLOSEPOLY)])


def _boxes(figure: Figure, height: float, boxes: list[tuple[Path, Colour]]) -> None:
    """All boxes of a text at once, under its words."""
    paths = [Path(np.asarray(path.vertices) + np.array([0.0, height]), path.codes) for path, _ in boxes]
    collection = PathCollection(paths, facecolors=[c for _, c in boxes], linewidths=0)
    collection.set_transform(figure.dpi_scale_trans)
    collection.set_zorder(0.5)
    figure.add_artist(collection, clip=False)
