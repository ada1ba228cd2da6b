"""Scenes of handwritten digits on a black canvas, with the exact pixels and box of every digit.

    digits = load_mnist("t10k")
    scenes = draw(digits, 10, np.random.default_rng(0))
    scenes.images, scenes.masks, scenes.boxes, scenes.labels

The digits of a scene are of different classes, and their boxes never overlap.
"""

from __future__ import annotations

import gzip
import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from tools.training.paths import DATA

ABSENT = -1
TILE = 48  # side of a square that holds a digit after any sensible warp
TRIES = 64  # placements drawn per scene; the first without overlap counts


class Digits(NamedTuple):
    """Single MNIST digits: images uint8 [digits, 28, 28] and labels int64 [digits]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes.

    images: uint8 [scenes, height, width]
    masks: bool [scenes, places, height, width], the pixels that each digit inks; their union is `images > 0`
    boxes: int64 [scenes, places, 4], (top, left, bottom, right) of each mask, bottom and right exclusive
    labels: int64 [scenes, places], the classes; `ABSENT` where a place is empty (mask and box are then empty too)
    """

    images: np.ndarray
    masks: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray

    def present(self) -> np.ndarray:
        """Which classes each scene contains, bool [scenes, 10]."""
        return (self.labels[:, :, None] == np.arange(10)).any(axis=1)


@dataclass(frozen=True)
class Variation:
    """How digits vary: every value is drawn uniformly for every digit.

    scale: smallest and largest size, as a factor of the 28-pixel original
    rotation: largest angle in degrees, either way
    shear: largest horizontal shear, either way
    stretch: largest logarithm of the width-to-height ratio, either way
    """

    scale: tuple[float, float] = (0.8, 1.2)
    rotation: float = 0.0
    shear: float = 0.0
    stretch: float = 0.0


def load_mnist(split: Literal["train", "t10k"]) -> Digits:
    """The whole split of MNIST from the shared data directory."""
    with gzip.open(DATA / "mnist" / f"{split}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(DATA / "mnist" / f"{split}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return Digits(images, labels)


def draw(
    digits: Digits,
    count: int,
    rng: np.random.Generator,
    canvas: tuple[int, int] = (64, 64),
    variation: Variation | None = None,
    sizes: tuple[float, ...] = (0.0, 0.0, 1.0),
) -> Scenes:
    """`count` random scenes; `sizes[k]` is the probability of a scene of k digits, `canvas` is (height, width)."""
    places = len(sizes) - 1
    chosen = choose(digits.labels, count, places, rng)
    labels = digits.labels[chosen]
    labels[np.arange(places) >= rng.choice(places + 1, size=(count, 1), p=sizes)] = ABSENT
    return compose(digits.images[chosen], labels, rng, canvas, variation)


def choose(labels: np.ndarray, count: int, places: int, rng: np.random.Generator) -> np.ndarray:
    """Indices [count, places] into labels [digits] such that the classes within a row differ."""
    chosen = rng.integers(len(labels), size=(count, places))
    while True:
        classes = np.sort(labels[chosen], axis=1)
        repeated = (classes[:, 1:] == classes[:, :-1]).any(axis=1)
        if not repeated.any():
            return chosen
        chosen[repeated] = rng.integers(len(labels), size=(repeated.sum(), places))


def compose(
    images: np.ndarray,
    labels: np.ndarray,
    rng: np.random.Generator,
    canvas: tuple[int, int] = (64, 64),
    variation: Variation | None = None,
) -> Scenes:
    """Place digits, images uint8 [scenes, places, 28, 28] and labels [scenes, places], at random on black canvases."""
    count, places = labels.shape
    tiles = warp(images.reshape(-1, 28, 28), variation or Variation(), rng).reshape(count, places, TILE, TILE)
    tiles[labels == ABSENT] = 0
    extents = _extents(tiles)
    corners = _place(extents[..., 2:] - extents[..., :2], canvas, rng)
    boxes = np.concatenate([corners, corners + extents[..., 2:] - extents[..., :2]], axis=-1)
    layers = np.zeros((count, places, *canvas), np.uint8)
    for scene, place in np.argwhere(labels != ABSENT):
        top, left, bottom, right = boxes[scene, place]
        y0, x0, y1, x1 = extents[scene, place]
        layers[scene, place, top:bottom, left:right] = tiles[scene, place, y0:y1, x0:x1]
    boxes[labels == ABSENT] = 0
    return Scenes(layers.max(axis=1), layers > 0, boxes, labels)


def warp(images: np.ndarray, variation: Variation, rng: np.random.Generator) -> np.ndarray:
    """Scale, stretch, shear and rotate digits uint8 [digits, 28, 28]; the result is [digits, TILE, TILE]."""
    count = len(images)
    size = rng.uniform(*variation.scale, count)
    ratio = np.exp(rng.uniform(-variation.stretch, variation.stretch, count) / 2)
    angle = np.radians(rng.uniform(-variation.rotation, variation.rotation, count))
    shear = rng.uniform(-variation.shear, variation.shear, count)
    inverse = np.zeros((count, 2, 3), np.float32)  # from tile to digit coordinates, both in [-1, 1]
    inverse[:, 0, 0] = (np.cos(angle) + shear * np.sin(angle)) / (size * ratio)
    inverse[:, 0, 1] = (shear * np.cos(angle) - np.sin(angle)) / (size * ratio)
    inverse[:, 1, 0] = np.sin(angle) * ratio / size
    inverse[:, 1, 1] = np.cos(angle) * ratio / size
    inverse *= TILE / images.shape[-1]
    grid = functional.affine_grid(torch.from_numpy(inverse), [count, 1, TILE, TILE], align_corners=False)
    pixels = torch.from_numpy(images).float()[:, None]
    return functional.grid_sample(pixels, grid, align_corners=False)[:, 0].round().to(torch.uint8).numpy()


def _extents(tiles: np.ndarray) -> np.ndarray:
    """The tight boxes [..., 4] (top, left, bottom, right) of the ink in tiles [..., height, width]."""
    rows, columns = tiles.any(axis=-1), tiles.any(axis=-2)
    first = [rows.argmax(axis=-1), columns.argmax(axis=-1)]
    last = [side.shape[-1] - side[..., ::-1].argmax(axis=-1) for side in (rows, columns)]
    return np.stack(first + last, axis=-1) * tiles.any(axis=(-2, -1))[..., None]


def _place(extents: np.ndarray, canvas: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Top-left corners [scenes, places, 2] at which boxes of extents [scenes, places, 2] lie apart on the canvas."""
    room = np.array(canvas) - extents + 1
    if (room < 1).any():
        raise ValueError(f"A digit of {extents.max(axis=(0, 1))} pixels does not fit on a canvas of {canvas}.")
    count, places, _ = extents.shape
    corners = (rng.random((TRIES, count, places, 2)) * room).astype(np.int64)
    apart = np.ones((TRIES, count), bool)
    for a, b in itertools.combinations(range(places), 2):
        before = corners[:, :, a] + extents[:, a] <= corners[:, :, b]
        after = corners[:, :, b] + extents[:, b] <= corners[:, :, a]
        apart &= (before | after).any(axis=-1)
    if not apart.any(axis=0).all():
        raise ValueError(f"{places} digits find no room on a canvas of {canvas} without overlap.")
    return corners[apart.argmax(axis=0), np.arange(count)]
