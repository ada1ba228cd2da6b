"""Scores as SVG charts: audio, time series, the patches of a grid, bare positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...results.input_origin import AudioOrigin, SeriesOrigin
from ..palette import shade
from ..view_model import Floats, Panel
from .markup import Markup, join, label, tag
from .medium import Medium, PanelMarkup, ScoredItem
from .shade import MINUS, rgb, rounded

WIDE = 1000  # of a drawing, in its own units
HIGH = 100
MOST = 400  # bands along a drawing; if there are more positions, neighbours share a band
POINTS = 800  # of a line


def draw_sound(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    """Return the waveform over bands in the colours of the positions; of a spectrogram, its patches below."""
    origin = panel.origin
    assert isinstance(origin, AudioOrigin)
    length = len(origin.samples) / origin.rate
    end = max(length, origin.heard) or 1.0
    heard = WIDE * origin.heard / end
    wave = [tag("path", d=_envelope(origin.samples, length / end), class_="whence-wave")]
    below = [_scale(end, "s")]
    if heard < WIDE - 1:
        wave.insert(0, tag("rect", x=f"{heard:.1f}", width=f"{WIDE - heard:.1f}", height=HIGH, class_="whence-deaf"))
        below.append(tag("p", f"After {origin.heard:.2f} s: not heard by the model.", class_="whence-small"))
    if panel.patches is not None:
        cells, items = _cells(panel.patches, limit, medium, _patch_times(origin, panel.patches))
        size = {"viewBox": f"0 0 {panel.patches.shape[1] * end / origin.heard:.3f} {len(panel.patches)}"}
        group = medium.group_attributes("patches", len(items), panel.patches.shape[1])
        spectrum = tag("svg", *cells, class_="whence-chart", preserveAspectRatio="none", **size, **group)
        return PanelMarkup(join([_frame(wave), spectrum, *below]), items, "patches")
    scores = panel.scores[~panel.special]
    times = origin.times(len(scores))
    bands, items = _bands(scores, limit, medium, lambda a, b: _seconds(times, a, b), True, width=heard)
    drawing = _frame([*bands, *wave], **medium.group_attributes("moments", len(items), len(items)))
    return PanelMarkup(join([drawing, *below]), items, "moments")


def draw_series(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    """Return each channel's line over bands in the colours of its time steps."""
    origin = panel.origin
    assert isinstance(origin, SeriesOrigin)
    time, channels = origin.values.shape
    patches = panel.patches if panel.patches is not None else panel.scores[~panel.special][:, None]
    step = time / len(patches)
    items: list[ScoredItem] = []
    lines = []
    columns = 0
    for channel in range(channels):
        name = origin.channels[channel] if channel < len(origin.channels) else f"channel {channel + 1}"
        scores = patches[:, channel * patches.shape[1] // channels]
        bands, steps = _bands(scores, limit, medium, _step_names(name, step), first=not items)
        values = origin.values[:, channel]
        heading = tag("p", tag("bdi", name), _range(values), class_="whence-channel")
        line = tag("path", d=_line(values), class_="whence-line")
        lines.append(tag("div", heading, _frame([*bands, line])))
        items += steps
        columns = len(steps)
    body = tag("div", *lines, class_="whence-series", **medium.group_attributes("moments", len(items), columns))
    return PanelMarkup(join([body, _scale(time, "steps")]), items, "moments")


def draw_grid(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    """Return the patches alone, where the image is not known."""
    assert panel.patches is not None
    height, width = panel.patches.shape
    cells, items = _cells(panel.patches, limit, medium, lambda row, column: f"row {row + 1}, column {column + 1}")
    group = medium.group_attributes("patches", len(items), width)
    drawing = tag("svg", *cells, class_="whence-grid", viewBox=f"0 0 {width} {height}", **group)
    return PanelMarkup(drawing, items, "patches")


def draw_bars(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    """Return a bar per position, upwards for the target and downwards against it."""
    shown = np.flatnonzero(~panel.special)
    names = [label(panel.tokens[i]) if i < len(panel.tokens) else f"position {i}" for i in shown.tolist()]
    spans = _spans(panel.scores[shown])
    items = [ScoredItem(names[a] if a == b else f"{names[a]} to {names[b]}", score) for a, b, score in spans]
    top = max([limit, *(abs(item.score) for item in items)]) or 1.0
    zero = HIGH / 2 if any(item.score < 0 for item in items) else HIGH
    width = WIDE / max(len(items), 1)
    shapes = []
    for i, item in enumerate(items):
        size = abs(item.score) / top * 0.94 * zero
        box = {"x": f"{(i + 0.1) * width:.1f}", "width": f"{0.8 * width:.1f}"}
        bar = {"y": f"{zero - size if item.score >= 0 else zero:.2f}", "height": f"{size:.2f}"}
        shapes.append(tag("rect", **box, **bar, class_="whence-for" if item.score >= 0 else "whence-against"))
        whole = {"x": f"{i * width:.1f}", "width": f"{width:.1f}", "height": HIGH, "fill": "#fff", "fill_opacity": 0}
        shapes.append(medium.rect(item, i == 0, **whole))
    ground = tag("line", x2=WIDE, y1=f"{zero:.0f}", y2=f"{zero:.0f}", class_="whence-ground")
    drawing = _frame([ground, *shapes], **medium.group_attributes("positions", len(items), len(items)))
    ends = [tag("span", n) for n in ([names[0], names[-1]] if len(names) > 1 else names)]
    scale = tag("div", *ends, class_="whence-scale", aria_hidden="true")
    return PanelMarkup(join([drawing, scale]), items, "positions")


def _frame(children: Sequence[Markup], **attributes: object) -> Markup:
    size = {"viewBox": f"0 0 {WIDE} {HIGH}", "preserveAspectRatio": "none"}
    return tag("svg", *children, class_="whence-chart", **size, **attributes)


def _cells(
    patches: Floats, limit: float, medium: Medium, name: Callable[[int, int], str]
) -> tuple[list[Markup], list[ScoredItem]]:
    """Return a square of size 1 per patch, and the patches as items."""
    items: list[ScoredItem] = []
    cells: list[Markup] = []
    for (row, column), score in np.ndenumerate(patches):
        items.append(ScoredItem(name(row, column), float(score)))
        colour, alpha = shade(float(score), limit)
        place = {"x": column, "y": row, "width": 1, "height": 1, "fill": rgb(colour), "fill_opacity": f"{alpha:.3f}"}
        cells.append(medium.rect(items[-1], not cells, **place))
    return cells, items


def _bands(
    scores: Floats, limit: float, medium: Medium, name: Callable[[int, int], str], first: bool, width: float = WIDE
) -> tuple[list[Markup], list[ScoredItem]]:
    """Return a band per position in the colour of its score, and the positions as items."""
    spans = _spans(scores)
    top = max([limit, *(abs(score) for _, _, score in spans)])
    items = [ScoredItem(name(a, b), score) for a, b, score in spans]
    bands = []
    for i, ((a, b, _), item) in enumerate(zip(spans, items, strict=True)):
        colour, alpha = shade(item.score, top)
        low, high = (width * place / len(scores) for place in (a, b + 1))
        place = {"x": f"{low:.2f}", "width": f"{high - low:.2f}", "height": HIGH}
        bands.append(medium.rect(item, first and i == 0, **place, fill=rgb(colour), fill_opacity=f"{alpha:.3f}"))
    return bands, items


def _spans(scores: Floats) -> list[tuple[int, int, float]]:
    """Return first position, last position and summed score: of each position, or of neighbours if there are many."""
    size = -(-len(scores) // MOST) or 1
    return [(a, min(a + size, len(scores)) - 1, float(scores[a : a + size].sum())) for a in range(0, len(scores), size)]


def _patch_times(origin: AudioOrigin, patches: Floats) -> Callable[[int, int], str]:
    times = origin.times(patches.shape[1])
    return lambda row, column: f"{_seconds(times, column, column)}, row {row + 1}"


def _seconds(times: Floats, first: int, last: int) -> str:
    return f"{times[first, 0]:.2f}\u2013{times[last, 1]:.2f} s"


def _step_names(name: str, step: float) -> Callable[[int, int], str]:
    def named(a: int, b: int) -> str:
        low = round(a * step)
        high = max(round((b + 1) * step) - 1, low)
        return f"{name}, step {low}" if low == high else f"{name}, steps {low}\u2013{high}"

    return named


def _envelope(samples: np.ndarray[tuple[int, ...], np.dtype[np.float32]], share: float) -> str:
    """Return the outline of a waveform: the highest and lowest sample of each slice, over a share of the width."""
    if not len(samples):
        return ""
    edges = np.unique(np.linspace(0, len(samples), min(POINTS, len(samples)) + 1).astype(int)[:-1])
    high = np.maximum.reduceat(samples, edges)
    low = np.minimum.reduceat(samples, edges)
    scale = HIGH / 2 * 0.94 / (float(np.abs(samples).max()) or 1.0)
    across = edges / len(samples) * WIDE * share
    over = [f"{x:.1f} {HIGH / 2 - scale * y - 0.3:.1f}" for x, y in zip(across, high, strict=True)]
    under = [f"{x:.1f} {HIGH / 2 - scale * y + 0.3:.1f}" for x, y in zip(across, low, strict=True)]
    return f"M{'L'.join([*over, *reversed(under)])}Z"


def _line(values: Floats) -> str:
    """Return a line through the values, broken where one is missing."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ""
    low, high = float(known.min()), float(known.max())
    chosen = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
    path, pen = [], "M"
    for i in chosen.tolist():
        if not np.isfinite(values[i]):
            pen = "M"
            continue
        height = (values[i] - low) / (high - low) if high > low else 0.5
        path.append(f"{pen}{WIDE * (i + 0.5) / len(values):.1f} {HIGH * (0.94 - 0.88 * height):.1f}")
        pen = "L"
    return "".join(path)


def _range(values: Floats) -> Markup:
    known = values[np.isfinite(values)]
    limits = f"{known.min():.4g} to {known.max():.4g}".replace("-", MINUS) if len(known) else "no values"
    return tag("span", limits, class_="whence-small")


def _scale(end: float, unit: str) -> Markup:
    marks = [f"{end * k / 4:.3g}" + (f" {unit}" if k == 4 else "") for k in range(5)]
    return tag("div", *(tag("span", m) for m in marks), class_="whence-scale", aria_hidden="true")


def draw_block_relevance(kept: Sequence[float]) -> Markup:
    """Return a table of the relevance that enters each block, from the target down to the input."""
    last = len(kept) - 1
    names = [f"into block {i}" for i in range(last)] + ["out of the last block"]
    steps = [("target", 1.0), *zip(reversed(names), reversed(kept), strict=True)]
    top = max(abs(share) for _, share in steps)
    rows = []
    for name, share in steps:
        size = f"{100 * abs(share) / top:.1f}"
        bar = tag("rect", width=size, height=1, class_="whence-kept" if share >= 0 else "whence-against")
        drawing = tag("svg", bar, viewBox="0 0 100 1", preserveAspectRatio="none", aria_hidden="true")
        rows.append(tag("tr", tag("th", name, scope="row"), tag("td", drawing), tag("td", rounded(share))))
    return tag("table", tag("caption", "Share of the target's value, block by block"), *rows, class_="whence-ledger")
