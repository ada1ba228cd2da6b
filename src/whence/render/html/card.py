"""A card of the page: the input, what the model says, and every explanation of it."""

from __future__ import annotations

from collections.abc import Sequence

from ...results.input_origin import ImageOrigin, SeriesOrigin, SoundOrigin, TextOrigin
from ..phrases import percent
from ..view_model import Card, Panel, View
from .chart import draw_bars, draw_grid, draw_kept, draw_series, draw_sound
from .image import draw_image
from .markup import Markup, join, tag
from .medium import Drawn, Medium
from .shade import number, rounded, shade_class
from .text import draw_text

STRONGEST = 10  # rows of the table


def draw_card(card: Card, medium: Medium, **attributes: object) -> Markup:
    """One input with its explanations side by side."""
    common = _common_notes(card.views)
    pictures = bool(card.views) and all(_is_picture(p) for v in card.views for p in v.panels)
    layout = f"whence-views whence-figures whence-by-{card.targets}" if pictures else "whence-views"
    views = [_view(view, medium, card.title, skip=common) for view in card.views]
    return tag(
        "section",
        tag("header", _heading(2, card.title, medium), *_answers(card.views), *_fade(card, medium)),
        tag("div", *views, class_=layout),
        *_notes(common),
        class_="whence-card",
        **attributes,
    )


def _heading(level: int, text: str, medium: Medium) -> Markup:
    """A heading; in a notebook only its looks, for the headings are the notebook's own."""
    inside = tag("bdi", text)
    return tag(f"h{level}", inside) if medium.live else tag("div", inside, class_=f"whence-h{level}")


def _answers(views: Sequence[View]) -> list[Markup]:
    """What the model says: once, unless the views disagree."""
    said = dict.fromkeys((v.prediction, _in_brackets(v.probability)) for v in views if v.prediction)
    return [
        tag("p", "The model says: ", tag("strong", tag("bdi", name)), chance, class_="whence-answer")
        for name, chance in said
    ]


def _fade(card: Card, medium: Medium) -> list[Markup]:
    if not medium.live or not any(_is_picture(p) for v in card.views for p in v.panels):
        return []
    slider = tag("input", type="range", min=0, max=100, value=85, data_fade=True)
    return [tag("label", tag("span", "Overlay"), slider, class_="whence-fade")]


def _view(view: View, medium: Medium, title: str, skip: Sequence[str]) -> Markup:
    drawn = [_panel(panel, view.limit, medium) for panel in view.panels]
    several = len(view.panels) > 1
    panels = [_framed(p, d, title, several) for p, d in zip(view.panels, drawn, strict=True)]
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


def _panel(panel: Panel, limit: float, medium: Medium) -> Drawn:
    if panel.pieces or isinstance(panel.origin, TextOrigin):
        return draw_text(panel, limit, medium)
    if isinstance(panel.origin, ImageOrigin):
        return draw_image(panel, limit, medium)
    if isinstance(panel.origin, SoundOrigin):
        return draw_sound(panel, limit, medium)
    if isinstance(panel.origin, SeriesOrigin):
        return draw_series(panel, limit, medium)
    return draw_bars(panel, limit, medium) if panel.patches is None else draw_grid(panel, limit, medium)


def _framed(panel: Panel, drawn: Drawn, title: str, several: bool) -> Markup:
    """A panel; below it its name, if it needs one, and what its special tokens got."""
    name = getattr(panel.origin, "name", "") or (panel.stream if several else "")
    said = [tag("bdi", name)] if name and name != title else []
    if panel.special.any():
        said.append(tag("span", f"special tokens: {number(float(panel.scores[panel.special].sum()))}"))
    caption = [tag("p", *said, class_="whence-small whence-caption")] if said else []
    return tag("div", drawn.markup, *caption, class_="whence-panel")


def _details(view: View, drawn: Sequence[Drawn]) -> Markup:
    tables = [_details_of(f"Strongest {d.noun}", _strongest(d, view.limit)) for d in drawn if d.rows]
    if view.kept or view.absorbed:
        tables.append(_details_of("Where the relevance went", draw_ledger(view)))
    return tag("div", *tables, class_="whence-details")


def _details_of(summary: str, content: Markup) -> Markup:
    return tag("details", tag("summary", summary), content)


def _strongest(drawn: Drawn, limit: float) -> Markup:
    chosen = sorted(drawn.rows, key=lambda row: -abs(row.score))[:STRONGEST]
    rows = [
        tag(
            "tr",
            tag("th", tag("bdi", row.label), scope="row"),
            tag("td", tag("span", number(row.score), class_=shade_class(row.score, limit) or None)),
        )
        for row in chosen
    ]
    caption = f"{len(chosen)} of {len(drawn.rows):,} {drawn.noun}, the strongest first"
    return tag("table", tag("caption", caption), *rows, class_="whence-table")


def draw_ledger(view: View) -> Markup:
    """Where the target's value went: a sentence, a bar per block, and what took the most."""
    sentences = [f"{rounded(view.kept[0])} of the target's value reached the input"] if view.kept else []
    if view.absorbed:
        name, share = view.absorbed[0]
        verb = "taken" if share >= 0 else "added"
        sentences.append(f"the largest share was {verb} by {name} ({rounded(abs(share))})")
    said = "; ".join(sentences)
    absorbed = [draw_taken(view)] if view.absorbed else []
    charts = [draw_kept(view.kept)] if view.kept else []
    return join([tag("p", f"{said[:1].upper()}{said[1:]}."), tag("div", *charts, *absorbed, class_="whence-books")])


def draw_taken(view: View) -> Markup:
    """What kept relevance for itself, or made some, on the way to the input."""
    rows = [tag("tr", tag("th", tag("bdi", n), scope="row"), tag("td", rounded(s))) for n, s in view.absorbed]
    caption = tag("caption", "Taken on the way (added, where negative)")
    return tag("table", caption, *rows, class_="whence-table")


def _notes(notes: Sequence[str]) -> list[Markup]:
    return [tag("p", note, class_="whence-remark") for note in notes]


def _common_notes(views: Sequence[View]) -> list[str]:
    """What holds for all views is said once, below them."""
    if len(views) < 2:
        return []
    return [note for note in dict.fromkeys(views[0].notes) if all(note in view.notes for view in views)]


def _in_brackets(probability: float | None) -> str:
    return "" if probability is None else f" ({percent(probability)})"


def _is_picture(panel: Panel) -> bool:
    return isinstance(panel.origin, ImageOrigin)
