"""Generic attention explainability (Chefer, Gur, Wolf, ICCV 2021) against the published code: cases 03a and 03b."""

import pytest
import torch

import whence
from tests.support.checks import EXACT, relative
from tests.support.goldens import float32_tolerance, full_golden, golden, load_bert, load_vit
from tests.support.runs import looked_at, traced
from whence.readout.rollup import all_rows, roll_up

METHOD = "generic-attention"
VIT, BERT = "03a_gae_vit", "03b_gae_bert"
TARGETS = ("argmax", "other")
PADDING = ("nopad", "pad")
BLOCKS = range(4)


def pixels(z, dtype=torch.float64):
    return {"pixel_values": torch.tensor(z["pixel_values"]).to(dtype)}


def tokens(z):
    return {name: torch.tensor(z[name]) for name in ("input_ids", "attention_mask")}


# -- final maps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
# HuggingFace's eager ViT computes the softmax in float32 whatever the type of the model
@pytest.mark.parametrize(("attention", "tolerance"), [("sdpa", EXACT), ("eager", 1e-6)])
def test_vit_map_is_the_published_one(attention, tolerance, target):
    z = golden(VIT)
    e = whence.explain(load_vit(attention), pixels(z), METHOD, target=int(z[f"target_{target}"]))
    assert relative(e.scores[0, 1:], z[f"gae_relevance_{target}"]) < tolerance
    assert relative(e.logits, z["logits"]) < tolerance


@pytest.mark.parametrize("target", TARGETS)
def test_vit_float32_map_is_within_the_published_codes_own_noise(target):
    z, name = golden(VIT), f"gae_relevance_{target}"
    e = whence.explain(load_vit(dtype=torch.float32), pixels(z, torch.float32), METHOD, int(z[f"target_{target}"]))
    assert relative(e.scores[0, 1:], z[name]) < float32_tolerance(VIT, "", name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bert_map_is_the_published_one(attention, padding, target):
    z = golden(BERT, padding)
    e = whence.explain(load_bert(attention), tokens(z), METHOD, target=int(z[f"target_{target}"]))
    assert relative(e.scores[:, 1:], z[f"gae_cls_row_clszeroed_{target}"][:, 1:]) < EXACT  # they set [CLS] to 0
    assert relative(e.logits, z["logits"]) < EXACT
    assert (e.scores[torch.tensor(z["attention_mask"]) == 0] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("padding", PADDING)
def test_bert_float32_map_is_within_the_published_codes_own_noise(padding, target):
    z, name = golden(BERT, padding), f"gae_cls_row_clszeroed_{target}"
    e = whence.explain(load_bert(dtype=torch.float32), tokens(z), METHOD, target=int(z[f"target_{target}"]))
    assert relative(e.scores[:, 1:], z[name][:, 1:]) < float32_tolerance(BERT, padding, name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("padding", PADDING)
def test_bert_transformer_attribution_of_the_same_code_does_not_divide_by_row_sums(padding, target):
    """The CVPR code for BERT does (case 02); the ICCV code and the paper's equations do not."""
    z = golden(BERT, padding)
    e = whence.explain(load_bert(), tokens(z), "transformer-attribution", target=int(z[f"target_{target}"]))
    assert relative(e.scores[:, 1:], z[f"transformer_att_cls_row_clszeroed_{target}"][:, 1:]) < EXACT


@pytest.mark.parametrize("change", [{"start_layer": 1}, {"normalise": True}, {"rows": "all"}])
def test_the_comparison_sees_a_changed_option(change):
    z = golden(VIT)
    e = whence.explain(load_vit(), pixels(z), METHOD, target=int(z["target_argmax"]), **change)
    assert relative(e.scores[0, 1:], z["gae_relevance_argmax"]) > 1e-3


# -- inside the model: arrays of the shared directory --------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_vit_attention_and_gradient_of_every_block_are_the_published_ones(target):
    z = full_golden(VIT)
    _, run = traced(load_vit(), pixels(z), METHOD, int(z[f"target_{target}"]))
    found = looked_at(run)
    for i in BLOCKS:
        assert relative(found[i][0], z[f"block{i}_attn"]) < EXACT
        assert relative(found[i][1], z[f"block{i}_attn_grad_{target}"]) < EXACT


@pytest.mark.parametrize("target", TARGETS)
def test_vit_map_and_relevance_after_every_block_are_the_published_ones(target):
    z = full_golden(VIT)
    method, run = traced(load_vit(), pixels(z), METHOD, int(z[f"target_{target}"]))
    maps, _ = method.maps(run)
    assert len(maps) == len(BLOCKS)
    for i in BLOCKS:
        assert relative(maps[i][0], z[f"block{i}_cam_{target}"]) < EXACT
        R = roll_up(maps[: i + 1], all_rows(maps[0]))
        assert relative(R[0], z[f"R_after_block{i}_{target}"]) < EXACT


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bert_map_of_every_block_and_full_relevance_are_the_published_ones(attention, padding, target):
    z = full_golden(BERT, padding)
    method, run = traced(load_bert(attention), tokens(z), METHOD, int(z[f"target_{target}"]))
    maps, _ = method.maps(run)
    for i in BLOCKS:
        assert relative(maps[i][0], z[f"layer{i}_cam_{target}"]) < EXACT
    assert relative(roll_up(maps, all_rows(maps[0]))[0], z[f"gae_R_full_{target}"]) < EXACT
