"""``whence demo``: real sentences and pictures, explained by the models that come with Whence, in one report."""

from __future__ import annotations

import sys
from pathlib import Path

from . import files
from .explainer import Explainer
from .explanation import Explanations
from .render.html import page
from .views import cards

#: where the models live; each directory has a model card that says what it was trained on and how good it is
MODELS = Path(__file__).parent / "models"
METHODS = ["conservative-lrp", "transformer-attribution", "generic-attention", "gradient-x-input"]
INTRO = [
    "Each sentence was read by a small Transformer that judges opinions, each picture by one that names the two digits "
    "in it. Both come with Whence and were trained on real data: see the model cards beside their weights.",
    "Red marks what speaks for the answer in question, blue what speaks against it, and the stronger the colour, the "
    "larger the share. Rows and columns are different methods asked about the same answer: where they agree, you can "
    "be more certain; where they differ, look at the ledger.",
    "In the pictures, two answers are explained side by side: asked about one digit, an explanation should light up "
    "that digit and not the other.",
    "The ledger below an explanation says how much of the answer's value reached the input. What is missing was taken "
    "by constants inside the model (biases), and no method can say which word or patch it belongs to.",
]


def report(out: str | Path = "whence-report.html", sentences: int = 4, pictures: int = 3) -> Path:
    """Write the demo's report.

    Args:
        out: where it is written.
        sentences: how many sentences are explained.
        pictures: how many pictures.

    Returns:
        The report's full path.
    """
    shown = Explanations()
    explainer = Explainer.from_pretrained(MODELS / "sentiment")
    texts = (MODELS / "sentiment" / "examples.txt").read_text(encoding="utf-8").splitlines()[:sentences]
    for text in texts:
        _say(text)
        shown += explainer.compare(text, METHODS)
    shown += explainer.compare(texts[0], METHODS[:1], ["positive", "negative"])
    explainer = Explainer.from_pretrained(MODELS / "digits")
    for path in sorted((MODELS / "digits" / "examples").glob("*.png"))[:pictures]:
        _say(path.name)
        digits = explainer(path).logits[0].topk(2).indices.tolist()
        for method in METHODS[:3]:
            shown += explainer.compare(path, [method], digits)
    out = Path(out).resolve()
    files.write(out, page(cards(shown), "Where did it come from?", INTRO).encode())
    return out


def _say(what: str) -> None:
    print(f"Explaining {what}", file=sys.stderr)


if __name__ == "__main__":
    print(f"The report is at {report()}")
