"""Scenes of digits of which each lies in a quadrant of its own, so that "top left" means one digit.

placed = scatter(load_mnist("t10k"), np.array([2, 3]), np.random.default_rng(0))
placed.scenes.labels, placed.quadrants
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tools.training.digits import CANVAS
from tools.training.scenes import ABSENT, Digits, Scenes, Variation, choose, compose

QUADRANTS = ("top left", "top right", "bottom left", "bottom right")
TRAINING = Variation(scale=(0.75, 1.2), rotation=10, shear=0.1, stretch=0.2)
HALF = CANVAS // 2
PLACES = 3


class Placed(NamedTuple):
    """Scenes and the quadrant of each digit, int64 [scenes, places], an index of `QUADRANTS`.

    Places without a digit have a quadrant too, as nobody asks for it.
    """

    scenes: Scenes
    quadrants: np.ndarray


def scatter(digits: Digits, sizes: np.ndarray, rng: np.random.Generator, variation: Variation | None = None) -> Placed:
    """Scenes of sizes [scenes], each the number of digits, at most `PLACES` and all of different classes."""
    count, places = len(sizes), PLACES
    chosen = choose(digits.labels, count, places, rng)
    labels = digits.labels[chosen]
    labels[np.arange(places) >= sizes[:, None]] = ABSENT
    quadrants = rng.permuted(np.tile(np.arange(len(QUADRANTS)), (count, 1)), axis=1)[:, :places]
    alone = compose(digits.images[chosen].reshape(-1, 1, 28, 28), labels.reshape(-1, 1), rng, (HALF, HALF), variation)
    corners = np.stack([quadrants // 2, quadrants % 2], axis=-1) * HALF
    layers = np.zeros((count, places, 2, HALF, 2, HALF), np.uint8)
    scene, place = np.indices((count, places))
    layers[scene, place, quadrants // 2, :, quadrants % 2] = alone.images.reshape(count, places, HALF, HALF)
    layers = layers.reshape(count, places, CANVAS, CANVAS)
    boxes = alone.boxes.reshape(count, places, 4) + np.concatenate([corners, corners], axis=-1)
    boxes[labels == ABSENT] = 0
    return Placed(Scenes(layers.max(axis=1), layers > 0, boxes, labels), quadrants)
