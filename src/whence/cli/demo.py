"""The report of ``whence demo``: real sentences and images, explained by the models that come with Whence."""

from __future__ import annotations

import sys
from pathlib import Path

from .._utils import atomic_files
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanations
from ..explanations.view_builder import cards
from ..models import MODELS
from ..render.html.page import page

METHODS = ["conservative-lrp", "transformer-attribution", "generic-attention", "gradient-x-input"]
INTRO = [
    "Each sentence was read by a small Transformer that judges opinions, each picture by one that names the digits in "
    "it. Both come with Whence and were trained on real data.",
    "Rows and columns are different methods asked about the same answer: where they agree, be more certain; where they "
    "differ, look at the ledger (where the relevance went). It says how much of the answer's value reached the input; "
    "the rest was taken by constants inside the model, and no method can say which word or patch that belongs to.",
    "Of every picture two answers are explained: asked about one digit, an explanation should light up that digit and "
    "not the other. So with the first sentence, which is shown again after the last: why positive, why negative?",
]


def write_report(out: str | Path = "whence-report.html", sentences: int = 4, images: int = 3) -> Path:
    """Write the report of the demo.

    Args:
        out: the path of the report.
        sentences: how many sentences are explained.
        images: how many images.

    Returns:
        The absolute path of the report.
    """
    shown = Explanations()
    explainer = Explainer.from_pretrained(MODELS / "sentiment")
    texts = (MODELS / "sentiment" / "examples.txt").read_text(encoding="utf-8").splitlines()[:sentences]
    for text in texts:
        _print_progress(text)
        shown += explainer.compare(text, METHODS)
    shown += explainer.compare(texts[0], METHODS[:1], ["positive", "negative"])
    explainer = Explainer.from_pretrained(MODELS / "digits")
    for path in sorted((MODELS / "digits" / "examples").glob("*.png"))[:images]:
        _print_progress(path.name)
        digits = explainer(path).logits[0].topk(2).indices.tolist()
        for method in METHODS[:3]:
            shown += explainer.compare(path, [method], digits)
    out = Path(out).resolve()
    atomic_files.write(out, page(cards(shown), "Where did it come from?", INTRO).encode())
    return out


def _print_progress(name: str) -> None:
    print(f"Explaining {name}", file=sys.stderr)


if __name__ == "__main__":
    print(f"The report is at {write_report()}")
