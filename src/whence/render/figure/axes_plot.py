"""One stream of an explanation on axes of the user's own matplotlib figure, in the user's own style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._utils.optional_imports import need
from ...errors import InputError
from ...results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin
from .. import phrases
from ..view_model import Panel, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from .fonts import Fonts
    from .plots import Paint

MOST = 40  # words on the same axes
NAME = 0.15  # inches that a word's name needs
ROWS = 50  # axes of one figure
TITLE = 9.0  # points
OVERLAY = 0.6  # opacity of a colour map over an image
WIDE = 6.4  # inches of a figure, as matplotlib's own
IMAGE = 3.6  # inches of an image


def axes_for(count: int, ax: Any, size: tuple[float, float]) -> list[Axes]:
    """Return as many axes as there is to draw: those given, or those of a new figure that pyplot does not know.

    Args:
        count: how many.
        ax: axes, a sequence or an array of them, or ``None``.
        size: width and height of a new figure in inches.
    """
    need("matplotlib", "plots", "figures")
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    if count < 1 or count > ROWS:
        raise InputError(f"There are {count:,} explanations to plot: choose 1 to {ROWS} of them, as in e[:10].plot().")
    if ax is None:
        return list(Figure(figsize=size, layout="constrained").subplots(count, 1, squeeze=False)[:, 0])
    given = [ax] if isinstance(ax, Axes) else list(np.asarray(ax, dtype=object).ravel())
    wrong = next((type(a).__name__ for a in given if not isinstance(a, Axes)), None)
    if wrong is not None:
        raise InputError(f"ax is matplotlib axes, or one for each explanation, not {wrong}: fig, ax = plt.subplots().")
    if len(given) != count:
        raise InputError(
            f"There are {count} explanations to plot and {len(given)} axes: give one for each "
            f"(fig, ax = plt.subplots({count})), or none to have a new figure."
        )
    return given


def fitting(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the width and height in inches of a figure that suits some streams, one below the other."""
    return max(map(_width, panels), default=WIDE), sum(map(_height, panels))


def _width(panel: Panel) -> float:
    return IMAGE if _is_image(panel) else WIDE


def _height(panel: Panel) -> float:
    if panel.pieces or panel.tokens:
        return 0.8 + 0.22 * min(_words(panel), MOST)
    if isinstance(panel.origin, ImageOrigin) and _is_image(panel):
        high, wide = panel.origin.image.shape[:2]
        return 0.4 + IMAGE * float(min(max(high / wide, 0.25), 2.0))
    return 0.4 + IMAGE if _is_image(panel) else 2.4


def plot(
    ax: Axes, view: View, panel: Panel, cmap: str | Colormap | None, alpha: float | None, limit: float | None
) -> None:
    """Draw one stream: a bar for each word, an image under its heat map, a waveform or a line over its scores.

    Args:
        ax: where to draw.
        view: the explanation.
        panel: the stream.
        cmap: matplotlib's colour map; ``None`` for the colours of every other output.
        alpha: opacity of the scores' colours.
        limit: the score that gets full colour; ``None`` for the strongest score.
    """
    from .fonts import Fonts
    from .plots import Paint, bars_on, image_on, line_on, palette_map, wave_limit, wave_on

    limit = checked_limit(limit)
    fonts = Fonts(keep=False)
    if _is_image(panel):
        shown = OVERLAY if alpha is None and cmap is not None and isinstance(panel.origin, ImageOrigin) else alpha
        colours = palette_map(view.signed) if cmap is None else cmap
        image_on(ax, panel, Paint(limit or view.limit, colours, view.signed, shown))
    elif panel.pieces or panel.tokens:
        _word_bars(ax, panel, Paint(limit or view.limit, cmap, view.signed, alpha), fonts, limit)
    elif isinstance(panel.origin, AudioOrigin):
        colours = palette_map(view.signed) if cmap is None else cmap
        wave_on(ax, panel, Paint(limit or wave_limit(view, panel), colours, view.signed, alpha))
    elif isinstance(panel.origin, SeriesOrigin):
        colours = palette_map(view.signed) if cmap is None else cmap
        values = panel.origin.values
        steps = panel.scores[~panel.special] if panel.patches is None else panel.patches.sum(1)
        line_on(ax, values, steps, Paint(limit or view.limit, colours, view.signed, alpha))
        if len(panel.origin.channels) == values.shape[1] > 1:
            ax.legend([fonts.show(phrases.flat(c)) for c in panel.origin.channels], fontsize=TITLE - 2, frameon=False)
    else:
        bars_on(ax, panel.scores, Paint(limit or view.limit, cmap, view.signed, alpha))
    title = phrases.flat(f"{phrases.method(view)} {phrases.target(view)}")
    ax.set_title(fonts.show(title), fontproperties=fonts.properties(TITLE), parse_math=False)


def checked_limit(limit: float | None) -> float | None:
    """Return the score that gets full colour, a positive number or ``None``."""
    if limit is not None and not (limit > 0 and math.isfinite(limit)):
        raise InputError(f"limit is the score that gets full colour, a positive number, not {limit!r}.")
    return limit


def _is_image(panel: Panel) -> bool:
    """Whether a stream is drawn as an image: it is one, or a grid of scores of unknown origin."""
    text = panel.pieces or panel.tokens
    return panel.patches is not None and not text and (panel.origin is None or isinstance(panel.origin, ImageOrigin))


def _words(panel: Panel) -> int:
    return sum(piece.score is not None for piece in panel.pieces)


def _word_bars(ax: Axes, panel: Panel, paint: Paint, fonts: Fonts, limit: float | None) -> None:
    """Draw a horizontal bar for each word, from the top in reading order; of a long text, for the strongest."""
    from .canvas import GREY

    words = [(piece.text, piece.score) for piece in panel.pieces if piece.score is not None]
    inches = ax.get_window_extent().height / ax.figure.dpi
    strongest = sorted(range(len(words)), key=lambda i: -abs(words[i][1]))[: max(3, min(MOST, int(inches / NAME)))]
    shown = [words[i] for i in sorted(strongest)]
    scores = np.array([score for _, score in shown], dtype=np.float64)
    places = np.arange(len(shown))
    ax.barh(places, scores, height=0.8, color=paint.colours(scores))
    names = [fonts.shorten(fonts.show(phrases.flat(text)), TITLE, 1.5) for text, _ in shown]
    ax.set_yticks(places, names, fontproperties=fonts.properties(TITLE), parse_math=False)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    lowest, highest = min(scores.min(initial=0.0), -(limit or 0.0)), max(scores.max(initial=0.0), limit or 0.0)
    room = 0.04 * (highest - lowest)
    ax.set_xlim(lowest - room if lowest < 0 else 0.0, highest + room if highest > 0 else 0.0 if lowest < 0 else 1.0)
    ax.axvline(0, color=GREY, linewidth=0.6)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    left_out = len(words) - len(shown)
    ax.set_xlabel(
        f"score (the {len(shown)} strongest of {len(words):,} words)" if left_out else "score", fontsize=TITLE
    )


def chosen_panel(view: View, stream: str | None) -> Panel:
    """Return the stream of a name, by default the first."""
    panels: Sequence[Panel] = view.panels
    found = next((p for p in panels if stream is None or p.stream == stream), None)
    if found is None:
        raise InputError(f"There is no stream '{stream}': choose one of {', '.join(p.stream for p in panels)}.")
    return found
