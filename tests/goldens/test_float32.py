"""Every golden case in float32, against the published float64 numbers.

What the other golden files hold in float64 to 1e-9 is held here to 1e-4, or to ten times the published code's own
float32 noise where that is more (see tests/support/goldens.py). ELSEWHERE names cases that other files have.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import whence
from tests.support.checks import relative
from tests.support.goldens import GOLDEN, arrays, float32_tolerance, golden, load, load_attention_only_bert
from tests.support.runs import traced
from whence.methods.attention_flow import flows
from whence.methods.dave import contribution, input_image, robust_mean, smooth_map
from whence.readout.rollup import all_rows, positive_mean, roll_up

SINGLE = torch.float32
FLOAT32 = 1e-4
VIT, BERT = "ViTForImageClassification", "BertForSequenceClassification"
ELSEWHERE = {"00_cvpr21_rules": "rules", "03a_gae_vit": "iccv", "10_legrad_clip": "blocks"}
TWO = ("argmax", "other")
VARIANTS = [f"{padding}_{target}" for padding in ("nopad", "pad") for target in TWO]


def allowed(case, variant, name):
    return max(FLOAT32, float32_tolerance(case, variant, name))


def single(values):
    """Floats in float32, all else as it is."""
    found = torch.from_numpy(np.array(values))
    return found.float() if found.is_floating_point() else found


def explain(architecture, case, inputs, method, target, implementation="sdpa", **options):
    e = whence.explain(load(architecture, case, implementation, SINGLE), inputs, method, target, **options)
    assert e.scores.dtype == SINGLE
    return e


def test_every_case_is_here_or_there():
    """A folder of goldens that no test reads in float32 has no place to hide."""
    here = Path(__file__).read_text().partition("ELSEWHERE")[2]
    folders = {p.name for p in GOLDEN.iterdir() if p.is_dir() and list(p.glob("*.npz"))}
    assert {f for f in folders if f'"{f}"' not in here} == set()
    for folder, file in ELSEWHERE.items():
        text = (Path(__file__).parent / f"test_{file}.py").read_text()
        assert folder in text
        assert "float32" in text


# -- attention, roll-ups, LRP --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TWO)
@pytest.mark.parametrize(
    ("method", "name", "options"),
    [
        ("rollout", "attn_rollout_start0", {"start_layer": 0}), ("rollout", "attn_rollout_start1", {"start_layer": 1}),
        ("attention", "ours_last_layer_attn", {}), ("partial-lrp", "orig_last_layer", {"doubled": True}),
    ],
)  # fmt: skip
def test_vit(method, name, options, target):
    case = golden("01_cvpr21_vit", target)
    inputs = {"pixel_values": single(case["pixel_values"])}
    e = explain(VIT, "01_cvpr21_vit", inputs, method, int(case["target"]), **options)
    assert relative(e.scores[0, 1:], case[name].ravel()) < allowed("01_cvpr21_vit", target, name)


@pytest.mark.parametrize("target", TWO)
def test_lrp_and_grad_cam_of_vit(target):
    case = golden("01_cvpr21_vit", target)
    inputs, wanted = {"pixel_values": single(case["pixel_values"])}, int(case["target"])
    e = explain(VIT, "01_cvpr21_vit", inputs, "lrp", wanted, doubled=True, at="pixel")
    assert relative(e.patches, case["orig_full"]) < allowed("01_cvpr21_vit", target, "orig_full")
    found = explain(VIT, "01_cvpr21_vit", inputs, "grad-cam", wanted).patches[0]
    stretched = (found - found.min()) / (found.max() - found.min())
    assert relative(stretched, case["gradcam_attn"]) < FLOAT32


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("method", "name", "options"),
    [
        ("attention", "ours_generate_attn_last_layer", {}), ("rollout", "ours_generate_rollout_start0", {}),
        ("lrp", "orig_generate_full_lrp", {"doubled": True}),
        ("partial-lrp", "orig_generate_LRP_last_layer", {"doubled": True}),
    ],
)  # fmt: skip
def test_bert(method, name, options, variant):
    case = golden("02_cvpr21_bert", variant)
    inputs = {k: torch.from_numpy(case[k]) for k in ("input_ids", "attention_mask", "token_type_ids")}
    e = explain(BERT, "02_cvpr21_bert", inputs, method, int(case["target"]), **options)
    assert relative(e.scores[:, 1:], case[name][:, 1:]) < allowed("02_cvpr21_bert", variant, name)


@pytest.mark.parametrize("target", TWO)
@pytest.mark.parametrize("padding", ["nopad", "pad"])
def test_transformer_attribution_of_the_second_code(padding, target):
    case, name = golden("03b_gae_bert", padding), f"transformer_att_cls_row_clszeroed_{target}"
    inputs = {k: torch.from_numpy(case[k]) for k in ("input_ids", "attention_mask")}
    wanted = int(case[f"target_{target}"])
    e = explain(BERT, "02_cvpr21_bert", inputs, "transformer-attribution", wanted, normalise=False)
    assert relative(e.scores[:, 1:], case[name][:, 1:]) < allowed("03b_gae_bert", padding, name)


@pytest.mark.parametrize("target", TWO)
def test_lxmert(target):
    case = golden("03c_gae_lxmert", target)
    names = ("input_ids", "attention_mask", "visual_feats", "visual_pos", "token_type_ids")
    inputs, wanted = {k: single(case[k]) for k in names}, int(case["target"])
    for name, how in [("norm", "normalised"), ("nonorm", "plain"), ("norm_noself10", "bare")]:
        e = explain(
            "LxmertForQuestionAnswering", "03c_gae_lxmert", inputs, "generic-attention", wanted, "eager",
            co_attention=how,
        )  # fmt: skip
        assert relative(e.scores[0, 1:], case[f"ours_nolrp_{name}__R_t_t"][0, 1:]) < FLOAT32
        assert relative(e.streams["image"][0], case[f"ours_nolrp_{name}__R_t_i"][0]) < FLOAT32


@pytest.mark.parametrize("query", [0, 3, 6])
@pytest.mark.parametrize(
    ("folder", "name", "how"),
    [
        ("03d_gae_detr", "ours_nolrp_norm", "normalised"), ("03d_gae_detr", "ours_nolrp_nonorm", "plain"),
        ("03d_gae_detr", "ours_nolrp_norm_noself10", "bare"), ("03d2_gae_detr_zerorow", "ours_nolrp_nonorm", "plain"),
    ],
)  # fmt: skip
def test_detr(folder, name, how, query):
    case = golden(folder)
    wanted, inputs = int(case[f"q{query}_target_class"]), {"pixel_values": single(case["pixel_values"])}
    target = lambda o: o.logits[:, query, wanted]  # noqa: E731  # of one query
    e = explain("DetrForObjectDetection", folder, inputs, "generic-attention", target, "eager", co_attention=how)
    key = f"q{query}_{name}"
    assert relative(e.scores[0], case[key].ravel()) < allowed(folder, "", key)


@pytest.mark.parametrize("start", [0, 1])
def test_update_rules(start):
    z = {name: single(value) for name, value in golden("03f_gae_rules").items()}
    assert relative(positive_mean(z["A"] * z["G"])[0], z["avg_heads"]) < FLOAT32
    eye = all_rows(z["cam_tt"][None])
    after = roll_up([z["R_tt"][None] - eye, z["cam_tt"][None]], eye)[0]
    assert relative(after - z["R_tt"], z["self_R_tt_add"]) < FLOAT32
    mats = [m[None] for m in z["rollout_mats"]][start:]
    assert relative(roll_up(mats, all_rows(mats[0]), normalise=True)[0], z[f"rollout_start{start}"]) < FLOAT32


@pytest.mark.parametrize("c", range(3))
def test_other_methods_of_ali(c):
    """Their relevance is in test_golden_icml.py."""
    case = golden("04_icml22_ali", "nopad")
    inputs = {"input_ids": torch.from_numpy(case["input_ids"])}
    for method, name, options in [
        ("attention", "attn_last", {}), ("rollout", "rollout_2", {}), ("rollout", "rollout_nores_2", {"residual": 0}),
        ("attention-flow", "attention_flow_2", {"normalise": True}),
        ("generic-attention", f"cl{c}_GAE_sst", {"normalise": True}),
    ]:  # fmt: skip
        options = {k: bool(v) for k, v in options.items()}
        e = explain(BERT, "04_icml22_ali", inputs, method, c, rows="all", **options)
        assert relative(e.scores[0, 1:], case[name][1:]) < FLOAT32


@pytest.mark.parametrize("kind", ["dense_res", "causal_nores", "padded_res"])
def test_flows(kind):
    case = golden("06_attention_flow")
    found = np.stack([flows(case[f"{kind}_mats"].astype(np.float32), row) for row in range(6)])
    assert relative(found, case[f"{kind}_flow_mats_unnormalised"][-1]) < FLOAT32


# -- AttnLRP and what came of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["nopad", "pad"])
@pytest.mark.parametrize(("target", "name"), [("target", "relevance"), ("target2", "relevance_target2")])
def test_attn_lrp_of_bert(padding, target, name):
    case = golden("05_attnlrp_bert", "attnlrp")
    inputs = {k: torch.from_numpy(case[f"{padding}_{k}"]) for k in ("input_ids", "attention_mask")}
    e = explain(BERT, "02_cvpr21_bert", inputs, "attn-lrp", int(case[f"{padding}_{target}"]), at="token")
    assert relative(e.scores[0], case[f"{padding}_{name}"]) < FLOAT32


@pytest.mark.parametrize(("method", "variant"), [("attn-lrp", "attnlrp"), ("conservative-lrp", "cplrp")])
@pytest.mark.parametrize(
    ("architecture", "folder"), [("GPT2LMHeadModel", "05_attnlrp_gpt2"), ("LlamaForCausalLM", "05_attnlrp_llama")]
)
def test_decoders(architecture, folder, method, variant):
    case = golden(folder, variant)
    inputs = {"input_ids": torch.from_numpy(case["nopad_input_ids"])}
    for target, name in [("target", "relevance"), ("target2", "relevance_target2")]:
        e = explain(architecture, folder, inputs, method, int(case[f"nopad_{target}"]), at="token")
        assert relative(e.scores[0], case[f"nopad_{name}"]) < FLOAT32


@pytest.mark.parametrize(("conv", "linear"), [(0.25, 0.05), (0, 0.05), (0.25, 0), (100, 1)])
def test_gamma_composite(conv, linear):
    case, folder = golden("15_attnlrp_vit_gamma"), "15_attnlrp_vit_gamma"
    options = {"at": "pixel", "gamma": linear, "conv_gamma": conv}
    for name, attention in [("img0_cp", "constant"), ("REIMPL_img0_attnlrp", "split")]:
        inputs = single(case["pixel_values"][:1])
        e = explain(VIT, folder, inputs, "attn-lrp", int(case["img0_target"]), attention=attention, **options)
        assert relative(e.heatmap()[0], case[f"{name}_conv{conv}_lin{linear}"]) < FLOAT32


@pytest.mark.parametrize("gamma", [0, 0.25, 1, 10])
@pytest.mark.parametrize(("attention", "name"), [("split", "attnlrp"), ("constant", "cp")])
def test_res_lrp(gamma, attention, name):
    case = golden("16_reslrp_vit")
    targets = [int(case[f"img{i}_argmax_target"]) for i in range(2)]
    options = {"gamma": gamma, "attention": attention}
    e = explain(VIT, "16_reslrp_vit", single(case["pixel_values"]), "res-lrp", targets, **options)
    for i in range(2):
        assert relative(e.scores[i], case[f"img{i}_argmax_{name}_g{gamma}_token_emb"]) < FLOAT32


@pytest.mark.parametrize(("attention", "name"), [("split", "attnlrp"), ("constant", "cp")])
def test_rotary_positions(attention, name):
    """The published code's stabilisers alone are 3e-4 (test_golden_palrp.py)."""
    case = golden("14_palrp_llama")
    inputs, wanted = {"input_ids": torch.from_numpy(case["input_ids"])}, int(case["argmax_target"])
    options = {"at": "token", "attention": attention}
    e = explain("LlamaForCausalLM", "14_palrp_llama", inputs, "pa-lrp", wanted, **options)
    assert relative(e.scores[0], case[f"{name}_argmax_pe_total"]) < 3e-4


