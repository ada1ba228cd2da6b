"""Scores along a line: a recording, a time series, the patches of a grid, bare positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...results.input_origin import SeriesOrigin, SoundOrigin
from ..palette import shade
from ..view_model import Floats, Panel
from .markup import Markup, join, label, tag
from .medium import Drawn, Medium, Row
from .shade import MINUS, rgb, rounded

WIDE = 1000  # of a drawing, in its own units
HIGH = 100
MOST = 400  # bands along a drawing; neighbours beyond that are drawn as one
POINTS = 800  # of a line


def draw_sound(panel: Panel, limit: float, medium: Medium) -> Drawn:
    """The wave over bands in the colours of the positions; a model that hears a spectrogram gets its grid below."""
    origin = panel.origin
    assert isinstance(origin, SoundOrigin)
    length = len(origin.samples) / origin.rate
    end = max(length, origin.heard) or 1.0
    heard = WIDE * origin.heard / end
    wave = [tag("path", d=_envelope(origin.samples, length / end), class_="whence-wave")]
    below = [_scale(end, "s")]
    if heard < WIDE - 1:
        wave.insert(0, tag("rect", x=f"{heard:.1f}", width=f"{WIDE - heard:.1f}", height=HIGH, class_="whence-deaf"))
        below.append(tag("p", f"After {origin.heard:.2f} s: not heard by the model.", class_="whence-small"))
    if panel.patches is not None:
        grid, rows = _cells(panel.patches, limit, medium, _at_times(origin, panel.patches))
        size = {"viewBox": f"0 0 {panel.patches.shape[1] * end / origin.heard:.3f} {len(panel.patches)}"}
        walk = medium.walk("patches", len(rows), panel.patches.shape[1])
        spectrum = tag("svg", *grid, class_="whence-chart", preserveAspectRatio="none", **size, **walk)
        return Drawn(join([_frame(wave), spectrum, *below]), rows, "patches")
    scores = panel.scores[~panel.special]
    times = origin.times(len(scores))
    bands, rows = _bands(scores, limit, medium, lambda a, b: _seconds(times, a, b), True, width=heard)
    drawing = _frame([*bands, *wave], **medium.walk("moments", len(rows), len(rows)))
    return Drawn(join([drawing, *below]), rows, "moments")


def draw_series(panel: Panel, limit: float, medium: Medium) -> Drawn:
    """Each channel's line over bands in the colours of its steps."""
    origin = panel.origin
    assert isinstance(origin, SeriesOrigin)
    time, channels = origin.values.shape
    patches = panel.patches if panel.patches is not None else panel.scores[~panel.special][:, None]
    step = time / len(patches)
    rows: list[Row] = []
    lines = []
    columns = 0
    for channel in range(channels):
        name = origin.channels[channel] if channel < len(origin.channels) else f"channel {channel + 1}"
        scores = patches[:, channel * patches.shape[1] // channels]
        bands, said = _bands(scores, limit, medium, _steps(name, step), first=not rows)
        values = origin.values[:, channel]
        line = tag("path", d=_line(values), class_="whence-line")
        lines.append(
            tag("div", tag("p", tag("bdi", name), _range(values), class_="whence-channel"), _frame([*bands, line]))
        )
        rows += said
        columns = len(said)
    body = tag("div", *lines, class_="whence-series", **medium.walk("moments", len(rows), columns))
    return Drawn(join([body, _scale(time, "steps")]), rows, "moments")


def draw_grid(panel: Panel, limit: float, medium: Medium) -> Drawn:
    """The patches alone, where the picture is not known."""
    assert panel.patches is not None
    height, width = panel.patches.shape
    cells, rows = _cells(panel.patches, limit, medium, lambda row, column: f"row {row + 1}, column {column + 1}")
    walk = medium.walk("patches", len(rows), width)
    drawing = tag("svg", *cells, class_="whence-grid", viewBox=f"0 0 {width} {height}", **walk)
    return Drawn(drawing, rows, "patches")


def draw_bars(panel: Panel, limit: float, medium: Medium) -> Drawn:
    """A bar per position, up for the target and down against it."""
    shown = np.flatnonzero(~panel.special)
    names = [label(panel.tokens[i]) if i < len(panel.tokens) else f"position {i}" for i in shown.tolist()]
    spans = _spans(panel.scores[shown])
    rows = [Row(names[a] if a == b else f"{names[a]} to {names[b]}", score) for a, b, score in spans]
    top = max([limit, *(abs(r.score) for r in rows)]) or 1.0
    zero = HIGH / 2 if any(r.score < 0 for r in rows) else HIGH
    width = WIDE / max(len(rows), 1)
    shapes = []
    for i, row in enumerate(rows):
        size = abs(row.score) / top * 0.94 * zero
        box = {"x": f"{(i + 0.1) * width:.1f}", "width": f"{0.8 * width:.1f}"}
        bar = {"y": f"{zero - size if row.score >= 0 else zero:.2f}", "height": f"{size:.2f}"}
        shapes.append(tag("rect", **box, **bar, class_="whence-for" if row.score >= 0 else "whence-against"))
        whole = {"x": f"{i * width:.1f}", "width": f"{width:.1f}", "height": HIGH, "fill": "#fff", "fill_opacity": 0}
        shapes.append(medium.rect(row, i == 0, **whole))
    ground = tag("line", x2=WIDE, y1=f"{zero:.0f}", y2=f"{zero:.0f}", class_="whence-ground")
    drawing = _frame([ground, *shapes], **medium.walk("positions", len(rows), len(rows)))
    ends = [tag("span", n) for n in ([names[0], names[-1]] if len(names) > 1 else names)]
    return Drawn(join([drawing, tag("div", *ends, class_="whence-scale", aria_hidden="true")]), rows, "positions")


def _frame(children: Sequence[Markup], **attributes: object) -> Markup:
    size = {"viewBox": f"0 0 {WIDE} {HIGH}", "preserveAspectRatio": "none"}
    return tag("svg", *children, class_="whence-chart", **size, **attributes)


def _cells(
    patches: Floats, limit: float, medium: Medium, name: Callable[[int, int], str]
) -> tuple[list[Markup], list[Row]]:
    """A square of size 1 per patch."""
    rows: list[Row] = []
    cells: list[Markup] = []
    for (row, column), score in np.ndenumerate(patches):
        rows.append(Row(name(row, column), float(score)))
        colour, alpha = shade(float(score), limit)
        place = {"x": column, "y": row, "width": 1, "height": 1, "fill": rgb(colour), "fill_opacity": f"{alpha:.3f}"}
        cells.append(medium.rect(rows[-1], not cells, **place))
    return cells, rows


def _bands(
    scores: Floats, limit: float, medium: Medium, name: Callable[[int, int], str], first: bool, width: float = WIDE
) -> tuple[list[Markup], list[Row]]:
    """A band per position: the score in its colour."""
    spans = _spans(scores)
    top = max([limit, *(abs(score) for _, _, score in spans)])
    rows = [Row(name(a, b), score) for a, b, score in spans]
    bands = []
    for i, ((a, b, _), row) in enumerate(zip(spans, rows, strict=True)):
        colour, alpha = shade(row.score, top)
        low, high = (width * place / len(scores) for place in (a, b + 1))
        place = {"x": f"{low:.2f}", "width": f"{high - low:.2f}", "height": HIGH}
        bands.append(medium.rect(row, first and i == 0, **place, fill=rgb(colour), fill_opacity=f"{alpha:.3f}"))
    return bands, rows


def _spans(scores: Floats) -> list[tuple[int, int, float]]:
    """First and last position and the sum of the scores: of each position, or of neighbours if there are too many."""
    size = -(-len(scores) // MOST) or 1
    return [(a, min(a + size, len(scores)) - 1, float(scores[a : a + size].sum())) for a in range(0, len(scores), size)]


def _at_times(origin: SoundOrigin, patches: Floats) -> Callable[[int, int], str]:
    times = origin.times(patches.shape[1])
    return lambda row, column: f"{_seconds(times, column, column)}, row {row + 1}"


def _seconds(times: Floats, first: int, last: int) -> str:
    return f"{times[first, 0]:.2f}\u2013{times[last, 1]:.2f} s"


def _steps(name: str, step: float) -> Callable[[int, int], str]:
    def said(a: int, b: int) -> str:
        low, high = round(a * step), max(round((b + 1) * step) - 1, round(a * step))
        return f"{name}, step {low}" if low == high else f"{name}, steps {low}\u2013{high}"

    return said


def _envelope(samples: np.ndarray[tuple[int, ...], np.dtype[np.float32]], share: float) -> str:
    """The outline of a wave: highest and lowest of each stretch, over a share of the width."""
    if not len(samples):
        return ""
    edges = np.unique(np.linspace(0, len(samples), min(POINTS, len(samples)) + 1).astype(int)[:-1])
    high, low = np.maximum.reduceat(samples, edges), np.minimum.reduceat(samples, edges)
    scale = HIGH / 2 * 0.94 / (float(np.abs(samples).max()) or 1.0)
    across = edges / len(samples) * WIDE * share
    over = [f"{x:.1f} {HIGH / 2 - scale * y - 0.3:.1f}" for x, y in zip(across, high, strict=True)]
    under = [f"{x:.1f} {HIGH / 2 - scale * y + 0.3:.1f}" for x, y in zip(across, low, strict=True)]
    return f"M{'L'.join([*over, *reversed(under)])}Z"


def _line(values: Floats) -> str:
    """A line through the values; where one is missing it is broken."""
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
    said = f"{known.min():.4g} to {known.max():.4g}".replace("-", MINUS) if len(known) else "no values"
    return tag("span", said, class_="whence-small")


def _scale(end: float, unit: str) -> Markup:
    marks = [f"{end * k / 4:.3g}" + (f" {unit}" if k == 4 else "") for k in range(5)]
    return tag("div", *(tag("span", m) for m in marks), class_="whence-scale", aria_hidden="true")


def draw_kept(kept: Sequence[float]) -> Markup:
    """How much of the target's value is left, from the target down to the input."""
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
