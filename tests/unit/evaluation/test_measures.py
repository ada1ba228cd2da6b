"""Each measure on a case that was worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import whence
from whence.datasets import Item
from whence.evaluation.bootstrap import interval, paired_interval
from whence.evaluation.case import Case
from whence.evaluation.measure import create, list_measures
from whence.tracing.coverage import Coverage

SCORES = [0.5, -2.0, 1.0, 0.0]  # order: 2, 0, 3, 1; by magnitude, smallest first: 3, 0, 2, 1


def explanation(scores=SCORES, logits=(0.0, 0.0), grid=None, **fields):
    scores = torch.tensor([scores], dtype=torch.float64)
    given = {
        "method": "mine", "options": {}, "scores": scores, "special": torch.zeros_like(scores, dtype=torch.bool),
        "streams": {"image" if grid else "text": scores}, "logits": torch.tensor([logits], dtype=torch.float64),
        "value": torch.tensor([1.0]), "target": torch.tensor([0]), "prediction": torch.tensor([0]),
        "coverage": Coverage(), "grid": grid,
    }  # fmt: skip
    known = {f.name for f in dataclasses.fields(whence.Explanation)}
    return whence.Explanation(**{k: v for k, v in (given | fields).items() if k in known})


def case(scores=SCORES, logits=(0.0, 0.0), target=0, label=None, item=None, e=None, **fields):
    e = e or explanation(scores, logits)
    return Case(item or Item("1", "text"), e, np.array(scores), target, label, **fields)


def removed(name, c, **options):
    """Which features are removed at each step."""
    return [set(np.flatnonzero(row).tolist()) for row in create(name, options).plan(c)]


def logits_of(probabilities):
    """Logits of two classes, the first with these probabilities."""
    p = np.array(probabilities)
    return np.stack([np.log(p), np.log(1 - p)], -1)


def value(name, c, logits, **options):
    m = create(name, options)
    return float(m.finish(m.sample(c, np.asarray(logits, float))))


def test_every_measure_is_in_a_test_of_this_file():
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in list_measures() if f'"{name}"' not in text] == []


def test_activation():
    assert removed("auac", case(), steps=2) == [{0, 1, 2, 3}, {3, 1}, set()]
    assert removed("auac", case(), steps=3) == [{0, 1, 2, 3}, {3, 1}, {1}, set()]  # a third of four is two
    # trapezoids: (0.2 + 0.6) / 4 + (0.6 + 0.9) / 4
    assert value("auac", case(), logits_of([0.2, 0.6, 0.9]), steps=2) == pytest.approx(0.575)


def test_pruning():
    assert removed("au-mse", case(), steps=4) == [set(), {3}, {3, 0}, {3, 0, 2}, {0, 1, 2, 3}]
    moved = [[1, 2], [1, 4], [3, 2]]  # squared changes, summed: 0, 4, 4
    assert value("au-mse", case(logits=(1, 2)), moved, steps=2) == pytest.approx(3.0)


def test_perturbation():
    ten = case(scores=list(range(10)), label=1)
    assert removed("positive-perturbation", ten)[:2] == [{9}, {9, 8}]
    assert removed("negative-perturbation", ten)[8] == set(range(9))
    assert removed("positive-perturbation", case(label=1))[:4] == [set(), set(), {2}, {2}]  # rounded down
    right = [[0, 1]] * 5 + [[1, 0]] * 4  # right for five of nine steps
    assert value("positive-perturbation", ten, right) == pytest.approx(0.45)
    assert value("negative-perturbation", ten, [[0, 1]] * 9) == pytest.approx(0.8)


def test_regions():
    assert removed("morf", case(), steps=4) == [set(), {2}, {2, 0}, {2, 0, 3}, {0, 1, 2, 3}]
    assert removed("lerf", case(), steps=2) == [set(), {1, 3}, {0, 1, 2, 3}]
    assert value("morf", case(), [[4, 0], [2, 0], [0, 0]], steps=2) == pytest.approx(2.0)
    assert value("lerf", case(target=1), [[0, 4], [0, 3], [0, 2]], steps=2) == pytest.approx(3.0)
    both = [[4, 0], [1, 0], [0, 0], [4, 0], [3, 0], [0, 0]]  # most relevant first, then least relevant first
    assert value("abpc", case(), both, steps=2) == pytest.approx(1.0)
    other = [[0, a] for a, _ in both]  # the same of the other class, which is the true one
    assert value("srg", case(label=1), other, steps=2) == pytest.approx(1.0)
    assert value("abpc", case(), other, steps=2) == 0.0


def test_comprehensiveness_and_sufficiency():
    ten = case(scores=list(range(10)), logits=tuple(logits_of([0.9])[0]))
    assert removed("comprehensiveness", ten) == [{9}, {9}, {9}, {9, 8}, {9, 8, 7, 6, 5}]
    assert removed("sufficiency", ten)[4] == {0, 1, 2, 3, 4}
    assert value("comprehensiveness", ten, logits_of([0.8, 0.8, 0.8, 0.5, 0.1])) == pytest.approx(0.3)
    assert value("sufficiency", ten, logits_of([0.4, 0.4, 0.4, 0.9, 0.9])) == pytest.approx(0.3)


def test_deletion_and_insertion():
    assert removed("deletion", case(), steps=2) == [set(), {2, 0}, {0, 1, 2, 3}]
    assert removed("insertion", case(), steps=2) == [{0, 1, 2, 3}, {3, 1}, set()]
    assert value("deletion", case(), logits_of([0.9, 0.5, 0.1]), steps=2) == pytest.approx(0.5)
    assert value("insertion", case(), logits_of([0.1, 0.7, 0.9]), steps=2) == pytest.approx(0.6)


def test_saco():
    c = case(logits=tuple(logits_of([0.9])[0]))
    assert removed("saco", c, groups=2) == [{2, 0}, {3, 1}]
    assert value("saco", c, logits_of([0.2, 0.8]), groups=2) == 1.0
    assert value("saco", c, logits_of([0.8, 0.2]), groups=2) == -1.0
    # groups of salience 3, 1, 0; the first pair is in disorder, by 2 of 2 + 3 + 1
    three = case(scores=[3.0, 1.0, 0.0], logits=tuple(logits_of([0.9])[0]))
    assert value("saco", three, logits_of([0.5, 0.2, 0.8]), groups=3) == pytest.approx((3 + 1 - 2) / 6)
    assert value("saco", case(scores=[1.0, 1.0]), logits_of([0.5, 0.2]), groups=2) == 0.0


def picture(scores, truth):
    """A case whose heat map is given pixel by pixel."""
    truth = np.array(truth, np.int8)
    e = explanation(scores, grid=truth.shape, image_size=truth.shape)
    return case(scores, item=Item("1", "a.png", mask=lambda: truth), e=e)


def test_segmentation():
    c = picture([4.0, 3.0, 0.0, 0.0, 2.0, -3.0], [[1, 1, 1], [0, 0, -1]])  # mean 1: found are the first, second, fifth
    assert value("pixel-accuracy", c, []) == pytest.approx(3 / 5)
    # the object: 2 of {0, 1, 2, 4}; the background: 1 of {2, 3, 4}
    assert value("miou", c, []) == pytest.approx((2 / 4 + 1 / 3) / 2)
    # the five known pixels scaled to [0, 1], as scores of the object; 1 minus them, as scores of the background
    scores = np.array([1, 0.75, 0, 0, 0.5, 0, 0.25, 1, 1, 0.5])
    right = np.array([1, 1, 1, 0, 0, 0, 0, 0, 1, 1], bool)
    assert value("map", c, []) == pytest.approx(average_precision(right, scores))


def average_precision(right, scores):
    """By its definition: the precision at each threshold, weighted by what recall gains there."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = scores >= threshold
        recall = right[taken].sum() / right.sum()
        total += (recall - before) * right[taken].mean()
        before = recall
    return total