def test_learned_positions():
    case = golden("13_palrp_vit")
    pixels, wanted = (single(case["pixel_uint8"]).float() / 255 - 0.5) / 0.5, int(case["argmax_target"])
    options = {"attention": "halved", "gamma": 0.05, "conv_gamma": 100}
    e = explain(VIT, "13_palrp_vit", pixels, "pa-lrp", wanted, **options)
    assert relative(e.scores[0] / float(e.logits[0, wanted]), case["split_argmax_tokens_total"]) < FLOAT32


# -- the others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "name"), [("gradient", "NG"), ("libra", "LX1"), ("attn-lrp", "LX-GA-D2"), ("ali-lrp", "LX-NA")]
)
@pytest.mark.parametrize(
    ("readout", "array"),
    [
        ("input-x-gradient", "IxG"), ("full-grad", "FullGrad"), ("full-grad-plus", "FullGradPlus"),
        ("hires-cam", "HiResCAM_lastblock"), ("att-cat", "AttCAT_sum"),
    ],
)  # fmt: skip
def test_libragrad(rules, name, readout, array):
    case = golden("12_libragrad_vit")
    inputs, targets = {"pixel_values": single(case["pixel_values"])}, case[f"S0_{name}_target"].tolist()
    e = explain(VIT, "12_libragrad_vit", inputs, "libragrad", targets, rules=rules, readout=readout)
    assert relative(e.scores, case[f"S0_{name}_{array}"]) < FLOAT32


