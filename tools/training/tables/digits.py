"""Models of single digits: a small Vision Transformer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from .learner import without_mlp
from .recipes import Recipe

SIDE, PATCH = 28, 4
SHIFT = 2  # pixels that a digit may be moved in training


class Digits:
    """A ViT of width 64 with 4 heads over 49 patches, from nothing."""

    def __init__(self, recipe: Recipe, labels: Sequence[str]) -> None:
        config = ViTConfig(
            hidden_size=64,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            intermediate_size=1 if recipe.kind == "attention" else 128,
            image_size=SIDE,
            patch_size=PATCH,
            id2label=dict(enumerate(labels)),
            label2id={name: i for i, name in enumerate(labels)},
        )
        self.model = ViTForImageClassification(config)
        if recipe.kind == "attention":
            without_mlp(self.model)
        self.card = CARDS[recipe.kind].format(layers=recipe.layers)

    def encode(self, raw: np.ndarray) -> np.ndarray:
        """The picture, uint8 [28, 28]."""
        return raw

    def batch(self, encoded: Sequence[np.ndarray], rng: random.Random | None) -> dict[str, Tensor]:
        """Pixels from -1 to 1 [batch, 3, 28, 28], as the image processor makes them; in training moved a little."""
        pixels = np.stack(encoded)
        if rng:
            padded = np.pad(pixels, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
            places = [(rng.randint(0, 2 * SHIFT), rng.randint(0, 2 * SHIFT)) for _ in encoded]
            pixels = np.stack([p[y : y + SIDE, x : x + SIDE] for p, (y, x) in zip(padded, places, strict=True)])
        values = torch.from_numpy(pixels).float()[:, None] / 127.5 - 1
        return {"pixel_values": values.expand(-1, 3, -1, -1)}

    def save(self, directory: Path) -> None:
        """Write the model and the image processor."""
        self.model.save_pretrained(directory)
        processor = ViTImageProcessor(size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
        processor.save_pretrained(directory)


CARDS = {
    "attention": (
        "`ViTForImageClassification` of {layers} blocks of attention alone, width 64, 4 heads, patches of 4 by 4, "
        "trained from nothing, after Ali et al. (ICML 2022). The stock class norms before the attention and has no "
        "pooler: a block is `x + attention(norm(x))`, the class is read from [CLS] after a last norm. The output "
        "weights of every MLP are zero and were frozen (the MLP has one unit, so that it costs nothing)."
    ),
    "standard": (
        "`ViTForImageClassification` of {layers} layers with MLP blocks, width 64, 4 heads, patches of 4 by 4, trained "
        "from nothing."
    ),
}