def test_localisation():
    c = picture([4.0, 3.0, -5.0, 1.0, 2.0, 9.0], [[1, 1, 1], [0, 0, -1]])
    assert value("relevance-mass", c, []) == pytest.approx(7 / 10)
    assert value("pointing-game", c, []) == 1.0
    assert value("pointing-game", picture([0.0, 1.0], [[1, 0]]), []) == 0.0
    assert value("relevance-mass", picture([-1.0, -2.0], [[1, 0]]), []) == 0.0


def reading(scores, rationale):
    """A case of the words a b c d, one token each; more text was not read."""
    text = "a b c d e f"
    from whence.results.input_origin import Span, TextOrigin

    spans = tuple(Span(i, i + 1, 0) for i in (0, 2, 4, 6))
    origin = TextOrigin((text,), tuple("abcd"), spans, (Span(7, 11, 0),), False)
    e = explanation(scores, origins=({"text": origin},))
    return case(scores, item=Item("1", text, rationale=rationale), e=e)


def test_rationales():
    c = reading([3.0, 1.0, 2.0, 0.0], ((0, 3), (8, 9)))  # a, b, and e, which was not read
    m = create("token-f1")
    assert m.sample(c, np.zeros((0, 0))) == pytest.approx([2 * 3 / (6 + 3)] * 8)  # every word is among the first ten
    long = reading([3.0, 1.0, 2.0, 0.0], ((4, 7),))  # c and d
    # of the first three words a, c, b: the stretch a b c overlaps c d by one of four words
    assert value("iou-f1", long, [], k=3) == 0.0
    assert value("iou-f1", long, [], k=4) == 1.0  # a b c d overlaps c d by half
    # ranked a, c, b, d: precision 1/2 at the first marked word, 2/4 at the second
    assert value("auprc", long, []) == pytest.approx(0.5)


