"""A card of the page: one input, the model's prediction, and every explanation of it."""

from __future__ import annotations

from collections.abc import Sequence

from ...results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin, TextOrigin
from ..phrases import percent
from ..view_model import Card, Panel, View
from .chart import draw_bars, draw_block_relevance, draw_grid, draw_series, draw_sound
from .image import draw_image
from .markup import Markup, join, tag
from .medium import Medium, PanelMarkup
from .shade import number, rounded, shade_class
from .text import draw_text

STRONGEST = 10  # rows of the table


def draw_card(card: Card, medium: Medium, **attributes: object) -> Markup:
    """Return one input with its explanations side by side."""
    common = _common_notes(card.views)
    pictures = bool(card.views) and all(_is_picture(p) for v in card.views for p in v.panels)
    layout = f"whence-views whence-figures whence-by-{card.targets}" if pictures else "whence-views"
    views = [_view(view, medium, card.title, skip=common) for view in card.views]
    return tag(
        "section",
        tag("header", _heading(2, card.title, medium), *_predictions(card.views), *_opacity_slider(card, medium)),
        tag("div", *views, class_=layout),
        *_notes(common),
        class_="whence-card",
        **attributes,
    )


def _heading(level: int, text: str, medium: Medium) -> Markup:
    """Return a heading; in a notebook, whose outline must not change, a ``div`` of the same style."""
    inside = tag("bdi", text)
    return tag(f"h{level}", inside) if medium.live else tag("div", inside, class_=f"whence-h{level}")


def _predictions(views: Sequence[View]) -> list[Markup]:
    """Return the model's prediction: once, unless the views differ."""
    distinct = dict.fromkeys((v.prediction, _in_brackets(v.probability)) for v in views if v.prediction)
    return [
        tag("p", "The model says: ", tag("strong", tag("bdi", name)), probability, class_="whence-answer")
        for name, probability in distinct
    ]


def _opacity_slider(card: Card, medium: Medium) -> list[Markup]:
    if not medium.live or not any(_is_picture(p) for v in card.views for p in v.panels):
        return []
    slider = tag("input", type="range", min=0, max=100, value=85, data_fade=True)
    return [tag("label", tag("span", "Overlay"), slider, class_="whence-fade")]


def _view(view: View, medium: Medium, title: str, skip: Sequence[str]) -> Markup:
    drawn = [_panel(panel, view.limit, medium) for panel in view.panels]
    several = len(view.panels) > 1
    panels = [_captioned(p, d, title, several) for p, d in zip(view.panels, drawn, strict=True)]
    why = tag("p", "why ", tag("bdi", view.target), "?", _in_brackets(view.target_probability), class_="whence-why")
    more = [f"value {number(view.value)}", *([view.options] if view.options else [])]
    return tag(
        "article",
        tag("header", _heading(3, view.method, medium), why, *(tag("p", m, class_="whence-small") for m in more)),
        tag("div", *panels, class_="whence-panels" if several else None),
        tag("footer", *_notes([n for n in view.notes if n not in skip]), _details(view, drawn)),
        class_="whence-view",
        aria_label=f"{view.method}: why {view.target}?",
    )


def _panel(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    if panel.pieces or isinstance(panel.origin, TextOrigin):
        return draw_text(panel, limit, medium)
    if isinstance(panel.origin, ImageOrigin):
        return draw_image(panel, limit, medium)
    if isinstance(panel.origin, AudioOrigin):
        return draw_sound(panel, limit, medium)
    if isinstance(panel.origin, SeriesOrigin):
        return draw_series(panel, limit, medium)
    return draw_bars(panel, limit, medium) if panel.patches is None else draw_grid(panel, limit, medium)


def _captioned(panel: Panel, drawn: PanelMarkup, title: str, several: bool) -> Markup:
    """Return a panel; below it its name, unless the title has it, and the sum of its special tokens' scores."""
    name = getattr(panel.origin, "name", "") or (panel.stream if several else "")
    parts = [tag("bdi", name)] if name and name != title else []
    if panel.special.any():
        parts.append(tag("span", f"special tokens: {number(float(panel.scores[panel.special].sum()))}"))
    caption = [tag("p", *parts, class_="whence-small whence-caption")] if parts else []
    return tag("div", drawn.markup, *caption, class_="whence-panel")


def _details(view: View, drawn: Sequence[PanelMarkup]) -> Markup:
    tables = [_collapsed(f"Strongest {d.noun}", _strongest(d, view.limit)) for d in drawn if d.items]
    if view.block_relevance or view.absorbed:
        tables.append(_collapsed("Where the relevance went", draw_ledger(view)))
    return tag("div", *tables, class_="whence-details")


def _collapsed(summary: str, content: Markup) -> Markup:
    return tag("details", tag("summary", summary), content)


def _strongest(drawn: PanelMarkup, limit: float) -> Markup:
    chosen = sorted(drawn.items, key=lambda item: -abs(item.score))[:STRONGEST]
    rows = [
        tag(
            "tr",
            tag("th", tag("bdi", item.label), scope="row"),
            tag("td", tag("span", number(item.score), class_=shade_class(item.score, limit) or None)),
        )
        for item in chosen
    ]
    caption = f"{len(chosen)} of {len(drawn.items):,} {drawn.noun}, the strongest first"
    return tag("table", tag("caption", caption), *rows, class_="whence-table")


def draw_ledger(view: View) -> Markup:
    """Return where the target's relevance went: a sentence, a bar per block, and the largest absorptions."""
    sentences = []
    if view.block_relevance:
        sentences.append(f"{rounded(view.block_relevance[0])} of the target's value reached the input")
    if view.absorbed:
        name, share = view.absorbed[0]
        verb = "taken" if share >= 0 else "added"
        sentences.append(f"the largest share was {verb} by {name} ({rounded(abs(share))})")
    summary = "; ".join(sentences)
    absorbed = [draw_absorbed(view)] if view.absorbed else []
    charts = [draw_block_relevance(view.block_relevance)] if view.block_relevance else []
    paragraph = tag("p", f"{summary[:1].upper()}{summary[1:]}.")
    return join([paragraph, tag("div", *charts, *absorbed, class_="whence-books")])


def draw_absorbed(view: View) -> Markup:
    """Return a table of the operations that absorbed or created relevance."""
    rows = [tag("tr", tag("th", tag("bdi", n), scope="row"), tag("td", rounded(s))) for n, s in view.absorbed]
    caption = tag("caption", "Taken on the way (added, where negative)")
    return tag("table", caption, *rows, class_="whence-table")


def _notes(notes: Sequence[str]) -> list[Markup]:
    return [tag("p", note, class_="whence-remark") for note in notes]


def _common_notes(views: Sequence[View]) -> list[str]:
    """Return the notes that all views share: they are shown once, below the views."""
    if len(views) < 2:
        return []
    return [note for note in dict.fromkeys(views[0].notes) if all(note in view.notes for view in views)]


def _in_brackets(probability: float | None) -> str:
    return "" if probability is None else f" ({percent(probability)})"


def _is_picture(panel: Panel) -> bool:
    return isinstance(panel.origin, ImageOrigin)
