"""The README's picture, of the two models that come with Whence: ``python -m tools.docgen.picture``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.colors import LinearSegmentedColormap
from PIL import Image

import whence
from whence.models import MODELS

mpl.use("agg")
OUT = Path(__file__).resolve().parents[2] / "docs" / "site" / "whence.png"
TEXT = "The acting is superb, but the story goes nowhere."
FOR, AGAINST, INK, GREY = "#ca362c", "#1e66be", "#1c1e22", "#6b7078"
HEAT = LinearSegmentedColormap.from_list("heat", [(0.79, 0.21, 0.17, 0.0), (0.79, 0.21, 0.17, 0.85)])


def sentence(axes: Any, y: float, e: whence.Explanation, question: str) -> None:
    """A line of words, each on the colour of its score."""
    axes.text(0, y, question, fontsize=11, color=GREY, va="baseline")
    largest = max(abs(word.score) for word in e.words[0])
    x, renderer = 0.0, axes.figure.canvas.get_renderer()
    for word in e.words[0]:
        share = word.score / largest
        box = {"facecolor": FOR if share > 0 else AGAINST, "alpha": 0.75 * abs(share), "pad": 3, "linewidth": 0}
        drawn = axes.text(x, y - 0.13, word.text, fontsize=15, color=INK, va="baseline", bbox=box)
        width = drawn.get_window_extent(renderer).transformed(axes.transData.inverted()).width
        after = TEXT[word.end : word.end + 1]
        x += width + (0.022 if after == " " else 0.008)


def main() -> None:
    """Draw it and write it, in few colours: it stands in the repository."""
    texts = whence.Explainer.from_pretrained(MODELS / "sentiment")
    digits = whence.Explainer.from_pretrained(MODELS / "digits")
    path = MODELS / "digits" / "examples" / "3-6.png"
    figure = pyplot.figure(figsize=(10.4, 2.5), dpi=150)
    axes = figure.add_axes((0.015, 0.03, 0.56, 0.94))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    negative, positive = (texts(TEXT, target=target) for target in ("negative", "positive"))
    probability = float(negative.probabilities[0, int(negative.target)])
    sentence(axes, 0.83, negative, f"Why negative? ({probability:.0%})")
    sentence(axes, 0.43, positive, f"Why positive? ({1 - probability:.0%})")
    axes.text(0, 0.05, "red speaks for the answer,", fontsize=9.5, color=FOR)
    axes.text(0.31, 0.05, "blue against it", fontsize=9.5, color=AGAINST)
    picture = Image.open(path).convert("L")
    for i, target in enumerate((None, "digit 3", "digit 6")):
        panel = figure.add_axes((0.595 + 0.137 * i, 0.1, 0.128, 0.74))
        panel.axis("off")
        panel.set_title("what it saw" if target is None else f"Why {target[-1]}?", fontsize=11, color=GREY, pad=5)
        panel.imshow(picture, cmap="gray", vmin=-90, interpolation="nearest")
        if target is not None:
            heat = digits(path, "transformer-attribution", target=target).heatmap()[0].clamp(min=0)
            panel.imshow(heat / heat.max(), cmap=HEAT, vmin=0, vmax=1, interpolation="bilinear")
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor="white")
    Image.open(file).convert("RGB").quantize(128).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
