"""Measure the two shipped models on their test sets, as loaded from disk in single precision.

python -m tools.training.accuracy [--sentiment DIRECTORY] [--digits DIRECTORY]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BertForSequenceClassification,
    ViTForImageClassification,
)

from tools.training.digits import scenes_for_test
from tools.training.paths import MODELS
from tools.training.scenes import Scenes
from tools.training.sentiment import accuracy, read_sst2, respell


def measure_sentiment(directory: Path) -> dict[str, float]:
    """Accuracy on SST-2 dev as distributed and in ordinary spelling, and on the phrases held out from train."""
    model = BertForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts, labels = read_sst2("dev")
    phrases, answers = read_sst2("heldout_from_train")
    return {
        f"SST-2 dev, {len(texts)} sentences": accuracy(model, tokenizer, texts, labels),
        f"SST-2 dev in ordinary spelling, {len(texts)}": accuracy(model, tokenizer, [*map(respell, texts)], labels),
        f"SST-2 held out from train, {len(phrases)} phrases": accuracy(model, tokenizer, phrases, answers),
    }


@torch.no_grad()
def read_scenes(directory: Path, scenes: Scenes) -> np.ndarray:
    """The logits [scenes, 10] of the model for RGB pictures of the scenes, through its own image processor."""
    model = ViTForImageClassification.from_pretrained(directory, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(directory)
    logits = []
    for part in np.array_split(scenes.images, max(1, len(scenes.images) // 100)):
        pictures = list(np.repeat(part[..., None], 3, axis=-1))
        logits.append(model(**processor(pictures, return_tensors="pt")).logits.numpy())
    return np.concatenate(logits)


def measure_digits(directory: Path) -> dict[str, float]:
    """Share of test scenes read exactly, by the two highest logits and by the sign of all ten, and of digits found."""
    scenes = scenes_for_test()
    logits, present = read_scenes(directory, scenes), scenes.present()
    top = np.zeros_like(present)
    np.put_along_axis(top, np.argsort(logits, axis=1)[:, -2:], True, axis=1)
    return {
        f"two highest logits are the two digits, {len(top)} scenes": float((top == present).all(axis=1).mean()),
        f"exactly the two digits have positive logits, {len(top)} scenes": float(
            ((logits > 0) == present).all(axis=1).mean()
        ),
        f"digits among the two highest logits, {present.sum()} digits": float(top[present].mean()),
    }


def main() -> None:
    """Print every accuracy on a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentiment", type=Path, default=MODELS / "sentiment")
    parser.add_argument("--digits", type=Path, default=MODELS / "digits")
    arguments = parser.parse_args()
    for name, value in (measure_sentiment(arguments.sentiment) | measure_digits(arguments.digits)).items():
        print(f"{value:7.2%}  {name}")


if __name__ == "__main__":
    main()
