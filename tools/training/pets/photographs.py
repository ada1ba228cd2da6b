"""Photographs of Oxford-IIIT Pet with breeds and boxes, and which of them models are trained on.

photographs = load()
training, test = split_breeds(photographs)
training, test = split_photographs(photographs)
"""

from __future__ import annotations

import csv
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tools.training.paths import DATA

PETS = DATA / "pets_seg"
SIDE = 224
HELD_OUT = 5  # every fifth breed, or photograph of a breed, takes no part in training


class Photograph(NamedTuple):
    """A photograph of one pet.

    pixels: [3, 224, 224], from -1 to 1
    box: (left, top, right, bottom) of the pet, as shares of the image's sides
    """

    name: str
    breed: str
    imagenet: int
    pixels: Tensor
    box: tuple[float, float, float, float]


def load() -> list[Photograph]:
    """All photographs whose mask marks a pet (two mark none), sorted by breed and name."""
    with (PETS / "index.csv").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["breed"], row["name"]))
    read = [(row, _mask(row["name"])) for row in rows]
    return [_photograph(row, pet) for row, pet in read if pet.any()]


def _mask(name: str) -> np.ndarray:
    """Which pixels are of the pet; the boundary is part of it here."""
    with Image.open(PETS / "masks" / f"{name}.png") as file:
        return np.asarray(file) != 2


def _photograph(row: dict[str, str], pet: np.ndarray) -> Photograph:
    with Image.open(PETS / "images" / f"{row['name']}.jpg") as file:
        image = file.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    rows, columns = np.flatnonzero(pet.any(1)), np.flatnonzero(pet.any(0))
    height, width = pet.shape
    box = columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height
    pixels = torch.from_numpy(np.asarray(image, np.float32) / 127.5 - 1).permute(2, 0, 1)
    return Photograph(row["name"], row["breed"], int(row["imagenet_index"]), pixels, box)


def split_breeds(photographs: list[Photograph]) -> tuple[list[Photograph], list[Photograph]]:
    """Return the photographs of breeds to train on, and of breeds held out."""
    breeds = sorted({p.breed for p in photographs})
    held_out = set(breeds[::HELD_OUT])
    return [p for p in photographs if p.breed not in held_out], [p for p in photographs if p.breed in held_out]


def split_photographs(photographs: list[Photograph]) -> tuple[list[Photograph], list[Photograph]]:
    """Return photographs to train on, and others of all breeds held out."""
    return [p for i, p in enumerate(photographs) if i % HELD_OUT], photographs[::HELD_OUT]
