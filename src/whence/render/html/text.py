"""A text with its words shaded."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise
from typing import NamedTuple

from ...results.input_origin import Span, TextOrigin
from ...results.word_segmentation import Piece
from ..palette import shade
from ..view_model import Panel
from .markup import Markup, join, label, tag, visible
from .medium import Medium, PanelMarkup, ScoredItem
from .shade import rgb, shade_class

LONG = 1800  # characters; longer texts get a box that scrolls
STRIPES = 120  # of the map beside a long text
UNREAD = "not read by the model"


class _Segment(NamedTuple):
    """A piece of the text, or the part of one that the model read or did not read."""

    piece: Piece
    text: str
    unread: bool


def draw_text(panel: Panel, limit: float, medium: Medium) -> PanelMarkup:
    """Return the user's own text, every word on the colour of its score."""
    scored = [(p, p.score) for p in panel.pieces if p.score is not None]
    items = [ScoredItem(label(p.text), score, *panel.sources_of(i)) for i, (p, score) in enumerate(scored)]
    item_of = {id(piece): item for (piece, _), item in zip(scored, items, strict=True)}
    unread = panel.origin.unread if isinstance(panel.origin, TextOrigin) else ()
    paragraphs = []
    for part, grouped in groupby(panel.pieces, lambda p: p.part):
        pieces = list(grouped)
        segments = _segments(pieces, [s for s in unread if s.part == part])
        runs = []
        for skipped, together in groupby(segments, lambda s: s.unread):
            run = join([_word(s, item_of.get(id(s.piece)), panel, limit, medium) for s in together])
            runs.append(tag("span", run, class_="whence-unread", title=UNREAD) if skipped else run)
        paragraphs.append(tag("p", *runs, dir=direction(p.text for p in pieces)))
    if not paragraphs:
        paragraphs = [tag("p", tag("span", "(an empty text)", class_="whence-muted"))]
    text = tag("div", *paragraphs, class_="whence-text", **medium.group_attributes("words", len(items), 0))
    if sum(len(p.text) for p in panel.pieces) > LONG:
        text = _box(text, panel.pieces, limit, medium)
    legend = [tag("p", f"Grey text was {UNREAD}.", class_="whence-small")] if unread else []
    return PanelMarkup(join([text, *legend]), items, "words")


def direction(texts: Iterable[str]) -> str:
    """Return the direction of a text's first letter; browsers find it by ``dir="auto"``, but slowly in long texts.

    Example:
        >>> direction(["(", "שלום", "world"])
        'rtl'
    """
    for character in chain.from_iterable(texts):
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def _word(segment: _Segment, item: ScoredItem | None, panel: Panel, limit: float, medium: Medium) -> Markup:
    piece = segment.piece
    if item is None:
        return visible(segment.text)
    tokens = [panel.tokens[i] for i in piece.positions if i < len(panel.tokens)]
    more = "tokens: " + " · ".join(label(t) for t in tokens) if tokens and tokens != [piece.text] else ""
    shaded = "" if segment.unread else shade_class(item.score, limit)
    classes = " ".join(filter(None, ["whence-w", shaded]))
    first = next(p for p in panel.pieces if p.score is not None) is piece
    return medium.item("span", segment.text, item, first, more, class_=classes)


def _segments(pieces: Sequence[Piece], unread: Sequence[Span]) -> Iterator[_Segment]:
    """Yield the pieces; gaps are cut where truncation begins, and a word that was read in part counts as read."""
    for piece in pieces:
        cuts = {c for s in unread for c in (s.start, s.end) if piece.start < c < piece.end and piece.score is None}
        edges = [piece.start, *sorted(cuts), piece.end]
        for start, end in pairwise(edges):
            skipped = any(s.start <= start and end <= s.end for s in unread)
            yield _Segment(piece, piece.text[start - piece.start : end - piece.start], skipped)


def _box(text: Markup, pieces: Sequence[Piece], limit: float, medium: Medium) -> Markup:
    """Return a long text in a box that scrolls, beside it a map of where the strong words are."""
    box = tag("div", tag("div", text, class_="whence-scroll"), _map(pieces, limit), class_="whence-box")
    if not medium.live:
        return box
    tools = tag(
        "div",
        tag("button", "Strongest word", type="button", data_jump=1),
        tag("button", "\u2039", type="button", data_jump=-1, aria_label="Back to the word before it", disabled=True),
        tag("span", class_="whence-small", data_rank=True),
        tag("button", "Show all", type="button", data_unfold=True, aria_expanded="false"),
        class_="whence-tools",
    )
    return tag("div", tools, box, class_="whence-long")


def _map(pieces: Sequence[Piece], limit: float) -> Markup:
    """Return one stripe per slice of the text, in the colour of its strongest word."""
    length = sum(len(p.text) for p in pieces)
    strongest: dict[int, float] = {}
    place = 0
    for piece in pieces:
        stripe = STRIPES * place // length
        place += len(piece.text)
        if piece.score is not None and abs(piece.score) > abs(strongest.get(stripe, 0.0)):
            strongest[stripe] = piece.score
    stripes = []
    for stripe, score in strongest.items():
        colour, alpha = shade(score, limit)
        stripes.append(tag("rect", y=stripe, width=1, height=1, fill=rgb(colour), fill_opacity=f"{alpha:.2f}"))
    return tag(
        "svg", *stripes, class_="whence-map", viewBox=f"0 0 1 {STRIPES}", preserveAspectRatio="none", aria_hidden="true"
    )
