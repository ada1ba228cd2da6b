"""Whether explanations of generated digit words point at the digits.

    python -m tools.training.relations.pointing [--count 100] [--methods conservative-lrp ...]

The small LLaVA (`tools.training.relations.llava`) answers "which digits are there?". Each digit word that is right is
explained by `Explainer.generate`; it is a hit if the patch with the highest score holds a pixel of that digit. The
chance of a patch drawn at random is given beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import whence
from tools.training.relations.llava import ALL, ask
from tools.training.relations.models import BUILD
from tools.training.relations.patches import touched
from tools.training.relations.quadrants import PLACES, Placed, scatter
from tools.training.scenes import ABSENT, load_mnist

METHODS = ("conservative-lrp", "attn-lrp", "libragrad", "gradient-x-input", "generic-attention")


def scenes(count: int, seed: int = 0) -> Iterator[Placed]:
    """Yield scenes of one to three digits of MNIST's test split, one at a time."""
    digits = load_mnist("t10k")
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        yield scatter(digits, rng.integers(1, PLACES + 1, 1), rng)


def hits(explainer: whence.Explainer, placed: Placed, method: str) -> Iterator[tuple[bool, float]]:
    """Yield, for each digit word that is right, whether its explanation is a hit, and the chance of one."""
    right = ask(placed, 0, True, np.random.default_rng(0))
    image = Image.fromarray(placed.scenes.images[0]).convert("RGB")
    written = explainer.generate(ALL, image=image, method=method, max_new_tokens=16)
    for word, place, e in zip(right.answer.split(), right.places, written, strict=False):
        if e.target_names[0].strip() != word:
            return  # what follows a wrong word answers another scene
        if place != ABSENT:
            truth = touched(placed.scenes.masks[0, place])
            yield bool(truth[int(e.patches[0].flatten().argmax())]), float(truth.mean())


def measure(explainer: whence.Explainer, count: int, method: str) -> tuple[float, float, int]:
    """Return the share of hits, the mean chance, and the number of words."""
    found = [pair for placed in scenes(count) for pair in hits(explainer, placed, method)]
    shares = np.mean(found, axis=0) if found else (float("nan"), float("nan"))
    return float(shares[0]), float(shares[1]), len(found)


def main() -> None:
    """Print a line for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=BUILD / "scenes-llava")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    explainer = whence.Explainer.from_pretrained(arguments.model)
    for method in arguments.methods:
        try:
            share, chance, words = measure(explainer, arguments.count, method)
        except whence.WhenceError as error:
            print(f"{method:24} {error}")
            continue
        print(f"{method:24} {share:.3f} of {words} words (chance {chance:.3f})", flush=True)


if __name__ == "__main__":
    main()
