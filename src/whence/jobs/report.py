"""The HTML report of a summary: words by class with their intervals, mean maps, and samples to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .._utils.atomic_files import is_file
from ..render.html.chart import draw_grid
from ..render.html.markup import Markup, tag
from ..render.html.medium import Medium
from ..render.html.page import page as drawn
from ..render.view_model import Card, Panel, View
from ..results.input_origin import Span, TextOrigin
from .row_schema import Row
from .summary import Group, Summary

WORDS = 15  # per class, for it and against it
KINDS = {
    "strongest": "The model was surest of these.",
    "weakest": "Here it was least sure.",
    "wrong and sure": "The dataset says another class, and the model was sure of its own.",
    "unlike its class": "Their words count otherwise than they do in other samples of the class.",
}


def page(summary: Summary) -> str:
    """Return the report as one self-contained HTML document."""
    intro = [
        f"{summary.samples:,} explanations in '{summary.directory.name}'"
        + (f"; {summary.failed:,} rows failed and are left out." if summary.failed else "."),
    ]
    if summary.words:
        intro.append(
            "Words are in the order of what they surely count: the end of the 95 % interval of their mean that is "
            "nearer to zero."
        )
    sections = [_group(summary, group) for group in summary.groups()]
    cards = [_card(row) for kind in KINDS for row in summary.examples if row["kind"] == kind]
    return drawn(cards, "What drives the model", intro, sections)


def _group(summary: Summary, group: Group) -> Markup:
    method, name = group
    parts: list[Markup] = []
    for against in (False, True):
        rows = summary.top(group, WORDS, against)
        if rows:
            title = f"{'Against' if against else 'For'} {name}"
            parts.append(_table(title, rows, max(max(abs(r["low"]), abs(r["high"])) for r in rows)))
    for row in summary.maps:
        if (row["method"], row["class"]) == group:
            patches = np.array(row["map"]).reshape(row["height"], row["width"])
            drawing = draw_grid(_grid(patches), float(np.abs(patches).max()), Medium(live=False)).markup
            words = f"The mean of {row['count']:,} picture{'s' * (row['count'] > 1)}"
            parts.append(tag("figure", drawing, tag("figcaption", words, class_="whence-small"), class_="whence-mean"))
    head = tag("h2", tag("bdi", name), " ", tag("small", method, class_="whence-muted"))
    return tag("section", head, *parts, class_="whence-card whence-summary")


def _table(title: str, rows: list[Row], limit: float) -> Markup:
    head = tag("tr", *(tag("th", word, scope="col") for word in ("word", "samples", "mean", "95 % interval", "")))
    body = [
        tag(
            "tr",
            tag("th", tag("bdi", row["word"]), scope="row"),
            tag("td", f"{row['count']:,}"),
            tag("td", _signed(row["mean"])),
            tag("td", f"{_signed(row['low'])} to {_signed(row['high'])}"),
            tag("td", _bar(row, limit)),
        )
        for row in rows
    ]
    return tag("table", tag("caption", title), tag("thead", head), tag("tbody", *body), class_="whence-words")


def _signed(number: float) -> str:
    return f"{number:+.3g}".replace("-", "\u2212")


def _bar(row: Row, limit: float) -> Markup:
    """Return the mean as a bar from zero, and its interval as a line."""
    low, high, mean = (100 + 100 * row[key] / (limit or 1.0) for key in ("low", "high", "mean"))
    left, right = sorted((100.0, mean))
    shape = "whence-for" if row["mean"] >= 0 else "whence-against"
    return tag(
        "svg",
        tag("rect", x=f"{left:.1f}", y=3, width=f"{right - left:.1f}", height=8, class_=shape),
        tag("line", x1=f"{low:.1f}", x2=f"{high:.1f}", y1=7, y2=7, class_="whence-ground"),
        viewBox="0 0 200 14", class_="whence-interval", aria_hidden="true",
    )  # fmt: skip


def _card(row: Row) -> Card:
    """Return a sample as a card."""
    title = f"{row['kind']}: {_title(row)}"
    told = [] if row["label"] is None else [f"The dataset says: {row['label']}."]
    panel = _panel(row)
    shown = [p.score for p in panel.pieces if p.score is not None] if panel.pieces else panel.scores.tolist()
    limit = max((abs(x) for x in (shown if panel.patches is None else panel.patches.flatten().tolist())), default=0.0)
    return Card(title, (_view(row, (panel,), limit, (KINDS[row["kind"]], *told)),))


def _view(row: Row, panels: tuple[Panel, ...], limit: float, notes: tuple[str, ...] = ()) -> View:
    return View(
        method=row["method"], options="", target=row["target"], prediction=row["prediction"] or "",
        probability=row.get("probability"), target_probability=row.get("target_probability"), value=row["value"],
        panels=panels, limit=limit, signed=any(bool((p.scores < 0).any()) for p in panels), notes=notes,
    )  # fmt: skip


def _panel(row: Row) -> Panel:
    scores = np.array(row["scores"], np.float64)
    if row["tokens"] is not None:
        texts = tuple(t for t in (row["input"], row["second"]) if t is not None)
        spans = tuple(None if s is None else Span(s["start"], s["end"], s["part"]) for s in row["offsets"])
        origin = TextOrigin(texts, tuple(row["tokens"]), spans)
        special = np.array([s is None for s in spans])
        return Panel("text", scores, special, origin, tuple(origin.pieces(scores.tolist())), origin.tokens)
    if row["map"] is not None:
        patches = np.array(row["map"], np.float64).reshape(row["height"], row["width"]) * row["scale"]
        return _grid(patches)
    return Panel("input", scores, np.zeros(len(scores), bool))


def _grid(patches: np.ndarray[Any, Any]) -> Panel:
    grid = (patches.shape[0], patches.shape[1])
    flat = patches.flatten()
    return Panel("image", flat, np.zeros(len(flat), bool), grid=grid, patches=patches)


def _title(row: Row) -> str:
    text = " ".join((row["input"] or row["id"]).split())
    name = Path(text).name if is_file(text) else text
    return name if len(name) <= 60 else name[:59] + "…"
