"""Transformer attribution (Chefer, Gur, Wolf, CVPR 2021) against the published code: cases 01 (ViT) and 02 (BERT)."""

from dataclasses import replace

import pytest
import torch

import whence
from tests.support.checks import EXACT, array, relative
from tests.support.goldens import float32_tolerance, full_golden, golden, load_bert, load_vit
from tests.support.runs import traced
from whence.methods.registry import REGISTRY
from whence.methods.transformer_attribution import TransformerAttribution
from whence.propagation.rules.linear import z_box
from whence.propagation.rules.relevance import RelevanceRules
from whence.readout.map_walk import visit_relevance
from whence.runs.run import Carry
from whence.tracing.tensor_info import on_gradient

METHOD = "transformer-attribution"
VIT, BERT = "01_cvpr21_vit", "02_cvpr21_bert"
TARGETS = ("argmax", "other")
VARIANTS = ("nopad_argmax", "nopad_other", "pad_argmax", "pad_other")
BLOCKS = range(4)

# array of the published code -> options here
VIT_MAPS = {
    "ours_transformer_attribution_start0": {},
    "ours_transformer_attribution_start1": {"start_layer": 1},
    "ours_rollout_start0": {"gradient": False},
    "ours_rollout_start1": {"gradient": False, "start_layer": 1},
    "ours_last_layer": {"gradient": False, "block": -1},
    "ours_last_layer_ablation": {"block": -1},
    "ours_second_layer": {"gradient": False, "block": 1},
    "ours_second_layer_ablation": {"block": 1},
}
BERT_MAPS = {f"ours_generate_LRP_start{i}": {"normalise": True, "start_layer": i} for i in BLOCKS} | {
    "ours_generate_LRP_last_layer": {"gradient": False, "block": -1},
}


def pixels(z, dtype=torch.float64):
    return {"pixel_values": torch.tensor(z["pixel_values"]).to(dtype)}


def tokens(z):
    return {name: torch.tensor(z[name]) for name in ("input_ids", "attention_mask", "token_type_ids")}


def explain_vit(z, model=None, dtype=torch.float64, **options):
    model = model or load_vit(dtype=dtype)
    return whence.explain(model, pixels(z, dtype), METHOD, target=int(z["target"]), **options)


def explain_bert(z, model=None, **options):
    return whence.explain(model or load_bert(), tokens(z), METHOD, target=int(z["target"]), **options)


def vit_map(scores):
    """The published code drops [CLS]."""
    return array(scores)[0, 1:]


def bert_map(scores, name):
    """The published code overwrites [CLS]: with the smallest score of its row, or with 0 for the last layer alone."""
    scores = array(scores).copy()
    scores[:, 0] = 0 if name.endswith("last_layer") else scores.min(1)
    return scores


# -- final maps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIT_MAPS)
@pytest.mark.parametrize("target", TARGETS)
def test_vit_map_is_the_published_one(target, name):
    z = golden(VIT, target)
    e = explain_vit(z, **VIT_MAPS[name])
    assert relative(vit_map(e.scores), z[name].reshape(-1)) < EXACT
    assert relative(e.logits, z["logits"]) < EXACT
    assert e.target.tolist() == [int(z["target"])]
    assert e.prediction.tolist() == [int(z["target_argmax"])]


@pytest.mark.parametrize("name", VIT_MAPS)
@pytest.mark.parametrize("target", TARGETS)
def test_vit_float32_map_is_within_the_published_codes_own_noise(target, name):
    z = golden(VIT, target)
    e = explain_vit(z, dtype=torch.float32, **VIT_MAPS[name])
    assert relative(vit_map(e.scores), z[name].reshape(-1)) < float32_tolerance(VIT, target, name)


@pytest.mark.parametrize("target", TARGETS)
def test_vit_heatmap_is_the_published_one_after_their_scaling(target):
    z = golden(VIT, target)
    h = explain_vit(z, start_layer=1).heatmap()
    h = (h - h.min()) / (h.max() - h.min())
    assert relative(h[None], z["ours_transformer_attribution_start1_heatmap"]) < EXACT


