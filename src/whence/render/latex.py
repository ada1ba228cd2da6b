"""Explanations as a LaTeX document that needs only ``xcolor``: words in coloured boxes, images as tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin
from ..results.word_segmentation import characters
from . import phrases
from .line_layout import Fragment, fragments
from .palette import AGAINST, FOR, blend, ink
from .view_model import Card, Floats, Panel, View

ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    '"': r"\textquotedbl{}", "|": r"\textbar{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
    "-": "-{}", ",": ",{}", "⟨": r"\textlangle{}", "⟩": r"\textrangle{}", "…": r"\dots{}", "\u00a0": "~",
}  # fmt: skip  # the last but three would join into dashes and quotation marks
CONTROLS: dict[str, int] = {phrases.visible(chr(k)): k for k in (*range(32), 127)}
LONG = 30  # characters of a word after which a line may end
LARGEST = 48  # tiles along an image's side
BARS = 100
CHANNELS = 12
TILE = 0.32  # of the page's width, for all tiles in a row
HEAD = r"""\documentclass[10pt]{article}
\usepackage[margin=2cm]{geometry}
\ifdefined\pdftexversion\usepackage[T1]{fontenc}\fi
\usepackage{xcolor}
\setlength{\parindent}{0pt}\setlength{\parskip}{4pt}\setlength{\fboxsep}{1pt}\setlength{\fboxrule}{0.2pt}
\definecolor{quiet}{RGB}{107,107,107}
% a word: colour of its box, colour of its letters, the word
\newcommand{\word}[3]{{\colorbox[RGB]{#1}{\strut\textcolor[RGB]{#2}{#3}}}}
% a tile: its colour, width and height
\newcommand{\tile}[3]{\textcolor[RGB]{#1}{\rule{#2}{#3}}\hskip0.4pt}
% a bar: its colour, how far below the line it begins, its height
\newcommand{\tbar}[3]{\textcolor[RGB]{#1}{\rule[#2]{0.006\linewidth}{#3}}\hskip0.002\linewidth}
% a character that pdfTeX's fonts may not have is written as its number, unless they do have it
\newcommand{\unknown}[3]{\ifcsname u8:\detokenize{#2}\endcsname\else\DeclareUnicodeCharacter{#1}{{\tiny U+#3}}\fi}
"""


def document(cards: Sequence[Card]) -> str:
    r"""Return a document for ``pdflatex`` (or ``lualatex``) that needs no other file.

    Letters that the fonts of pdfTeX lack are written as their number; for other scripts than Latin, use ``lualatex``
    and choose a font that has them. The patches of an image are shown as coloured tiles, without the image itself:
    figures show both.

    Args:
        cards: the explanations, by input.

    Example:
        >>> from pathlib import Path
        >>> Path("why.tex").write_text(document(cards), encoding="utf-8")  # doctest: +SKIP
    """
    body = "\n".join(line for card in cards for line in _card(card))
    unusual = sorted({c for c in body if not c.isascii()})
    known = "\n".join(rf"\unknown{{{ord(c):04X}}}{{{c}}}{{{_code(c):04X}}}" for c in unusual)
    setup = f"\\ifdefined\\pdftexversion\n{known}\n\\fi\n" if known else ""
    return f"{HEAD}{setup}\\begin{{document}}\\raggedright\\sloppy\n{body}\n\\end{{document}}\n"


def _code(c: str) -> int:
    """Return a character's code point; for a control picture, that of the control character."""
    return CONTROLS.get(c, ord(c))


def escape(shown: str) -> str:
    r"""Escape a text so that LaTeX prints it literally.

    Example:
        >>> escape("50% of $x_1$")
        '50\\% of \\$x\\_1\\$'
    """
    return "".join(ESCAPES.get(c, c) for c in phrases.visible(shown))


def _card(card: Card) -> Iterator[str]:
    title = escape(phrases.flat(card.title))
    prediction = escape(phrases.prediction(card))
    yield rf"\textbf{{{title}}}\hfill\mbox{{{prediction}}}\par\nopagebreak"
    for view in card.views:
        method = escape(phrases.method(view))
        target = escape(phrases.target(view))
        yield rf"{{\small {method} \textcolor{{quiet}}{{{target}}}}}\par\nopagebreak"
        for panel in view.panels:
            yield from _panel(view, panel)
        yield from _small([phrases.ledger(view)])
    yield from _small(phrases.notes(card))
    yield r"\bigskip"


def _small(texts: Iterable[str]) -> Iterator[str]:
    yield from (rf"{{\footnotesize\textcolor{{quiet}}{{{escape(t)}}}}}\par" for t in texts if t)


def _panel(view: View, panel: Panel) -> Iterator[str]:
    grid = panel.patches if panel.patches is not None else panel.heat
    if panel.pieces or panel.tokens:
        yield from _words(view, panel)
    elif isinstance(panel.origin, SeriesOrigin):
        steps = panel.patches if panel.patches is not None else panel.scores[~panel.special][:, None]
        names = panel.origin.channels
        for c in range(min(steps.shape[1], CHANNELS)):
            yield from _small([phrases.channel(names, c, steps.shape[1])])
            yield _bars(steps[:, c], view.limit)
        if steps.shape[1] > CHANNELS:
            yield from _small([f"…and {steps.shape[1] - CHANNELS} more channels."])
    elif grid is not None and not isinstance(panel.origin, AudioOrigin):
        yield _tiles(grid, view.limit, _ratio(panel, grid))
    else:
        sound = isinstance(panel.origin, AudioOrigin) and panel.patches is not None
        scores = panel.patches.sum(0) if sound and panel.patches is not None else panel.scores[~panel.special]
        yield _bars(scores, float(np.abs(scores).max(initial=0.0)) if sound else view.limit)


def _words(view: View, panel: Panel) -> Iterator[str]:
    """Yield words in boxes; TeX breaks the lines."""
    line: list[str] = []
    for f in fragments(panel):
        if f.text == "\n":
            yield "".join(line) + r"\par"
            line = []
        elif f.space:
            line.append("\n" if len(line) % 12 == 11 else " ")
        else:
            line.append(r"\allowbreak{}".join(_word(f, part, view.limit) for part in _parts(f.text)))
    yield "".join(line) + r"\par"


def _parts(word: str) -> list[str]:
    """Return a long word, cut where a line may end."""
    if len(word) <= LONG:
        return [word]
    units = [word[start:end] for start, end in characters(word)]
    return ["".join(units[i : i + LONG]) for i in range(0, len(units), LONG)]


def _word(f: Fragment, shown: str, limit: float) -> str:
    if f.unread:
        return rf"\textcolor{{quiet}}{{{escape(shown)}}}"
    ground = blend(f.score, limit) if f.score is not None else (255, 255, 255)
    if ground == (255, 255, 255):
        return escape(shown)
    return rf"\word{{{_rgb(ground)}}}{{{_rgb(ink(ground))}}}{{{escape(shown)}}}"


def _rgb(colour: tuple[int, int, int]) -> str:
    return ",".join(str(c) for c in colour)


def _ratio(panel: Panel, grid: Floats) -> float:
    """Return a tile's height divided by its width, so that the grid has the shape of the image."""
    if not isinstance(panel.origin, ImageOrigin):
        return 1.0
    origin = panel.origin
    high, wide = (abs(origin.size[k] / origin.scale[k]) / grid.shape[k] for k in (0, 1))
    return float(high / wide)


def _tiles(grid: Floats, limit: float, ratio: float) -> str:
    """Return the patches of an image, each in its colour."""
    step = [-(-n // LARGEST) for n in grid.shape]
    if max(step) > 1:
        rows, columns = ([*range(0, n, s)] for n, s in zip(grid.shape, step, strict=True))
        grid = np.add.reduceat(np.add.reduceat(grid, rows, 0), columns, 1) / (step[0] * step[1])
    wide = min(TILE / grid.shape[1], TILE / grid.shape[0] / ratio * step[1] / step[0])
    high = wide * ratio * step[0] / step[1]
    size = rf"{{{wide:.5f}\linewidth}}{{{high:.5f}\linewidth}}"
    tiles = ("".join(rf"\tile{{{_rgb(blend(float(score), limit))}}}{size}" for score in row) for row in grid)
    lines = "\\vskip0.4pt\n".join(rf"\hbox{{{row}}}" for row in tiles)
    return rf"\fcolorbox{{quiet}}{{white}}{{\vbox{{\offinterlineskip{lines}}}}}\par"


def _bars(scores: Floats, limit: float) -> str:
    """Return a bar per slice of positions for the strongest score in it; against the target, downwards."""
    slices = np.array_split(scores, min(len(scores), BARS)) if len(scores) else []
    bars = []
    for values in slices:
        score = float(values[np.abs(values).argmax()])
        high = 22 * min(abs(score) / limit, 1.0) if limit > 0 else 0.0
        colour, depth = (FOR, 0.0) if score >= 0 else (AGAINST, -high)
        bars.append(rf"\tbar{{{_rgb(colour)}}}{{{depth:.2f}pt}}{{{high:.2f}pt}}")
    return rf"\hbox{{{''.join(bars)}}}\par"
