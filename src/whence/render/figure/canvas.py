"""A canvas that is filled from the top: texts, coloured words and axes, placed in inches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text

from ..line_layout import Fragment, leftward, lines, visual_order
from ..palette import blend, ink
from .fonts import Fonts

MARGIN = 0.18
BODY = 9.5  # font sizes in points
LABEL = 8.0
SMALL = 7.0
TITLE = 10.0
LINE = 0.235  # from one line of words to the next
RADIUS = 0.02  # of the corners of a word's box
OVERHANG = 0.014  # how far a word's box reaches into the space beside it
DARK = "#1a1a1a"
GREY = "#6b6b6b"
PALE = "#d9d9d9"
WHITE = (255, 255, 255)

Colour = tuple[float, float, float]


class Canvas:
    """A figure that grows downwards while it is filled: drawing code reserves room and draws at the place it gets.

    All lengths are in inches; ``y`` is measured from the top. What is drawn is recorded, and drawn once the height of
    the figure is known (:meth:`figure`).

    Args:
        width: of the figure.
        fonts: measures texts and chooses their fonts.
    """

    def __init__(self, width: float, fonts: Fonts) -> None:
        self.width = width
        self.inner = width - 2 * MARGIN
        self.fonts = fonts
        self._filled = MARGIN
        self._steps: list[Callable[[Figure, float], None]] = []

    @property
    def filled(self) -> float:
        """How far from the top the canvas is filled."""
        return self._filled

    def space(self, height: float) -> None:
        """Leave some room empty."""
        self._filled += height

    def row(self, height: float) -> float:
        """Reserve a line of text; return the ``y`` of its baseline, at its bottom."""
        self._filled += height
        return self._filled

    def block(self, height: float) -> float:
        """Reserve room for a drawing; return the ``y`` of its top."""
        top = self._filled
        self._filled += height
        return top

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
        """Write a text on one line, its baseline at ``y``."""
        text = self.fonts.show(text)
        wide = self.fonts.width(text, size, bold)
        font = self.fonts.properties(size, bold)

        def step(figure: Figure, height: float) -> None:
            word = _Word(x, height - y, text, wide, fontproperties=font, color=colour, ha=anchor, parse_math=False)
            word.set_transform(figure.dpi_scale_trans)
            figure.add_artist(word, clip=False)

        self._steps.append(step)

    def paragraph(self, text: str, size: float = SMALL, colour: str = GREY) -> None:
        """Write a text over as many rows as it needs."""
        words = [Fragment(w) for word in self.fonts.show(text).split() for w in (word, " ")]
        for line, _ in lines(words, self.inner, lambda t: self.fonts.width(t, size)):
            self.write("".join(f.text for f in line), MARGIN, self.row(size * 1.35 / 72), size, colour)

    def words(self, parts: Sequence[Fragment], limit: float, most: int) -> int:
        """Write words on their colours, in ``most`` lines at the most; return how many words were left out."""
        boxes: list[tuple[Path, Colour]] = []
        shown = 0
        count = 0
        leftwards = False
        starts_paragraph = True
        after_blank = False
        for line, ends_paragraph in lines(parts, self.inner, lambda t: self.fonts.width(t, BODY)):
            if count == most:
                break
            if not line and after_blank:
                continue
            after_blank = not line
            if starts_paragraph:
                leftwards = leftward(line)
            starts_paragraph = ends_paragraph
            count += 1
            shown += sum(not f.space for f in line)
            boxes += self._line(visual_order(line, leftwards), leftwards, limit, self.row(LINE))
        if boxes:
            self._steps.append(lambda figure, height: _draw_boxes(figure, height, boxes))
        self.space(0.07)
        return max(sum(not f.space and f.text != "\n" for f in parts) - shown, 0)

    def _line(self, line: list[Fragment], leftwards: bool, limit: float, y: float) -> list[tuple[Path, Colour]]:
        """Write one line of words; return the boxes behind them."""
        boxes = []
        widths = [self.fonts.width(f.text, BODY) for f in line]
        x = MARGIN + (self.inner - sum(widths) if leftwards else 0.0)
        for i, (f, wide) in enumerate(zip(line, widths, strict=True)):
            ground = WHITE if f.score is None or f.unread else blend(f.score, limit)
            if ground != WHITE:
                before, after = (0.0 if 0 <= k < len(line) and not line[k].space else OVERHANG for k in (i - 1, i + 1))
                boxes.append((_box(x - before, y + 0.056, wide + before + after, 0.2), _unit_range(ground)))
            if not f.text.isspace():
                colour = GREY if f.unread else _unit_range(ink(ground))
                self.write(f.text, x + wide / 2, y, BODY, colour, "center")
            x += wide
        return boxes

    def axes(self, x: float, y: float, wide: float, high: float, draw: Callable[[Axes], None]) -> None:
        """Draw on axes whose upper left corner is at ``x``, ``y``."""

        def step(figure: Figure, height: float) -> None:
            ax = figure.add_axes((x / self.width, 1 - (y + high) / height, wide / self.width, high / height))
            ax.patch.set_visible(False)
            ax.tick_params(labelsize=SMALL, width=0.5, length=2, pad=2, colors=GREY, labelcolor=GREY)
            ax.spines[:].set_linewidth(0.5)
            ax.spines[:].set_color(PALE)
            draw(ax)

        self._steps.append(step)

    def rule(self) -> None:
        """Draw a thin horizontal line below what is filled."""
        y = self.filled

        def step(figure: Figure, height: float) -> None:
            line = Line2D([MARGIN, self.width - MARGIN], [height - y] * 2, color=PALE, linewidth=0.6)
            line.set_transform(figure.dpi_scale_trans)
            figure.add_artist(line, clip=False)

        self._steps.append(step)

    def figure(self) -> Figure:
        """Return the matplotlib figure, as high as the canvas is filled."""
        height = self.filled + MARGIN
        figure = Figure(figsize=(self.width, height), facecolor="white")
        for step in self._steps:
            step(figure, height)
        return figure


class _Word(Text):
    """A text placed by its measured width, in inches: without mathematics, TeX or another layout."""

    def __init__(self, x: float, y: float, text: str, wide: float, **options: Any) -> None:
        super().__init__(x, y, text, **options)
        self.wide = wide

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


def _unit_range(colour: tuple[int, int, int]) -> Colour:
    """Return a colour of 0 to 255 as one of 0 to 1."""
    red, green, blue = (c / 255 for c in colour)
    return red, green, blue


def _box(x: float, bottom: float, wide: float, high: float) -> Path:
    """Return a rectangle with round corners; ``bottom`` is measured from the top of the canvas."""
    r = min(RADIUS, wide / 2)
    left = x
    right = x + wide
    low = -bottom
    up = high - bottom
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


def _draw_boxes(figure: Figure, height: float, boxes: list[tuple[Path, Colour]]) -> None:
    """Draw all boxes of a text at once, under its words."""
    paths = [Path(np.asarray(path.vertices) + np.array([0.0, height]), path.codes) for path, _ in boxes]
    collection = PathCollection(paths, facecolors=[c for _, c in boxes], linewidths=0)
    collection.set_transform(figure.dpi_scale_trans)
    collection.set_zorder(0.5)
    figure.add_artist(collection, clip=False)
