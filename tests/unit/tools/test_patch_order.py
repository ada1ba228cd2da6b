"""The order of patches: a check that finds transposed, flipped and shuffled patches, and passes those in order."""

from __future__ import annotations

import pytest
import torch

from tools.conformance import (
    families,  # noqa: F401  # adds them
    patch_order,
)
from tools.conformance.family import FAMILIES
from tools.conformance.patch_order import compare, misplaced

SIZE = 4
CELLS = [(i, j) for i in range(SIZE) for j in range(SIZE)]
WRONG = {
    "transposed": lambda t: t.mT,
    "rows flipped": lambda t: t.flip(1),
    "columns flipped": lambda t: t.flip(2),
    "moved by one": lambda t: t.roll(1, 2),
    "in windows of two": lambda t: t.reshape(-1, 2, 2, 2, 2).transpose(2, 3).reshape(-1, SIZE, SIZE),
}


def changes(width):
    """How patches change with each cell, less with the distance; none that is further away than a width."""
    places = torch.arange(SIZE, dtype=torch.float64)
    far = torch.stack([torch.maximum((places - i).abs()[:, None], (places - j).abs()[None]) for i, j in CELLS])
    return torch.where(far <= width, 4.0**-far, 0.0)


@pytest.mark.parametrize("width", [0, 1, SIZE])
def test_patches_in_order_pass(width):
    assert compare(CELLS, changes(width)) == ""


@pytest.mark.parametrize(("order", "width"), [
    *((order, width) for order in WRONG for width in (0, 1)),
    *((order, SIZE) for order in ("transposed", "rows flipped", "columns flipped")),  # told by the centre of changes
])  # fmt: skip
def test_patches_in_another_order_do_not(order, width):
    assert compare(CELLS, WRONG[order](changes(width)))


def test_an_unknown_reach_is_told():
    assert "2 away" in compare(CELLS, changes(2))


@pytest.mark.parametrize("name", ["ViT", "SegFormer", "DETR", "ViLT", "SmolVLM"])
def test_families_pass(name):
    assert misplaced(FAMILIES[name], FAMILIES[name].model()) == ""


@pytest.mark.parametrize("name", ["BERT", "VideoMAE", "Wav2Vec2"])
def test_families_without_patches_are_not_asked(name):
    assert misplaced(FAMILIES[name], FAMILIES[name].model()) is None


@pytest.mark.parametrize("name", ["ViT", "SegFormer", "DETR"])
def test_a_transposed_picture_is_found(name, monkeypatch):
    run = patch_order._run

    def transposed(*given):
        e = run(*given)
        e.streams["image"][:, e.patch_start :] = e.patches.mT.flatten(1)
        return e

    monkeypatch.setattr(patch_order, "_run", transposed)
    assert misplaced(FAMILIES[name], FAMILIES[name].model())
