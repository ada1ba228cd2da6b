"""One explanation against random orders."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch

import whence
from whence.explanations.view_builder import cards
from whence.models import MODELS

TEXT = "A gripping and superb film, though it is far too long."
DIGIT = sorted((MODELS / "digits" / "examples").glob("*.png"))[0]


@functools.cache
def sentiment():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")


def test_the_curve_is_what_the_model_says_of_the_features_put_in():
    explainer = sentiment()
    e = explainer(TEXT)
    found = whence.trial(explainer, TEXT, e, steps=4, orders=3)
    given = explainer.read(TEXT).tensors
    own = (~e.special[0]).nonzero()[:, 0]
    order = own[e.scores[0][own].argsort(descending=True)]
    expected = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        ids = given["input_ids"].clone()
        removed = order[int(np.ceil(share * len(own))) :]
        ids[0, removed] = explainer.processor.unk_token_id
        with torch.no_grad():
            logits = explainer.model(**{**given, "input_ids": ids}).logits[0].double()
        expected.append(float(logits.softmax(-1)[int(e.target[0])]))
    np.testing.assert_allclose(found.curve, expected, rtol=1e-5)
    np.testing.assert_allclose(found.shares, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(found.area, np.trapezoid(expected, dx=0.25), rtol=1e-5)
    assert found.random.shape == (3, 5)
    np.testing.assert_allclose(found.random[:, [0, -1]], found.curve[None, [0, -1]].repeat(3, 0))  # none, and all


def test_random_orders_are_the_same_for_the_same_seed_and_differ_for_another():
    explainer, e = sentiment(), sentiment()(TEXT)
    first, again, other = (whence.trial(explainer, TEXT, e, orders=4, seed=seed).random for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_the_best_order_is_borne_out_and_its_reverse_is_not():
    explainer, e = sentiment(), sentiment()(TEXT, "occlusion")
    good = whence.trial(explainer, TEXT, e)
    bad = whence.trial(explainer, TEXT, dataclasses.replace(e, scores=-e.scores))
    assert good.beaten > bad.beaten
    assert good.area > bad.area
    assert str(good) == (
        "Faithfulness: inserting tokens in this order restores the prediction faster than 20 of 20 random orders "
        "(p = 0.048)."
    )
    assert "do not trust" in str(bad)
    assert (good.noun, good.random.shape[0]) == ("tokens", 20)


def test_pictures_are_tried_by_patches():
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    e = explainer(DIGIT)
    found = whence.trial(explainer, DIGIT, e, orders=5)
    assert found.noun == "patches"
    whole = torch.tensor(found.curve[-1])
    torch.testing.assert_close(whole, e.probabilities[0].double().max(), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_tried_is_a_sentence():
    explainer = sentiment()
    e = explainer(TEXT, target=lambda outputs: outputs.logits.sum(-1))
    with pytest.raises(whence.InputError, match="not of a class"):
        whence.trial(explainer, TEXT, e)
    with pytest.raises(whence.InputError, match="at least 1"):
        whence.trial(explainer, TEXT, explainer(TEXT), orders=0)


def test_a_layer_is_an_explanation_of_its_own():
    e = sentiment()(TEXT, inside=True)
    for i in (0, 2, -1):
        one = e.layer(i)
        torch.testing.assert_close(one.scores, e.layers[:, i])
        torch.testing.assert_close(one.streams["text"], e.layers[:, i])
        torch.testing.assert_close(one.pairs, e.pairs[:, [i]])
        assert one.options["layer"] == i % e.layers.shape[1]
        assert [w.text for w in one.words[0]] == [w.text for w in e.words[0]]
    with pytest.raises(whence.InputError, match="no layer 99"):
        e.layer(99)
    with pytest.raises(whence.InputError, match="no layer 'a'"):
        e.layer("a")
    with pytest.raises(whence.InputError, match="no sample 9"):
        e.table(sample=9)
    with pytest.raises(whence.WhenceError, match="does not say"):
        sentiment()(TEXT, "occlusion").layer(0)


def test_what_words_drew_on_is_the_sum_of_their_tokens_pairs():
    e = sentiment()("Unfathomably superb.", inside=True)
    (card,) = cards([e])
    panel = card.views[0].panels[0]
    places = [p.positions for p in panel.pieces if p.score is not None]
    assert any(len(p) > 1 for p in places)
    pairs = e.pairs[0].sum(0)
    for i, sources in enumerate(panel.sources):
        others = [j for j in range(len(places)) if j != i]
        amounts = {j: float(sum(pairs[a, b] for a in places[i] for b in places[j])) for j in others}
        strongest = sorted(amounts, key=lambda j: -abs(amounts[j]))[:5]
        assert [j for j, _ in sources] == [j for j in strongest if abs(amounts[j]) > 0.1 * abs(amounts[strongest[0]])]
        for j, amount in sources:
            assert amount == pytest.approx(amounts[j], rel=1e-4, abs=1e-6)