@pytest.mark.parametrize("target", TARGETS)
def test_vit_with_eager_attention_differs_by_its_float32_softmax_only(target):
    """HuggingFace's eager ViT computes the softmax in float32 whatever the type of the model.

    Logits keep that precision; relevance is ill-conditioned (see tests/support/goldens.py) and amplifies the rounding.
    """
    name = "ours_transformer_attribution_start0"
    z = golden(VIT, target)
    e = explain_vit(z, load_vit("eager"))
    assert relative(e.logits, z["logits"]) < 1e-6
    assert relative(vit_map(e.scores), z[name].reshape(-1)) < float32_tolerance(VIT, target, name)


def test_vit_without_a_target_explains_the_prediction():
    z = golden(VIT, "argmax")
    e = whence.explain(load_vit(), pixels(z), METHOD)
    assert relative(vit_map(e.scores), z["ours_transformer_attribution_start0"][0]) < EXACT


@pytest.mark.parametrize("name", BERT_MAPS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bert_map_is_the_published_one(attention, variant, name):
    z = golden(BERT, variant)
    e = explain_bert(z, load_bert(attention), **BERT_MAPS[name])
    assert relative(e.scores[:, 1:], z[name][:, 1:]) < EXACT
    assert relative(bert_map(e.scores, name), z[name]) < EXACT
    assert (e.scores[torch.tensor(z["attention_mask"]) == 0] == 0).all()
    assert relative(e.logits, z["logits"]) < EXACT


@pytest.mark.parametrize("name", BERT_MAPS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_bert_float32_map_is_within_the_published_codes_own_noise(variant, name):
    z = golden(BERT, variant)
    e = explain_bert(z, load_bert(dtype=torch.float32), **BERT_MAPS[name])
    assert relative(bert_map(e.scores, name), z[name]) < float32_tolerance(BERT, variant, name)


def test_each_sample_of_a_batch_gets_the_map_it_has_alone():
    """In the published code the sums of eq. 7 run over the batch, so it explains one sample at a time."""
    cases = [golden(BERT, variant) for variant in VARIANTS]
    inputs = {name: torch.cat([tokens(z)[name] for z in cases]) for name in tokens(cases[0])}
    e = whence.explain(load_bert(), inputs, METHOD, target=[int(z["target"]) for z in cases], normalise=True)
    for i, z in enumerate(cases):
        name = "ours_generate_LRP_start0"
        assert relative(bert_map(e[i].scores, name), z[name]) < EXACT, VARIANTS[i]


@pytest.mark.parametrize("change", [{"eps": 1e-7}, {"normalise": True}, {"start_layer": 1}, {"gradient": False}])
def test_the_comparison_sees_a_changed_stabiliser_or_option(change):
    z = golden(VIT, "other")
    e = explain_vit(z, **change)
    assert relative(vit_map(e.scores), z["ours_transformer_attribution_start0"][0]) > 10 * EXACT


# -- relevance sums ------------------------------------------------------------------------------------------------


def sums(z, block):
    """Relevance entering the first block and leaving each, as the published code finds it."""
    return [float(z[f"ours__sum__{block}0__R_out"])] + [float(z[f"ours__sum__{block}{i}__R_in"]) for i in BLOCKS]


@pytest.mark.parametrize("target", TARGETS)
def test_vit_ledger_holds_the_published_relevance_sums(target):
    z = golden(VIT, target)
    e = explain_vit(z)
    assert relative(e.ledger.sums[0], sums(z, "block")) < EXACT
    assert e.ledger.total.tolist() == [1.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_bert_ledger_holds_the_published_relevance_sums(variant):
    z = golden(BERT, variant)
    e = explain_bert(z)
    assert relative(e.ledger.sums[0], sums(z, "layer")) < EXACT
    assert e.ledger.total.tolist() == [1.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_bert_relevance_entering_the_encoder_is_the_published_full_lrp(variant):
    z = golden(BERT, variant)
    e = explain_bert(z)
    assert relative(e.layers[:, 0, 1:], z["ours_generate_full_lrp"][:, 1:]) < EXACT  # they set [CLS] to 0


# -- inside the model: arrays of the shared directory --------------------------------------------------------------


def blocks_agree(z, block, run):
    found = {}
    visit_relevance(run, lambda i, _, *shown: found.update({i: shown}), [run.boundaries[0].tensor])
    for i, record in enumerate(run.trace.attentions):
        gradient, relevance = found[i]
        assert relative(record.map(), z[f"ours_{block}{i}_attn"]) < EXACT
        assert relative(gradient, z[f"ours_{block}{i}_attn_grad"]) < EXACT
        assert relative(relevance, z[f"ours_{block}{i}_attn_cam"]) < EXACT
    assert len(run.trace.attentions) == len(BLOCKS)


def boundaries_agree(z, block, run):
    """Relevance of what leaves block i is ``R_in`` there, of what enters it ``R_out``."""
    found = {}

    def passed(i):
        return lambda relevance: found.update({i: relevance.detach()})

    for i, boundary in enumerate(run.boundaries):
        on_gradient(boundary.tensor, passed(i))
    (found[0],) = run.backward([run.boundaries[0].tensor], carry=Carry.RELEVANCE)
    assert len(run.boundaries) == len(BLOCKS) + 1
    for i in BLOCKS:
        assert relative(found[i], z[f"ours__tensor__{block}{i}__R_out"]) < EXACT
        assert relative(found[i + 1], z[f"ours__tensor__{block}{i}__R_in"]) < EXACT


@pytest.mark.parametrize("target", TARGETS)
def test_vit_attention_gradient_and_relevance_of_every_block_are_the_published_ones(target):
    z = full_golden(VIT, target)
    blocks_agree(z, "block", traced(load_vit(), pixels(z), METHOD, int(z["target"]))[1])


@pytest.mark.parametrize("target", TARGETS)
def test_vit_relevance_at_every_block_boundary_is_the_published_one(target):
    z = full_golden(VIT, target)
    boundaries_agree(z, "block", traced(load_vit(), pixels(z), METHOD, int(z["target"]))[1])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bert_attention_gradient_and_relevance_of_every_block_are_the_published_ones(attention, variant):
    z = full_golden(BERT, variant)
    blocks_agree(z, "layer", traced(load_bert(attention), tokens(z), METHOD, int(z["target"]))[1])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bert_relevance_at_every_block_boundary_is_the_published_one(attention, variant):
    z = full_golden(BERT, variant)
    boundaries_agree(z, "layer", traced(load_bert(attention), tokens(z), METHOD, int(z["target"]))[1])


@pytest.mark.parametrize("target", TARGETS)
def test_vit_relevance_of_the_values_is_the_published_one(target):
    z = full_golden(VIT, target)
    _, run = traced(load_vit(), pixels(z), METHOD, int(z["target"]))
    found = run.backward([r.values for r in run.trace.attentions], carry=Carry.RELEVANCE)
    for i, relevance in enumerate(found):
        assert relative(relevance, z[f"ours_block{i}_v_cam"]) < EXACT


class FullLRP(TransformerAttribution):
    """The same rules down to the pixels, the first layer by z^B as in the published code."""

    def rulebook(self):
        book = super().rulebook()
        rules = RelevanceRules(book.phase, self.eps)

        def first_layer(op, R):
            return (z_box(op.apply, op.inputs[0].detach(), op.weight, R, eps=self.eps),)

        return replace(book, rules={**book.rules, "convolution": rules(first_layer)})


@pytest.mark.parametrize("target", TARGETS)
def test_vit_relevance_of_the_pixels_is_the_published_full_lrp(target, monkeypatch):
    monkeypatch.setitem(REGISTRY, "full", FullLRP)
    z = full_golden(VIT, target)
    _, run = traced(load_vit(), pixels(z), "full", int(z["target"]))
    (found,) = run.backward([run.source(embedded=False).tensor], carry=Carry.RELEVANCE)
    assert relative(found.sum(1), z["ours_full"]) < EXACT
    assert relative(found, z["ours__tensor__patch__R_out"]) < EXACT
    assert relative(found.sum(), z["ours__sum__patch__R_out"]) < EXACT
