"""Where the trained models are kept, and what is written beside their weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tools.training.digits import CANVAS, HELD_OUT
from tools.training.paths import PROJECT
from tools.training.scenes import Digits, load_mnist

BUILD = PROJECT / "build" / "models"
SEED = 0
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": CANVAS, "width": CANVAS},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def begin(name: str, doc: str) -> argparse.Namespace:
    """Read the command line, `output` and `speed`, and fix seeds and the one thread."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=BUILD / name)
    parser.add_argument("--speed", type=float, default=1.0, help="divides the number of steps, for a trial run")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    return parser.parse_args()


def training_digits() -> tuple[Digits, Digits]:
    """MNIST train without its last digits, and these, for a look during training."""
    images, labels = load_mnist("train")
    return Digits(images[:-HELD_OUT], labels[:-HELD_OUT]), Digits(images[-HELD_OUT:], labels[-HELD_OUT:])


def publish(
    output: Path,
    model: PreTrainedModel,
    results: dict[str, Any],
    card: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    pictures: bool = False,
    side: int = CANVAS,
) -> None:
    """Write weights, tokenizer, `accuracy.json` and the card; `results` has the accuracy on test and how it came.

    For models that take `pictures`, also the configuration of the stock image processor of `side` pixels that feeds
    them.
    """
    model.save_pretrained(output)
    if tokenizer is not None:
        tokenizer.save_pretrained(output)
    if pictures:
        settings = PROCESSOR | {"size": {"height": side, "width": side}}
        (output / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    results = results | {"seed": SEED, "parameters": sum(p.numel() for p in model.parameters())}
    written = json.dumps(results, indent=2)
    (output / "accuracy.json").write_text(f"{written}\n")
    (output / "README.md").write_text(
        f"{card.strip()}\n\nOn data that took no part in the training:\n\n{indent(written, '    ')}\n"
    )
