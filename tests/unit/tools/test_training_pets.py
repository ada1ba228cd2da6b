"""How detectors of pets are trained and measured."""

import numpy as np
import pytest
import torch

from tools.training.pets.detector import average_precision, centred, overlap, varied
from tools.training.pets.photographs import Photograph, split_breeds, split_photographs


def photograph(name="a", breed="beagle", box=(0.25, 0.5, 0.75, 1.0)):
    """A black photograph whose pet is white."""
    pixels = -torch.ones(3, 224, 224)
    left, top, right, bottom = (round(224 * side) for side in box)
    pixels[:, top:bottom, left:right] = 1
    return Photograph(name, breed, 0, pixels, box)


@pytest.mark.parametrize("seed", range(8))
def test_the_box_moves_with_the_pixels_of_a_crop(seed):
    pixels, box = varied(photograph(), np.random.default_rng(seed))
    rows, columns = (np.flatnonzero((pixels[0] > 0).any(axis)) for axis in (1, 0))
    seen = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert box.tolist() == pytest.approx([side / 224 for side in seen], abs=1.5 / 224)


def test_overlap_is_intersection_over_union():
    a, b = torch.tensor([0.0, 0.0, 0.5, 0.5]), torch.tensor([0.25, 0.0, 0.75, 0.5])
    assert float(overlap(a, b)) == pytest.approx(1 / 3)
    assert centred(b).tolist() == [0.5, 0.25, 0.5, 0.5]


def test_average_precision_is_the_area_under_monotonous_precision():
    scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    hits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    # in order: hit (1/1), miss, hit (2/3), miss, hit (3/5), miss
    assert average_precision(scores, hits) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert average_precision(scores, torch.ones(3, 2)) == pytest.approx(1)  # a second box of the same pet is no hit


def test_a_breed_or_photograph_is_either_trained_on_or_held_out():
    photographs = [photograph(f"{breed}{i}", breed) for breed in "abcdefghij" for i in range(10)]
    for split in (split_breeds, split_photographs):
        training, test = split(photographs)
        assert len(training) == 80
        assert not {p.name for p in training} & {p.name for p in test}
    training, test = split_breeds(photographs)
    assert not {p.breed for p in training} & {p.breed for p in test}
