"""The scenes of Table D, where the right explanation is known: what they are made of and what is said of them."""

import numpy as np
import pytest
import torch

from tools.training import scenes
from tools.training.relations import captions, objects, quadrants


@pytest.fixture
def placed():
    """Twenty scenes of three made-up digits: squares as bright as their class."""
    labels = np.repeat(np.arange(10), 3)
    images = np.zeros((30, 28, 28), np.uint8)
    images[:, 6:22, 6:22] = (labels[:, None, None] + 1) * 20
    return quadrants.scatter(scenes.Digits(images, labels), np.full(20, 3), np.random.default_rng(0))


def test_each_digit_lies_in_its_own_quadrant(placed):
    half = quadrants.HALF
    for masks, labels, at in zip(placed.scenes.masks, placed.scenes.labels, placed.quadrants, strict=True):
        assert len(set(labels)) == len(set(at)) == 3
        for mask, quadrant in zip(masks, at, strict=True):
            rows, columns = np.nonzero(mask)
            assert set(rows // half) == {quadrant // 2}
            assert set(columns // half) == {quadrant % 2}


def test_a_scene_of_fewer_digits_says_which_are_absent():
    digits = scenes.Digits(np.full((20, 28, 28), 200, np.uint8), np.repeat(np.arange(10), 2))
    found = quadrants.scatter(digits, np.array([1, 2, 3]), np.random.default_rng(1)).scenes
    assert [(row != scenes.ABSENT).sum() for row in found.labels] == [1, 2, 3]
    assert not found.masks[0, 1:].any()
    assert not found.boxes[0, 1:].any()


def test_captions_are_true_of_what_is_there(placed):
    truth = captions.true(placed)
    for scene, (labels, at) in enumerate(zip(placed.scenes.labels, placed.quadrants, strict=True)):
        for caption, true in zip(captions.CAPTIONS, truth[scene], strict=True):
            sides = {int(label): quadrant % 2 for label, quadrant in zip(labels, at, strict=True)}
            there = caption.first in sides and caption.second in sides
            assert true == (there and (not caption.sided or (sides[caption.first], sides[caption.second]) == (0, 1)))


def test_rivals_are_false_and_differ_in_one_digit(placed):
    truth, rng = captions.true(placed), np.random.default_rng(2)
    for row in truth:
        chosen = int(np.flatnonzero(row)[0])
        one = captions.CAPTIONS[chosen]
        for other in captions.rivals(chosen, row, 9, rng):
            caption = captions.CAPTIONS[other]
            assert not row[other]
            assert caption.sided == one.sided
            assert (caption.first == one.first) + (caption.second == one.second) == 1


def test_the_overlap_of_boxes():
    side = objects.CANVAS
    box = np.array([0, 0, side // 2, side // 2])  # the top left quarter
    model = torch.tensor([[0.25, 0.25, 0.5, 0.5], [0.5, 0.25, 0.5, 0.5], [0.9, 0.9, 0.1, 0.1]])
    assert objects.overlap(model, box).tolist() == pytest.approx([1.0, 1 / 3, 0.0])


def test_a_digit_is_found_by_the_query_of_its_class_with_the_best_box(placed):
    some = placed.scenes
    told = objects.targets(some)

    class Outputs:
        logits = torch.zeros(20, 4, 11)
        pred_boxes = torch.rand(20, 4, 4) * 0.01

    for scene, one in enumerate(told):
        Outputs.pred_boxes[scene, :3] = one["boxes"]
        Outputs.logits[scene, torch.arange(3), one["class_labels"]] = 5.0
    Outputs.logits[:, 3, 10] = 5.0
    assert (objects.queries(Outputs, some) == np.arange(3)).all()
    Outputs.logits[0, 1] = 0.0  # one is taken for another
    Outputs.logits[0, 1, 10] = 5.0
    assert objects.queries(Outputs, some)[0].tolist() == [0, objects.MISSED, 2]
