"""A transcript under its audio: for each word, the scores of the audio over time."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ...results.input_origin import AudioOrigin
from ..html.shade import rgb
from ..palette import AGAINST, FOR
from ..view_model import ScoreGrid
from .canvas import DARK, GREY
from .figure import DPI, KINDS, default_style
from .fonts import Fonts
from .plots import envelope, tint

ROW = 0.19  # inches of a word
WIDTH = 9.0


def draw(words: ScoreGrid, audio: AudioOrigin, intervals: Sequence[tuple[float, float]], kind: str) -> bytes:
    """Draw a transcript into a file's bytes.

    Args:
        words: a row for each word, relative to its strongest score; a column for each of equal intervals of the audio.
        audio: the audio, drawn above.
        intervals: the seconds that hold a third of each word's positive relevance, which are framed.
        kind: ``png``, ``svg`` or ``pdf``.
    """
    with default_style():
        high = ROW * len(words.rows)
        figure = Figure(figsize=(WIDTH, 1.7 + high), layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(0.8, max(high, ROW)))
        fonts = Fonts(keep=kind == "svg")
        low, top, times = envelope(audio)
        above.fill_between(times, low, top, color=DARK, linewidth=0.4)
        above.set_title(fonts.show(words.title), fontsize=9, loc="left")
        above.set_yticks([])
        above.spines[:].set_visible(False)
        above.tick_params(bottom=False)
        below.imshow(
            tint(words.values, words.limit),
            extent=(0.0, audio.seconds, len(words.rows), 0.0),
            aspect="auto",
            interpolation="nearest",
        )
        for row, (start, end) in enumerate(intervals):
            frame = Rectangle((start, row + 0.06), end - start, 0.88, fill=False, edgecolor=GREY, linewidth=0.7)
            below.add_patch(frame)
        below.set_yticks([row + 0.5 for row in range(len(words.rows))], [fonts.show(word) for word in words.rows])
        below.set_xlim(0, audio.seconds)
        below.set_xlabel("seconds", fontsize=8)
        below.tick_params(labelsize=7, length=0, axis="y")
        below.tick_params(labelsize=7, axis="x")
        below.spines[["top", "right", "left"]].set_visible(False)
        signs = [Patch(color=rgb(FOR), label="for the word")]
        if bool((words.values < 0).any()):
            signs.append(Patch(color=rgb(AGAINST), label="against it"))
        signs.append(Patch(facecolor="none", edgecolor=GREY, label="a third of its positive relevance"))
        figure.legend(handles=signs, fontsize=7, frameon=False, loc="outside lower right", ncols=3)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=DPI, metadata=KINDS[kind])
    return out.getvalue()
