"""Explanations as figures for papers: PNG, SVG and PDF."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import InputError, WhenceError
from ...results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin
from .. import phrases
from ..line_layout import fragments
from ..view_model import Card, Panel, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .canvas import Canvas

KINDS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # metadata: no date, so that bytes are equal
DPI = 200
NARROWEST = 3.0  # inches
CARDS = 40  # on one figure, at most
HEIGHT = 60.0  # inches after which no other card is begun
LINES = 120  # of text on a card: about 1,500 words
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "whence", "pdf.fonttype": 42}
FAMILIES = ("agg.", "axes.", "figure.", "font.", "image.", "lines.", "mathtext.", "patch.", "path.", "pdf.", "savefig.",
            "svg.", "text.", "xtick.", "ytick.")  # fmt: skip  # rcParams that change how a figure looks
_LOCK = threading.RLock()


def draw(cards: Sequence[Card], kind: str, width: float = 8.0) -> bytes:
    """Draw explanations into a file's bytes; the same explanations give the same bytes.

    Texts are written as text, so that they can be searched and copied. A character that no installed font has is kept
    in an SVG, where the viewer's fonts show it; in a PNG or PDF it is replaced by its number: ``U+1F44D``. Long
    texts, many cards and tall figures are cut, with a line that counts what was left out.

    Args:
        cards: the explanations, by input.
        kind: ``png``, ``svg`` or ``pdf``.
        width: in inches.

    Example:
        >>> from pathlib import Path
        >>> Path("why.pdf").write_bytes(draw(cards, "pdf"))  # doctest: +SKIP
    """
    if kind not in KINDS:
        raise InputError(f"There is no figure of kind {kind!r}: choose one of {', '.join(KINDS)}.")
    with default_style():
        drawn = _draw_cards(cards, width, keep=kind == "svg")
        out = io.BytesIO()
        drawn.savefig(out, format=kind, dpi=DPI, metadata=KINDS[kind])
    return out.getvalue()


def figure(cards: Sequence[Card], width: float = 8.0) -> Figure:
    """Return explanations as a matplotlib figure that you can change; it is not registered with pyplot.

    Args:
        cards: the explanations, by input.
        width: in inches.

    Example:
        >>> figure(cards).savefig("why.png", dpi=300)  # doctest: +SKIP
    """
    with default_style():
        return _draw_cards(cards, width, keep=False)


@contextmanager
def default_style() -> Iterator[None]:
    """Use matplotlib's default rcParams, whatever the user has set; restore them afterwards."""
    try:
        import matplotlib
    except ImportError as error:
        raise WhenceError(
            "Drawing figures needs matplotlib: pip install 'whence[figures]', or save as .html."
        ) from error
    plain: dict[str, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k.startswith(FAMILIES)}
    with _LOCK, matplotlib.rc_context(plain | STYLE):  # type: ignore[arg-type]  # names of settings are literals there
        yield


def _draw_cards(cards: Sequence[Card], width: float, keep: bool) -> Figure:
    from .canvas import Canvas
    from .fonts import Fonts
    from .plots import legend

    if not cards:
        raise InputError("There is nothing to draw: no explanation was given.")
    if not width >= NARROWEST:
        raise InputError(f"A figure {width} inches wide has no room for words: give at least {NARROWEST:g}.")
    canvas = Canvas(width, Fonts(keep))
    done = 0
    for card in cards[:CARDS]:
        if canvas.filled > HEIGHT:
            break
        _card(canvas, card, first=done == 0)
        done += 1
    if done < len(cards):
        canvas.space(0.1)
        canvas.paragraph(f"…and {len(cards) - done:,} more inputs: save as .html to see all.")
    canvas.space(0.1)
    legend(canvas, any(v.signed for c in cards[:done] for v in c.views))
    return canvas.figure()


def _card(canvas: Canvas, card: Card, first: bool) -> None:
    """Draw a card: its title, the model's prediction, and each stream of tokens in all views."""
    from .canvas import LABEL, MARGIN, TITLE

    if not first:
        canvas.space(0.12)
        canvas.rule()
        canvas.space(0.08)
    fonts = canvas.fonts
    prediction = fonts.shorten(fonts.show(phrases.prediction(card)), LABEL, canvas.inner * 0.55)
    room = canvas.inner - fonts.width(prediction, LABEL) - 0.3
    title = fonts.show(phrases.flat(card.title))
    bold = fonts.bold(title)
    y = canvas.row(0.16)
    canvas.write(fonts.shorten(title, TITLE, room, bold), MARGIN, y, TITLE, bold=bold)
    canvas.write(prediction, canvas.width - MARGIN, y, LABEL, anchor="right")
    canvas.space(0.06)
    left_out = _streams(canvas, card)
    if left_out:
        canvas.paragraph(f"…and {left_out:,} more explanations of this input: save as .html to see all.")
    for note in phrases.notes(card):
        canvas.paragraph(note)


def _streams(canvas: Canvas, card: Card) -> int:
    """Draw every stream in every view, while there is room; return how many views were left out."""
    from .plots import COLUMNS, images

    shown = list(card.views)
    for k in range(max((len(v.panels) for v in card.views), default=0)):
        rows = [(v, v.panels[k]) for v in shown if k < len(v.panels)]
        if rows and all(_is_image(p) for _, p in rows):
            rows = rows[: 6 * COLUMNS - 1]
            captions = [(phrases.method(v), phrases.target(v)) for v, _ in rows]
            images(canvas, rows, captions, card.targets if len(rows) == len(card.views) else 1)
            shown = [v for v, _ in rows]
            continue
        for n, (view, panel) in enumerate(rows):
            if n and canvas.filled > HEIGHT:
                shown = shown[:n]
                break
            _panel(canvas, view, panel, max(LINES // len(rows), 4))
    return len(card.views) - len(shown)


def _is_image(panel: Panel) -> bool:
    """Whether a panel is drawn as an image: it is one, or a grid of scores of unknown origin."""
    if isinstance(panel.origin, ImageOrigin):
        return panel.heat is not None or panel.patches is not None
    return panel.origin is None and not panel.pieces and not panel.tokens and panel.patches is not None


def _panel(canvas: Canvas, view: View, panel: Panel, most: int) -> None:
    """Draw one stream in one view, over the whole width, under a line with its method and target."""
    from .canvas import GREY, LABEL, MARGIN
    from .plots import bars, series, waveform

    fonts = canvas.fonts
    y = canvas.row(0.17)
    method = fonts.shorten(fonts.show(phrases.method(view)), LABEL, canvas.inner * 0.6)
    canvas.write(method, MARGIN, y, LABEL)
    x = MARGIN + fonts.width(method, LABEL) + 0.08
    target = fonts.shorten(fonts.show(phrases.target(view)), LABEL, canvas.width - MARGIN - x)
    canvas.write(target, x, y, LABEL, GREY)
    if panel.pieces or panel.tokens:
        left_out = canvas.words(list(fragments(panel, fonts.show)), view.limit, most)
        if left_out:
            canvas.paragraph(f"…and {left_out:,} more words: save as .html to see all.")
    elif isinstance(panel.origin, AudioOrigin):
        waveform(canvas, view, panel)
    elif isinstance(panel.origin, SeriesOrigin):
        left_out = series(canvas, view, panel)
        if left_out:
            canvas.paragraph(f"…and {left_out:,} more channels, of smaller scores: save as .html to see all.")
    elif len(panel.scores):
        bars(canvas, view, panel)
    else:
        canvas.paragraph(phrases.EMPTY)
