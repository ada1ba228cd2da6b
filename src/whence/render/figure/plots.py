"""Images, audio, series and plain numbers with their scores, drawn on axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ...results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin
from ..palette import AGAINST, FOR, OPAQUE
from ..phrases import flat
from ..view_model import Floats, Panel, View
from .canvas import DARK, GREY, LABEL, MARGIN, PALE, SMALL, Canvas

LARGEST = 1200  # pixels of an image's longer side that are drawn
COLUMNS = 4  # images in a row
WIDEST = 2.6  # inches of an image
HIGHEST = 2.8
GAP = 0.16  # inches between two images
CHANNELS = 12  # lines of a series
GUTTER = 0.4  # inches, left of a plot, for its numbers
NAME = 0.68  # and for the name of a channel
INSET = 0.14
BROAD = 6.0  # inches: enough for the scale of colours and a sentence beside it
DASHES = ((), (5, 2), (1, 2), (6, 2, 1, 2))  # of the lines of several channels on the same axes
BELOW = 0.3  # inches, under a plot, for numbers and a label


def tint(scores: Floats, limit: float) -> Floats:
    """Return scores as colours: red, green, blue and opacity, 0 to 1, in a last axis of their own.

    Example:
        >>> tint(np.array([0.0, 2.0]), 2.0)[:, 3].tolist()
        [0.0, 0.85]
    """
    strength = np.clip(np.abs(scores) / limit, 0, 1) if limit > 0 else np.zeros_like(scores)
    colour = np.where(scores[..., None] >= 0, np.array(FOR), np.array(AGAINST)) / 255
    return np.concatenate([colour, OPAQUE * strength[..., None]], -1)


@dataclass(frozen=True)
class Paint:
    """How scores become colours: by the palette of every output, or by one of matplotlib's colour maps.

    Attributes:
        limit: the score that gets full colour.
        cmap: a colour map, or its name, from ``-limit`` to ``limit`` (from 0, if no score is negative). With one, the
            image drawn keeps the scores themselves, as a colour bar needs; without, it is of their colours.
        signed: whether any score is negative.
        alpha: opacity, on top of that of the colours.
    """

    limit: float
    cmap: str | Colormap | None = None
    signed: bool = True
    alpha: float | None = None

    def image(self, ax: Axes, scores: Floats, **placement: Any) -> AxesImage:
        """Draw scores ``[rows, columns]`` on axes."""
        if self.cmap is None:
            return ax.imshow(tint(scores, self.limit), alpha=self.alpha, **placement)
        return ax.imshow(scores, cmap=self.cmap, norm=self._norm(), alpha=self.alpha, **placement)

    def colours(self, scores: Floats) -> Floats:
        """Return the colours ``[..., 4]`` of bars, whose length is the score: by the palette, they have one opacity."""
        if self.cmap is None:
            return tint(np.where(scores >= 0, 1.0, -1.0) * self._opacity(), 1.0)
        mapper = ScalarMappable(self._norm(), self.cmap)
        return np.asarray(mapper.to_rgba(scores, alpha=self.alpha), dtype=np.float64)

    def _opacity(self) -> float:
        return 1.0 if self.alpha is None else self.alpha

    def _norm(self) -> Normalize:
        limit = self.limit or 1.0
        return Normalize(-limit if self.signed else 0.0, limit)


def palette_map(signed: bool = True) -> Colormap:
    """Return the palette of every output as a matplotlib colour map, transparent at zero."""
    steps = np.linspace(-1.0 if signed else 0.0, 1.0, 511)
    return ListedColormap(tint(steps, 1.0), name="whence")


def images(canvas: Canvas, views: list[tuple[View, Panel]], captions: list[tuple[str, str]], targets: int) -> None:
    """Draw the image, and beside it the same under each view's scores: four in a row, or a row for each method."""
    first = views[0][1]
    image = first.origin.image if isinstance(first.origin, ImageOrigin) else None
    before = 0 if image is None else 1
    shown: list[tuple[int, tuple[str, str], Panel, float | None]] = []
    for i, (caption, (view, panel)) in enumerate(zip(captions, views, strict=True)):
        place = i + before if targets == 1 else (i // targets) * (targets + before) + i % targets + before
        shown.append((place, caption, panel, view.limit))
    if image is not None:
        shown.insert(0, (0, ("input", ""), first, None))
    columns = min(len(shown), COLUMNS) if targets == 1 else targets + before
    room = min((canvas.inner - GAP * (columns - 1)) / columns, WIDEST)
    high, wide = _shape(first)
    scale = min(room / wide, HIGHEST / high)
    wide, high = wide * scale, high * scale
    column_width = max(wide, min(room, 1.6))
    row = -1
    for place, caption, panel, limit in shown:
        if place // columns > row:
            row = place // columns
            top = canvas.block(high + 0.42)
        x = MARGIN + (place % columns) * (column_width + GAP)
        for k, text in enumerate(caption):
            fitting = canvas.fonts.shorten(canvas.fonts.show(text), LABEL - k, column_width)
            canvas.write(fitting, x, top + 0.14 + 0.135 * k, LABEL - k, GREY if k else DARK)
        paint = None if limit is None else Paint(limit)
        canvas.axes(x, top + 0.35, wide, high, partial(image_on, panel=panel, paint=paint))


def _shape(panel: Panel) -> tuple[float, float]:
    """Return height and width, in any unit."""
    if isinstance(panel.origin, ImageOrigin):
        return float(panel.origin.image.shape[0]), float(panel.origin.image.shape[1])
    scores = panel.heat if panel.heat is not None else panel.patches
    assert scores is not None, "a panel drawn as an image has scores in two dimensions"
    return float(scores.shape[0]), float(scores.shape[1])


def image_on(ax: Axes, panel: Panel, paint: Paint | None) -> None:
    """Draw the image as it is, or in pale grey under the colours of its scores."""
    ax.set_xticks([])
    ax.set_yticks([])
    high, wide = _shape(panel)
    extent = (0.0, wide, high, 0.0)
    if isinstance(panel.origin, ImageOrigin):
        image = panel.origin.image
        image = image[:: _stride(image), :: _stride(image)]
        if paint is not None:
            grey = 255 - 0.6 * (255 - image @ np.array([0.299, 0.587, 0.114]))
            image = np.repeat(grey[..., None], 3, -1).astype(np.uint8)
        ax.imshow(image, extent=extent)
    if paint is None:
        return
    heat = panel.heat if panel.heat is not None else panel.patches
    if heat is not None:
        heat = heat[:: _stride(heat), :: _stride(heat)]
        paint.image(ax, heat, extent=extent, interpolation="auto" if panel.heat is not None else "nearest")


def _stride(array: npt.NDArray[np.generic]) -> int:
    return -(-max(int(n) for n in array.shape[:2]) // LARGEST)


def waveform(canvas: Canvas, view: View, panel: Panel) -> None:
    """Draw the waveform over bands of colour, pale where it was truncated; of a spectrogram, the patches below."""
    origin = panel.origin
    assert isinstance(origin, AudioOrigin), "a panel drawn as audio has an origin"
    label = "seconds" if panel.patches is None else None
    wave = partial(wave_on, panel=panel, paint=Paint(wave_limit(view, panel)), label=label)
    canvas.axes(MARGIN + INSET, canvas.block(0.91) + 0.06, canvas.inner - 1.5 * INSET, 0.85, wave)
    if (patches := panel.patches) is not None:
        spectrogram = partial(_spectrogram, patches=patches, limit=view.limit, origin=origin)
        canvas.axes(MARGIN + INSET, canvas.block(0.65) + 0.05, canvas.inner - 1.5 * INSET, 0.6, spectrogram)
    canvas.space(BELOW)


def wave_limit(view: View, panel: Panel) -> float:
    """Return the score that gets full colour on a waveform; those of a spectrogram are summed over frequency."""
    return view.limit if panel.patches is None else float(np.abs(panel.patches.sum(0)).max())


def wave_on(ax: Axes, panel: Panel, paint: Paint, label: str | None = "seconds") -> None:
    """Draw the waveform over bands of colour, pale where it was truncated."""
    origin = panel.origin
    assert isinstance(origin, AudioOrigin), "a panel drawn as audio has an origin"
    scores = panel.scores[~panel.special] if panel.patches is None else panel.patches.sum(0)
    low, high, times = envelope(origin)
    bound = float(max(np.abs(low).max(), np.abs(high).max())) or 1.0
    ax.set_xlim(0, _seconds(origin))
    ax.set_ylim(-1.1 * bound, 1.1 * bound)
    _bands(ax, scores, paint, (0.0, origin.heard))
    for there, colour in ((times <= origin.heard, DARK), (times >= origin.heard, PALE)):
        ax.fill_between(times, low, high, where=there, color=colour, linewidth=0.4)
    ax.set_yticks([])
    _bare(ax, label)


def _seconds(origin: AudioOrigin) -> float:
    return max(len(origin.samples) / origin.rate, origin.heard)


def _spectrogram(ax: Axes, patches: Floats, limit: float, origin: AudioOrigin) -> None:
    """Draw the patches of a spectrogram over time."""
    ax.imshow(tint(patches, limit), extent=(0.0, origin.heard, 0.0, 1.0), aspect="auto", interpolation="nearest")
    ax.set_xlim(0, _seconds(origin))
    ax.set_yticks([])
    ax.set_ylabel("frequency", fontsize=SMALL, color=GREY, labelpad=2)
    _bare(ax, "seconds")


def envelope(origin: AudioOrigin, columns: int = 1000) -> tuple[Floats, Floats, Floats]:
    """Return the lowest and highest sample in each column of a waveform, and the column's time."""
    samples = origin.samples.astype(np.float64)
    if not len(samples):
        return np.zeros(1), np.zeros(1), np.zeros(1)
    starts = np.unique(np.linspace(0, len(samples), min(columns, len(samples)), endpoint=False).astype(int))
    return np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts), starts / origin.rate


def series(canvas: Canvas, view: View, panel: Panel) -> int:
    """Draw a line per channel over bands of colour, the strongest channels first; return how many were left out."""
    origin = panel.origin
    assert isinstance(origin, SeriesOrigin), "a panel drawn as a series has an origin"
    values = origin.values
    steps = panel.patches if panel.patches is not None else panel.scores[~panel.special][:, None]
    channels: int = values.shape[1]
    weights = np.abs(steps).sum(0) if steps.shape[1] == channels else np.zeros(channels)
    shown = sorted(np.argsort(-weights, kind="stable")[:CHANNELS].tolist())
    for c in shown:
        name = origin.channels[c] if c < len(origin.channels) else f"channel {c + 1}"
        name = canvas.fonts.shorten(canvas.fonts.show(flat(name)), LABEL, NAME)
        scores = steps[:, c] if steps.shape[1] == channels else steps.sum(1)
        top = canvas.block(0.56)
        canvas.write(name, MARGIN, top + 0.32, LABEL, GREY)
        x = MARGIN + NAME + GUTTER

        label = "time step" if c == shown[-1] else None
        line = partial(line_on, values=values[:, c], scores=scores, paint=Paint(view.limit), label=label)
        canvas.axes(x, top + 0.05, canvas.width - MARGIN - x, 0.5, line)
    canvas.space(BELOW)
    return channels - len(shown)


def line_on(ax: Axes, values: Floats, scores: Floats, paint: Paint, label: str | None = "time step") -> None:
    """Draw a line, ``[time]`` (or several, ``[time, lines]``), over bands of colour."""
    ax.set_xlim(-0.5, len(values) - 0.5)
    lines = ax.plot(values, color=DARK, linewidth=0.9)
    for i, line in enumerate(lines):
        line.set_dashes(DASHES[i % len(DASHES)])
    ax.margins(y=0.12)
    ax.set_ylim(ax.get_ylim())
    _bands(ax, scores, paint, (-0.5, len(values) - 0.5))
    ax.yaxis.set_major_locator(MaxNLocator(2))
    _bare(ax, label)


def bars(canvas: Canvas, view: View, panel: Panel) -> None:
    """Draw a bar per position."""
    ticks = min(12, round(1.5 * canvas.inner))
    draw = partial(bars_on, scores=panel.scores, paint=Paint(view.limit, signed=view.signed), ticks=ticks)
    canvas.axes(MARGIN + GUTTER, canvas.block(1.16 + BELOW) + 0.06, canvas.inner - GUTTER, 1.1, draw)


def bars_on(ax: Axes, scores: Floats, paint: Paint, ticks: int = 12) -> None:
    """Draw a bar per position."""
    edges = [np.arange(len(scores)) + d for d in (-0.4, 0.4)]
    sides = [(edges[0], 0 * scores), (edges[0], scores), (edges[1], scores), (edges[1], 0 * scores)]
    corners = np.stack([np.stack(side, -1) for side in sides], 1)
    ax.add_collection(PolyCollection(list(corners), facecolors=paint.colours(scores), linewidths=0))
    bound = 1.08 * (paint.limit or 1.0)
    ax.set_xlim(-0.8, len(scores) - 0.2)
    ax.set_ylim(-bound if paint.signed else 0, bound)
    ax.axhline(0, color=GREY, linewidth=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(4))
    _bare(ax, "position")


def legend(canvas: Canvas, signed: bool) -> None:
    """Draw the scale of colours, shared by all views: full colour is the strongest score of each."""
    sentence = "Full colour: the strongest score of each explanation."
    if canvas.inner < BROAD:
        canvas.paragraph(sentence)
    y = canvas.block(0.27 if signed else 0.16) + 0.14
    if canvas.inner >= BROAD:
        canvas.write(sentence, MARGIN, y, SMALL, GREY)
    low, middle, high = ("against the target", "0", "for the target") if signed else ("0", "", "for the target")
    wide = 1.5
    right = canvas.width - MARGIN - canvas.fonts.width(high, SMALL) - 0.07
    scale = np.linspace(-1.0 if signed else 0.0, 1.0, 121)[None]

    def strip(ax: Axes) -> None:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.imshow(tint(scale, 1.0), aspect="auto", extent=(0.0, 1.0, 0.0, 1.0))

    canvas.axes(right - wide, y - 0.085, wide, 0.1, strip)
    canvas.write(high, right + 0.07, y, SMALL, GREY)
    canvas.write(low, right - wide - 0.07, y, SMALL, GREY, "right")
    if middle:
        canvas.write(middle, right - wide / 2, y + 0.13, SMALL, GREY, "center")


def _bands(ax: Axes, scores: Floats, paint: Paint, between: tuple[float, float]) -> None:
    """Draw scores as bands of equal width behind a line."""
    low, high = ax.get_ylim()
    extent = (between[0], between[1], low, high)
    paint.image(ax, scores[None], extent=extent, aspect="auto", interpolation="nearest", zorder=0)


def _bare(ax: Axes, label: str | None) -> None:
    """Remove the box of axes, and the numbers below if there is no label for them."""
    ax.spines[["top", "right"]].set_visible(False)
    if label is None:
        ax.tick_params(labelbottom=False, bottom=False)
    else:
        ax.set_xlabel(label, fontsize=SMALL, color=GREY, labelpad=1)
