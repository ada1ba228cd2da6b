"""Views of a table of scores: in a terminal, as an HTML page, as a figure."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from .figure.figure import DPI, KINDS, default_style
from .html.markup import Markup, plain, tag
from .html.markup import label as spaced
from .html.page import page as whole_page
from .html.shade import rgb, signed
from .palette import AGAINST, FOR, shade
from .terminal import Screen, colours, columns
from .view_model import ScoreGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from .figure.fonts import Fonts
    from .figure.plots import Paint

NAMES = 60  # columns that are named in a figure; of more, some are
CELL = 12  # pixels of a cell in a page
LETTER = 6.2  # pixels of a letter of a row's name
FAINT = 0.02  # of the strongest score: a cell below it is left white
RAMP = " ░▒▓█"


def label(name: str) -> str:
    """Return a name on one line, every character visible."""
    return plain(spaced(name))


def show(table: ScoreGrid) -> None:
    """Write a table to the terminal."""
    out = text(table, colours(), shutil.get_terminal_size().columns)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(out.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def text(table: ScoreGrid, colour: bool | int = True, width: int = 80) -> str:
    """Return a table as lines: cells two columns wide, coloured or a shade with its sign; then the strongest cells."""
    screen = Screen(colour, width)
    side = min(max((columns(label(name)) for name in table.rows), default=0), 20)
    most = max(1, (width - side - 1) // 2)
    lines = [table.title]
    for name, row in zip(table.rows, table.values, strict=True):
        short = label(name)[:side]
        cells = "".join(_cell(float(value), table.limit, screen) for value in row[:most])
        lines.append(" " * (side - columns(short)) + short + " " + cells.rstrip())
    left = len(table.columns) - most
    if left > 0:
        lines.append(f"({left} more {table.across or 'columns'} to the right: make the terminal wider, or save it.)")
    strongest = table.strongest(5)
    lines += [f"{signed(value):>9}  {label(row)} · {label(column)}" for row, column, value in strongest]
    return "\n".join(lines)


def _cell(value: float, limit: float, screen: Screen) -> str:
    if screen.colour:
        return screen.paint("  ", back=screen.ground(value, limit))
    step = RAMP[min(len(RAMP) - 1, round((len(RAMP) - 1) * abs(value) / limit))] if limit else " "
    return ("-" if value < 0 and step != " " else " ") + step


def page(table: ScoreGrid) -> str:
    """Return a table as a self-contained document."""
    return whole_page([], title=table.title, sections=[section(table)])


def fragment(table: ScoreGrid) -> str:
    """Return a table for a notebook."""
    return tag("div", tag("strong", table.title), section(table), class_="whence whence-notebook")


def section(table: ScoreGrid, links: bool = False) -> Markup:
    """Return a table as an image of cells with tooltips.

    Args:
        table: the table.
        links: whether each row is a link to the card of its number.
    """
    side = int(LETTER * min(24, max((len(label(name)) for name in table.rows), default=0))) + 8
    top = int(LETTER * min(16, max((len(label(name)) for name in table.columns), default=0))) + 8
    width = side + CELL * len(table.columns)
    height = top + CELL * len(table.rows)
    parts = [_column(label(name), side + CELL * (i + 0.75), top - 4) for i, name in enumerate(table.columns)]
    for r, name in enumerate(table.rows):
        y = top + CELL * r
        cells = [
            _rect(table, r, c, side + CELL * c, y)
            for c in range(len(table.columns))
            if abs(table.values[r, c]) > FAINT * table.limit
        ]
        heading = tag("text", label(name)[:24], x=side - 4, y=y + CELL * 0.8, text_anchor="end")
        parts.append(tag("a", heading, *cells, href=f"#card-{r + 1}") if links else tag("g", heading, *cells))
    drawing = tag(
        "svg", tag("title", table.title), *parts, viewBox=f"0 0 {width} {height}", width=width, height=height,
        role="img", font_size=10, fill="currentColor",
    )  # fmt: skip
    return tag("div", drawing, class_="whence-cells", tabindex=0, role="group", aria_label=table.title)


def _column(name: str, x: float, y: float) -> Markup:
    return tag("text", name[:16], transform=f"translate({x} {y}) rotate(-90)")


def _rect(table: ScoreGrid, r: int, c: int, x: float, y: float) -> Markup:
    value = float(table.values[r, c])
    colour, opacity = shade(value, table.limit)
    tooltip = tag("title", f"{label(table.rows[r])} · {label(table.columns[c])}: {signed(value)}")
    return tag(
        "rect", tooltip, x=x, y=y, width=CELL - 1, height=CELL - 1, fill=rgb(colour), fill_opacity=round(opacity, 3)
    )


def draw(table: ScoreGrid, kind: str) -> bytes:
    """Draw a table into a file's bytes, ``png``, ``svg`` or ``pdf``; the same table gives the same bytes."""
    with default_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

        from .figure.fonts import Fonts
        from .figure.plots import Paint

        wide = min(16.0, max(3.0, 0.9 + 0.16 * len(table.columns)))
        high = min(24.0, max(1.4, 0.9 + 0.16 * len(table.rows)))
        figure = Figure(figsize=(wide, high), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        fonts = Fonts(keep=kind == "svg")
        draw_on(axes, table, Paint(table.limit), fonts)
        axes.set_title(textwrap.fill(fonts.show(label(table.title)), int(12 * wide)), fontsize=9, loc="left")
        signs = [Patch(color=rgb(FOR), label="for the target")]
        if bool((table.values < 0).any()):
            signs.append(Patch(color=rgb(AGAINST), label="against it"))
        figure.legend(handles=signs, fontsize=6, frameon=False, loc="outside lower right", ncols=2)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=DPI, metadata=KINDS[kind])
    return out.getvalue()


def draw_on(axes: Axes, table: ScoreGrid, paint: Paint, fonts: Fonts) -> None:
    """Draw the cells of a table on axes, with the names of rows and columns."""
    paint.image(axes, table.values, aspect="auto", interpolation="nearest")
    for axis, names, axis_label in ((axes.xaxis, table.columns, table.across), (axes.yaxis, table.rows, table.down)):
        step = max(1, -(-len(names) // NAMES))
        shown = [fonts.show(label(n)[:18]) for n in names[::step]]
        axis.set_ticks(range(0, len(names), step), shown, parse_math=False)
        axis.set_label_text(axis_label, fontsize=8)
    axes.tick_params(labelsize=6, length=0)
    axes.tick_params(axis="x", rotation=0 if max(map(len, table.columns), default=0) < 3 else 90)
    for spine in axes.spines.values():
        spine.set_visible(False)


def plot(axes: Axes, table: ScoreGrid, cmap: str | Colormap | None, alpha: float | None, limit: float | None) -> None:
    """Draw a table on axes of the user's own figure: see ``whence.Table.plot``."""
    from .figure.axes_plot import checked_limit
    from .figure.fonts import Fonts
    from .figure.plots import Paint, palette_map

    signed_scores = bool((table.values < 0).any())
    colours = palette_map(signed_scores) if cmap is None else cmap
    fonts = Fonts(keep=False)
    draw_on(axes, table, Paint(checked_limit(limit) or table.limit, colours, signed_scores, alpha), fonts)
    axes.set_title(fonts.show(label(table.title)), fontproperties=fonts.properties(9), parse_math=False)
