"""A real ViT on real photographs: heat lies on the animal, in the picture's own shape, and follows the class."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from PIL import Image

import whence
from tests.support.goldens import shared

METHODS = ["transformer-attribution", "generic-attention", "conservative-lrp"]


@pytest.fixture(scope="module")
def explainer():
    return whence.Explainer.from_pretrained(shared("weights", "vit_tiny_patch16_224_hf"))


@pytest.fixture(scope="module")
def photographs():
    """Every 25th of 300: picture, mask of the animal, class."""
    folder = shared("data", "pets_seg")
    rows = list(csv.DictReader((folder / "index.csv").open()))[::25]
    return [
        (
            Image.open(folder / "images" / f"{row['name']}.jpg"),
            np.asarray(Image.open(folder / "masks" / f"{row['name']}.png")) == 1,
            int(row["imagenet_index"]),
        )
        for row in rows
    ]


def share_inside(heat, mask):
    """The share of positive heat that lies on the animal, beside the share of the picture that the animal covers."""
    heat = heat.clamp(min=0).numpy()
    return (heat * mask).sum() / heat.sum(), mask.mean()


@pytest.mark.parametrize("method", METHODS)
def test_heat_lies_on_the_animal_in_a_picture_of_any_shape(explainer, photographs, method):
    found = []
    for picture, mask, target in photographs:
        wide = picture.resize((400, 230))
        e = explainer(wide, method, target)
        assert e.heatmap().shape == (1, 230, 400)
        stretched = np.asarray(Image.fromarray(mask).resize((400, 230)))
        found.append(share_inside(e.heatmap()[0], stretched))
    inside, covered = np.mean(found, 0)
    assert len(found) == 12
    assert inside > covered + 0.1


@pytest.mark.parametrize("method", METHODS)
def test_two_animals_in_one_picture_are_told_apart(explainer, photographs, method):
    """Two photographs side by side: asked for the animal on the left, more heat lies on the left than if asked for the
    one on the right."""
    for (left, _, one), (right, _, two) in zip(photographs[:4], photographs[6:10], strict=True):
        both = Image.new("RGB", (left.width + right.width, left.height))
        both.paste(left, (0, 0))
        both.paste(right, (left.width, 0))
        first, second = (explainer(both, method, target).heatmap()[0].clamp(min=0) for target in (one, two))
        assert first.shape == (both.height, both.width)
        on_the_left = [float(heat[:, : left.width].sum() / heat.sum()) for heat in (first, second)]
        assert on_the_left[0] > on_the_left[1]
