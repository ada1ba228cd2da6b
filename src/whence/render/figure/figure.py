"""Explanations as figures for papers: PNG, SVG and PDF."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import InputError, WhenceError
from ...results.input_origin import ImageOrigin, SeriesOrigin, SoundOrigin
from .. import phrases
from ..line_layout import fragments
from ..view_model import Card, Panel, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .page import Page

KINDS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # and what would differ from day to day
DPI = 200
NARROWEST = 3.0  # inches
CARDS = 40  # on one figure, and
HEIGHT = 60.0  # inches after which no other card is begun
LINES = 120  # of text on a card: about 1,500 words
OWN = {"svg.fonttype": "none", "svg.hashsalt": "whence", "pdf.fonttype": 42}
FAMILIES = ("agg.", "axes.", "figure.", "font.", "image.", "lines.", "mathtext.", "patch.", "path.", "pdf.", "savefig.",
            "svg.", "text.", "xtick.", "ytick.")  # fmt: skip  # settings that would change how a figure looks
_LOCK = threading.RLock()


def draw(cards: Sequence[Card], kind: str, width: float = 8.0) -> bytes:
    """Draw explanations into a file's bytes; the same explanations give the same bytes.

    Texts are written as text, so that they can be searched and copied. A character that no installed font has is kept
    in an SVG, where the viewer's fonts show it; in a PNG or PDF its number stands in its place: ``U+1F44D``. Long
    texts, many cards and tall pages are cut, and the figure says what was left out.

    Args:
        cards: what to draw.
        kind: ``png``, ``svg`` or ``pdf``.
        width: in inches.

    Example:
        >>> from pathlib import Path
        >>> Path("why.pdf").write_bytes(draw(cards, "pdf"))  # doctest: +SKIP
    """
    if kind not in KINDS:
        raise InputError(f"There is no figure of kind {kind!r}: choose one of {', '.join(KINDS)}.")
    with settings():
        page = _page(cards, width, keep=kind == "svg")
        out = io.BytesIO()
        page.savefig(out, format=kind, dpi=DPI, metadata=KINDS[kind])
    return out.getvalue()


def figure(cards: Sequence[Card], width: float = 8.0) -> Figure:
    """The same as a matplotlib figure, to be changed or placed by you; pyplot does not know of it.

    Args:
        cards: what to draw.
        width: in inches.

    Example:
        >>> figure(cards).savefig("why.png", dpi=300)  # doctest: +SKIP
    """
    with settings():
        return _page(cards, width, keep=False)


@contextmanager
def settings() -> Iterator[None]:
    """Matplotlib as it is by default, whatever its user has set; as it was again afterwards."""
    try:
        import matplotlib
    except ImportError as error:
        raise WhenceError(
            "Drawing figures needs matplotlib: pip install 'whence[figures]', or save as .html."
        ) from error
    plain: dict[str, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k.startswith(FAMILIES)}
    with _LOCK, matplotlib.rc_context(plain | OWN):  # type: ignore[arg-type]  # names of settings are literals there
        yield


def _page(cards: Sequence[Card], width: float, keep: bool) -> Figure:
    from .fonts import Fonts
    from .page import Page
    from .plots import legend

    if not cards:
        raise InputError("There is nothing to draw: no explanation was given.")
    if not width >= NARROWEST:
        raise InputError(f"A figure {width} inches wide has no room for words: give at least {NARROWEST:g}.")
    page = Page(width, Fonts(keep))
    done = 0
    for card in cards[:CARDS]:
        if page.y > HEIGHT:
            break
        _card(page, card, first=done == 0)
        done += 1
    if done < len(cards):
        page.y += 0.1
        page.paragraph(f"…and {len(cards) - done:,} more inputs: save as .html to see all.")
    page.y += 0.1
    legend(page, any(v.signed for c in cards[:done] for v in c.views))
    return page.figure()


def _card(page: Page, card: Card, first: bool) -> None:
    """A card: its title, what the model said, and each stream of tokens in all views."""
    from .page import LABEL, MARGIN, TITLE

    if not first:
        page.y += 0.12
        page.rule()
        page.y += 0.08
    said = page.fonts.shorten(page.fonts.show(phrases.prediction(card)), LABEL, page.inner * 0.55)
    page.y += 0.16
    room = page.inner - page.fonts.width(said, LABEL) - 0.3
    title = page.fonts.show(phrases.flat(card.title))
    bold = page.fonts.bold(title)
    page.write(page.fonts.shorten(title, TITLE, room, bold), MARGIN, page.y, TITLE, bold=bold)
    page.write(said, page.width - MARGIN, page.y, LABEL, anchor="right")
    page.y += 0.06
    left = _streams(page, card)
    if left:
        page.paragraph(f"…and {left:,} more explanations of this input: save as .html to see all.")
    for note in phrases.notes(card):
        page.paragraph(note)


def _streams(page: Page, card: Card) -> int:
    """Every stream in every view, while there is room; how many views were left out."""
    from .plots import COLUMNS, pictures

    shown = list(card.views)
    for k in range(max((len(v.panels) for v in card.views), default=0)):
        rows = [(v, v.panels[k]) for v in shown if k < len(v.panels)]
        if rows and all(_pictured(p) for _, p in rows):
            rows = rows[: 6 * COLUMNS - 1]
            captions = [(phrases.method(v), phrases.target(v)) for v, _ in rows]
            pictures(page, rows, captions, card.targets if len(rows) == len(card.views) else 1)
            shown = [v for v, _ in rows]
            continue
        for n, (view, panel) in enumerate(rows):
            if n and page.y > HEIGHT:
                shown = shown[:n]
                break
            _row(page, view, panel, max(LINES // len(rows), 4))
    return len(card.views) - len(shown)


def _pictured(panel: Panel) -> bool:
    """Whether a panel is drawn as a picture: it is one, or its scores lie in a grid that nothing else explains."""
    if isinstance(panel.origin, ImageOrigin):
        return panel.heat is not None or panel.patches is not None
    return panel.origin is None and not panel.pieces and not panel.tokens and panel.patches is not None


def _row(page: Page, view: View, panel: Panel, most: int) -> None:
    """One stream in one view, over the width of the page, under a line that says which."""
    from .page import GREY, LABEL, MARGIN
    from .plots import bars, series, sound

    page.y += 0.17
    name = page.fonts.shorten(page.fonts.show(phrases.method(view)), LABEL, page.inner * 0.6)
    page.write(name, MARGIN, page.y, LABEL)
    x = MARGIN + page.fonts.width(name, LABEL) + 0.08
    goal = page.fonts.shorten(page.fonts.show(phrases.target(view)), LABEL, page.width - MARGIN - x)
    page.write(goal, x, page.y, LABEL, GREY)
    if panel.pieces or panel.tokens:
        left = page.words(list(fragments(panel, page.fonts.show)), view.limit, most)
        if left:
            page.paragraph(f"…and {left:,} more words: save as .html to see all.")
    elif isinstance(panel.origin, SoundOrigin):
        sound(page, view, panel)
    elif isinstance(panel.origin, SeriesOrigin):
        left = series(page, view, panel)
        if left:
            page.paragraph(f"…and {left:,} more channels, of smaller scores: save as .html to see all.")
    elif len(panel.scores):
        bars(page, view, panel)
    else:
        page.paragraph(phrases.EMPTY)