def test_conservation():
    e = explanation([1.0, 2.0], value=torch.tensor([4.0]))
    assert value("conservation-error", case([1.0, 2.0], e=e), []) == pytest.approx(0.25)


def test_what_is_compared_by_rank():
    same, opposite = np.array(SCORES) * 3, -np.array(SCORES)
    assert value("class-sensitivity", case(runner_up=same), []) == pytest.approx(0.0)
    assert value("class-sensitivity", case(runner_up=opposite), []) == pytest.approx(2.0)
    assert value("randomisation", case(randomised=opposite), []) == pytest.approx(1.0)
    assert value("randomisation", case(randomised=np.zeros(4)), []) == 0.0
    # ranks 3 1 4 2 and 1 2 3 4: 1 - 6 * (4 + 1 + 1 + 4) / (4 * 15) = 0
    assert value("agreement", case(peers={"a": same, "b": np.arange(4.0)}), []) == pytest.approx(0.5)


def test_ties_are_broken_by_the_sample_and_not_by_position():
    flat = [case(scores=[0.0] * 20, item=Item(str(i), "")) for i in range(200)]
    first = [c.order(c.scores)[0] for c in flat]
    assert len(set(first)) == 20
    assert list(flat[3].order(flat[3].scores)) == list(flat[3].order(flat[3].scores))


def test_probabilities_are_those_of_the_task():
    logits = np.array([[0.0, math.log(3)]])
    assert case().probabilities(logits)[0, 1] == pytest.approx(0.75)
    assert case(e=explanation(task="multi-label")).probabilities(logits)[0, 1] == pytest.approx(0.75)
    assert case(e=explanation(task="multi-label")).probabilities(logits)[0, 0] == pytest.approx(0.5)
    assert case(e=explanation(task="regression")).probabilities(logits)[0, 1] == logits[0, 1]


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    held = 0
    for i in range(200):
        low, high = interval(rng.normal(2.0, 1.0, (60, 1)), lambda m: m[..., 0], 500, i)
        held += low < 2.0 < high
    assert 180 <= held <= 198


def test_a_paired_interval_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(0)
    a = rng.normal(0.0, 1.0, (100, 1))
    b = a - 0.1 + rng.normal(0.0, 0.05, (100, 1))
    low, high = paired_interval(a, b, lambda m: m[..., 0], 1000, 0)
    assert 0.08 < low < 0.1 < high < 0.12
    alone = [interval(x, lambda m: m[..., 0], 1000, 0) for x in (a, b)]
    assert alone[0][0] < alone[1][1]  # they overlap


def test_unknown_names_and_options_are_named():
    with pytest.raises(whence.MethodError, match=r"There is no measure 'auc'.*auac"):
        create("auc")
    with pytest.raises(whence.MethodError, match=r"has no option 'step'\. Its options: steps"):
        create("auac", {"step": 3})
