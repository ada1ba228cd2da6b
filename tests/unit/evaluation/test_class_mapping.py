"""On trained models: methods that follow the class give two classes two explanations, the others the same."""

from __future__ import annotations

import pytest
import torch

import whence
from whence.models import MODELS

PICTURES = sorted((MODELS / "digits" / "examples").glob("*.png"))
QUICK = {
    "kernel-shap": {"samples": 60}, "lime": {"samples": 60}, "dave": {"samples": 2}, "bi-attention": {"steps": 3},
    "integrated-gradients": {"steps": 3}, "smooth-grad": {"samples": 3}, "occlusion": {"window": 9},
}  # fmt: skip
#: of length 1 in every direction; saliency is the size of a gradient, much the same for two opposite logits
LEAST = {"saliency": 1e-3}


@pytest.fixture(scope="module")
def digits():
    return whence.Explainer.from_pretrained(MODELS / "digits")


@pytest.fixture(scope="module")
def sentiment():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")


def apart(one, two):
    """How far apart two explanations point, over the user's own positions."""
    a, b = (torch.nn.functional.normalize(e.scores[0][~e.special[0]].double(), dim=0) for e in (one, two))
    return float((a - b).norm())


def check(method, pairs):
    if whence.list_methods()[method].class_specific:
        assert max(apart(*pair) for pair in pairs) > LEAST.get(method, 0.02)
    else:
        assert all(torch.equal(one.scores, two.scores) for one, two in pairs)


@pytest.mark.parametrize("method", sorted(whence.list_methods()))
def test_two_digits_in_a_picture(method, digits):
    """(The map of GradCAM, whose negative part is cut off, is empty for one of the pictures.)"""
    pairs = []
    for picture in PICTURES if method == "grad-cam" else PICTURES[:1]:
        classes = digits(picture).logits[0].topk(2).indices.tolist()
        pairs.append([digits(picture, method, target=c, **QUICK.get(method, {})) for c in classes])
    check(method, pairs)


@pytest.mark.parametrize("method", sorted(set(whence.list_methods()) - {"dave"}))
def test_two_opinions_of_a_sentence(method, sentiment):
    text = "The acting is superb, but the story goes nowhere."
    check(method, [[sentiment(text, method, target=c, **QUICK.get(method, {})) for c in ("negative", "positive")]])