def test_dave():
    case = {name: single(value) for name, value in golden("19_dave_vit_parts").items()}
    model, inputs = load(VIT, "19_dave_vit_parts", dtype=SINGLE), {"pixel_values": case["pixel_values"]}
    _, run = traced(model, inputs, "dave", case["targets"].tolist())
    nothing = torch.zeros(1)
    assert (
        relative(contribution(run, input_image(run), None, 0.0, nothing), case["effective_gradient_x_input"]) < FLOAT32
    )
    noisy = zip(case["noise_schedule_5"].tolist(), case["noise"], strict=True)
    maps = torch.stack([contribution(run, input_image(run), None, level, noise) for level, noise in noisy])
    assert relative(maps, case["noise_maps"]) < FLOAT32
    assert relative(smooth_map(robust_mean(maps).sum(1)), case["post_processed"][:, 0]) < FLOAT32


@pytest.mark.parametrize("variant", ["head", "token"])
@pytest.mark.parametrize("start", [1, 2, 4])
def test_bi_attention(variant, start):
    case = golden("20_biattn_vit")
    names = [f"img{i}_argmax" for i in range(2)]
    classes = [int(case[f"{name}_target"]) for name in names]
    options = {"variant": variant, "start_layer": start - 1}
    inputs = {"pixel_values": single(case["pixel_values"])}
    e = explain(VIT, "20_biattn_vit", inputs, "bi-attention", classes, **options)
    for scores, name in zip(e.scores, names, strict=True):
        assert relative(scores[1:], case[f"{name}_{variant}_start{start}"]) < FLOAT32


def test_what_is_explained_before_words_are_taken_away():
    """The attributions that the published curves start from; the curves themselves are counts and float64 sums."""
    case = arrays(GOLDEN / "07_perturbation" / "ali_flip_float64.npz")
    ids = torch.from_numpy(case["nopad_input_ids"])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name, method in [("AH_LN", "conservative-lrp"), ("GI", "gradient-x-input")]:
        e = whence.explain(load_attention_only_bert(dtype=SINGLE), inputs, method, 1)
        assert relative(e.scores[0], case[f"nopad_cl1_{name}__attribution"]) < FLOAT32
