"""LRP and partial LRP: the numbers of the published baselines, and what the rule itself must hold."""

from __future__ import annotations

import pytest
import torch

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import golden, load_bert, load_vit

TARGETS = ["argmax", "other"]
VARIANTS = [f"{padding}_{target}" for padding in ("nopad", "pad") for target in TARGETS]


def explain_vit(case, method, **options):
    pixels = torch.from_numpy(case["pixel_values"]).double()
    return whence.explain(load_vit(), {"pixel_values": pixels}, method, int(case["target"]), **options)


def explain_bert(case, method, **options):
    inputs = {k: torch.from_numpy(case[k]) for k in ("input_ids", "attention_mask", "token_type_ids")}
    return whence.explain(load_bert(), inputs, method, int(case["target"]), **options)


@pytest.mark.parametrize("target", TARGETS)
def test_vit_baselines_are_the_published_ones(target):
    case = golden("01_cvpr21_vit", target)
    assert relative(explain_vit(case, "lrp", doubled=True, at="pixel").patches, case["orig_full"]) < EXACT
    assert relative(explain_vit(case, "partial-lrp", doubled=True).scores[0, 1:], case["orig_last_layer"]) < EXACT


@pytest.mark.parametrize("variant", VARIANTS)
def test_bert_baselines_are_the_published_ones(variant):
    """The published code sets the score of [CLS] to 0."""
    case = golden("02_cvpr21_bert", variant)
    full, partial = (explain_bert(case, method, doubled=True).scores[:, 1:] for method in ("lrp", "partial-lrp"))
    assert relative(full, case["orig_generate_full_lrp"][:, 1:]) < EXACT
    assert relative(partial, case["orig_generate_LRP_last_layer"][:, 1:]) < EXACT


@pytest.mark.parametrize("target", TARGETS)
def test_by_the_right_rule_relevance_is_neither_made_nor_lost(target):
    """Through all blocks of a ViT, whose only constants are biases, which take no part; doubled, it is not so."""
    case = golden("01_cvpr21_vit", target)
    e = explain_vit(case, "lrp")
    assert torch.allclose(e.ledger.sums, torch.ones_like(e.ledger.sums), atol=1e-5)
    assert float(e.scores.sum()) == pytest.approx(1, abs=1e-5)
    assert abs(float(explain_vit(case, "lrp", doubled=True).scores.sum())) > 100


def test_each_sample_for_itself():
    model, pixels = tiny.vit().double(), tiny.pixels(3).double()
    for method in ("lrp", "partial-lrp"):
        together = whence.explain(model, {"pixel_values": pixels}, method, 1)
        alone = whence.explain(model, {"pixel_values": pixels[1:2]}, method, 1)
        assert relative(together.scores[1:2], alone.scores) < EXACT
