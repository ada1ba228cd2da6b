"""Targets as they are given: numbers of any kind, a contrast at a position, and sentences for what is no target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whence
from tests.support import tiny
from tests.support.processors import bert, wordpiece

REPEATING = ["integrated-gradients", "smooth-grad", "occlusion", "bi-attention"]  # methods that run the model again
INPUTS = {"input_ids": tiny.ids(2, 7)}


@pytest.mark.parametrize("method", REPEATING)
def test_a_contrast_at_a_position_is_of_that_position(method):
    model, asked = tiny.gpt2().double(), whence.At(2, whence.contrast(5, 6))
    e = whence.explain(model, INPUTS, method, target=asked)
    by_hand = whence.explain(model, INPUTS, method, target=lambda o: o.logits[:, 2, 5] - o.logits[:, 2, 6])
    assert torch.equal(e.value, by_hand.value)
    assert (e.scores - by_hand.scores).abs().max() < 1e-9 * by_hand.scores.abs().max()
    assert e.scores[:, 3:].abs().max() < 1e-9 * e.scores.abs().max()


@pytest.mark.parametrize(
    "target",
    [np.int64(1), torch.tensor(1), [1, 1], (1, np.int64(1)), np.array([1, 1]), torch.tensor([1, 1]), range(1, 2)],
)
def test_a_class_is_a_number_of_any_kind(target):
    model = tiny.bert()
    inputs = {"input_ids": INPUTS["input_ids"][:1]} if isinstance(target, range) else INPUTS
    assert whence.explain(model, inputs, target=target) == whence.explain(model, inputs, target=1)


@pytest.mark.parametrize("position", [np.int64(2), torch.tensor(2), [2, 2], np.array([2, 2]), torch.tensor([2, -5])])
def test_a_position_is_a_number_of_any_kind(position):
    model = tiny.gpt2()
    asked, plain = (whence.explain(model, INPUTS, target=whence.At(at, 1)) for at in (position, 2))
    assert asked == plain


def test_samples_that_are_explained_one_by_one_take_numbers_of_any_kind():
    """Experts gather tokens of all samples, so that each sample is explained alone."""
    model, plain = tiny.mixtral(), [0, 2]
    asked = [whence.explain(model, INPUTS, target=t) for t in (plain, np.array(plain), torch.tensor(plain))]
    assert asked[0] == asked[1] == asked[2]
    assert whence.explain(model, INPUTS, target=np.int64(1)) == whence.explain(model, INPUTS, target=1)


def test_a_text_takes_numbers_of_any_kind():
    tokenizer = wordpiece()
    explainer, texts = whence.Explainer(bert(tokenizer), tokenizer), ["a good film", "a bad film"]
    assert explainer(texts[0], target=np.int64(1)).target_names == ("so-so",)
    for given in (np.array([0, 2]), torch.tensor([0, 2]), np.array(["bad", "good"])):
        assert [e.target_names for e in explainer(texts, target=given)] == [("bad",), ("good",)]
    asked = whence.contrast(np.int64(1), torch.tensor(0))
    assert explainer(texts[0], target=asked).target_names == ("so-so rather than bad",)


def one(outputs):
    return outputs.logits[:, 0]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (1.5, r"float \(1.5\)"),
        (True, "bool"),
        ({"a": 1}, "dict"),
        (np.array([[0, 1]]), "list"),
        (torch.tensor([0.5, 1.0]), "float"),
        ([one, one], "function"),
        (whence.every([whence.every([0]), 1]), "list all targets in one"),
        (whence.contrast(one, 1), "two classes, tokens or labels, not a function"),
        (whence.contrast(whence.contrast(0, 1), 2), "a target of its own"),
    ],
)
def test_what_is_no_target_is_told_in_a_sentence(target, told):
    with pytest.raises(whence.TargetError, match=told):
        whence.explain(tiny.bert(), INPUTS, target=target)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (whence.At("a", 1), "is a word, and these inputs are tensors"),
        (whence.At(1.0, 1), "position is a whole number"),
        (whence.At([0, "a"], 1), "position is a whole number"),
        (whence.At(2, one), "At a position there is a class.*not a function"),
        (whence.At(2, whence.At(1, 1)), "a target of its own"),
    ],
)
def test_what_is_no_target_at_a_position_is_told_in_a_sentence(target, told):
    with pytest.raises(whence.TargetError, match=told):
        whence.explain(tiny.gpt2(), INPUTS, target=target)


@pytest.mark.parametrize("targets", [5, "tabby", None])
def test_several_targets_are_a_list(targets):
    with pytest.raises(whence.TargetError, match="takes a list of targets"):
        whence.every(targets)
