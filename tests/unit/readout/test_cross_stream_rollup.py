"""Attention between streams: co-attention (LXMERT), an encoder and learned queries (DETR), two towers (CLIP)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import CLIPConfig, CLIPModel

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import full_golden, golden, load, shared
from tests.support.runs import traced
from whence.methods.generic_attention import GenericAttention, normalised_relevance
from whence.readout.cross_stream_rollup import accumulate, explained_scores, roll_up_states
from whence.readout.rollup import all_rows, roll_up
from whence.tracing.axes import Axis

LXMERT, DETR, ZERO_ROW, RULES = "03c_gae_lxmert", "03d_gae_detr", "03d2_gae_detr_zerorow", "03f_gae_rules"
METHOD = "generic-attention"
VARIANTS = {"ours_nolrp_norm": "normalised", "ours_nolrp_nonorm": "plain", "ours_nolrp_norm_noself10": "bare"}
OF_THE_MODEL = 4e-7  # HuggingFace's DETR has positions in float32: its logits are off by 5e-8, gradients by more


def lxmert(target):
    case, model = golden(LXMERT, target), load("LxmertForQuestionAnswering", LXMERT, "eager")
    names = ("input_ids", "attention_mask", "visual_feats", "visual_pos", "token_type_ids")
    inputs = {k: torch.from_numpy(case[k]) for k in names}
    return case, model, {k: v.double() if k.startswith("visual") else v for k, v in inputs.items()}


@pytest.mark.parametrize("target", ["argmax", "other"])
@pytest.mark.parametrize("name", VARIANTS)
def test_lxmert_is_the_published_one(target, name):
    """The published code sets the first entry of R_tt to 0."""
    case, model, inputs = lxmert(target)
    e = whence.explain(model, inputs, METHOD, int(case["target"]), co_attention=VARIANTS[name])
    assert list(e.streams) == ["text", "image"]
    assert relative(e.scores[0, 1:], case[f"{name}__R_t_t"][0, 1:]) < EXACT
    assert relative(e.streams["image"][0], case[f"{name}__R_t_i"][0]) < EXACT


@pytest.mark.parametrize("target", ["argmax", "other"])
def test_every_matrix_of_lxmert(target):
    case, model, inputs = lxmert(target)
    chosen, run = traced_maps(model, inputs, int(case["target"]))
    last = {w.rows: w.state for w in roll_up_states(run, chosen, GenericAttention().update)}
    text, image = sorted(last, key=lambda dim: dim[0].size)
    for rows, columns, name in [(text, image, "t_i"), (image, image, "i_i"), (image, text, "i_t")]:
        assert relative(last[rows][columns][0], case[f"ours_nolrp_norm__R_{name}"]) < EXACT
    found = last[text][text][0].clone()
    found[0, 0] = 0
    assert relative(found, case["ours_nolrp_norm__R_t_t"]) < EXACT


def traced_maps(model, inputs, target):
    method, run = traced(model, inputs, METHOD, target)
    return method.maps(run)[0], run


@pytest.mark.parametrize("target", ["argmax", "other"])
def test_baselines_of_lxmert(target):
    case, model, inputs = lxmert(target)
    for method, name, options in [
        ("attention", "raw_attn", {}), ("grad-cam", "attn_gradcam", {"weights": "map"}),
    ]:  # fmt: skip
        e = whence.explain(model, inputs, method, int(case["target"]), **options)
        assert np.allclose(e.scores[0, 1:], case[f"{name}__R_t_t"][0, 1:], atol=1e-12)  # one of the maps is all zeros
        assert relative(e.streams["image"][0], case[f"{name}__R_t_i"][0]) < EXACT


@pytest.mark.parametrize("target", ["argmax", "other"])
def test_relevance_in_place_of_attention(target):
    """The default of the published code. It knows no padding mask, whose addition has a stabiliser of its own."""
    case, model, inputs = lxmert(target)
    del inputs["attention_mask"]
    e = whence.explain(model, inputs, "transformer-attribution", int(case["target"]))
    assert relative(e.scores[0, 1:], case["ours_lrp_norm__R_t_t"][0, 1:]) < 2e-9
    assert relative(e.streams["image"][0], case["ours_lrp_norm__R_t_i"][0]) < 2e-9


def detr(case, query, method=METHOD, klass=None, implementation="eager", **options):
    arrays, model = golden(case), load("DetrForObjectDetection", case, implementation)
    wanted = int(arrays[f"q{query}_target_class"]) if klass is None else klass
    pixels = torch.from_numpy(arrays["pixel_values"]).double()
    e = whence.explain(model, {"pixel_values": pixels}, method, lambda o: o.logits[:, query, wanted], **options)
    return arrays, e


@pytest.mark.parametrize("query", range(7))
def test_detr_is_the_published_one(query):
    for name, how in VARIANTS.items():
        case, e = detr(DETR, query, co_attention=how)
        assert list(e.streams) == ["image", "queries"]
        assert e.patches.shape == (1, 6, 8)
        assert relative(e.scores[0], case[f"q{query}_{name}"].ravel()) < OF_THE_MODEL
    case, e = detr(DETR, query, klass=1)
    dropped = case[f"q{query}_ours_nolrp_norm_cls1__nan_rows_per_decoder_layer"].any()
    assert (relative(e.scores[0], case[f"q{query}_ours_nolrp_norm_cls1"].ravel()) > 1e-5) == dropped
    assert dropped or relative(e.scores[0], case[f"q{query}_ours_nolrp_norm_cls1"].ravel()) < OF_THE_MODEL
    for method, name, options in [
        ("attention", "raw_attn", {}), ("grad-cam", "attn_gradcam", {"weights": "map"}),
    ]:  # fmt: skip
        case, e = detr(DETR, query, method, **options)
        assert relative(e.scores[0], case[f"q{query}_{name}"].ravel()) < 1e-6


def test_the_rules_of_detr_are_exact_on_its_own_maps():
    """With the reference's attention and gradients in place of ours, which differ by the model's float32 positions."""
    case = full_golden(DETR)
    arrays, model = golden(DETR), load("DetrForObjectDetection", DETR, "eager")
    inputs = {"pixel_values": torch.from_numpy(arrays["pixel_values"]).double()}
    _, run = traced_maps(model, inputs, lambda o: o.logits[:, 0, int(arrays["q0_target_class"])])
    names = [f"enc{i}" for i in range(3)] + [f"dec{i}_{kind}" for i in range(6) for kind in ("self", "cross")]
    maps = [
        torch.from_numpy(case[f"q0_{n}_attn"] * case[f"q0_{n}_attn_grad"]).clamp(min=0).mean(0)[None] for n in names
    ]
    last = roll_up_states(run, maps, GenericAttention().update)[-1]
    image = next(dim for dim in last.state if dim != last.rows)
    assert relative(last.state[image][0, 0], case["q0_ours_nolrp_norm"].ravel()) < EXACT
    assert relative(last.state[last.rows][0], case["q0_ours_nolrp_norm__R_q_q"]) < EXACT


@pytest.mark.parametrize("query", range(7))
def test_a_row_of_zeros_is_no_reason_to_drop_a_layer(query):
    """Where the published code has NaN it drops the layer's addition; without eq. 8 and 9 there is no such row."""
    case, e = detr(ZERO_ROW, query)
    assert case[f"q{query}_ours_nolrp_norm__nan_rows_per_decoder_layer"].any()
    assert torch.isfinite(e.scores).all()
    assert relative(e.scores[0], case[f"q{query}_ours_nolrp_norm"].ravel()) > 1e-5
    case, e = detr(ZERO_ROW, query, co_attention="plain")
    assert relative(e.scores[0], case[f"q{query}_ours_nolrp_nonorm"].ravel()) < OF_THE_MODEL


def test_the_update_rules_alone():
    case = {k: torch.from_numpy(v)[None] for k, v in golden(RULES).items()}
    text, image = tiny_dims(5), tiny_dims(7)
    mine = {text: case["R_tt"], image: case["R_ti"]}
    read = {image: case["R_ii"], text: case["R_it"]}
    assert relative(normalised_relevance(case["R_tt"]), case["handle_residual_R_tt"]) < EXACT
    for how, name in [("normalised", "norm1_self1"), ("plain", "norm0_self1"), ("bare", "norm1_self0")]:
        new = GenericAttention(co_attention=how).update(mine, read, case["cam_ti"], text, image)
        assert relative(new[image] - mine[image], case[f"lxmert_mm_{name}_R_ti_add"]) < EXACT
        assert relative(new[image] - mine[image], case[f"detr_mm_{name}_R_ti_add"]) < EXACT
        assert relative(new[text] - mine[text], case[f"lxmert_mm_{name}_R_tt_add"]) < EXACT
    new = GenericAttention().update(mine, mine, case["cam_tt"], text, text)
    assert relative(new[text] - mine[text], case["self_R_tt_add"]) < EXACT
    assert relative(new[image] - mine[image], case["self_R_ti_add"]) < EXACT
    zero = normalised_relevance(case["zero_row_R_tt"])[0]
    assert torch.isfinite(zero).all()
    row = int((case["zero_row_R_tt"][0] == torch.eye(5)).all(1).nonzero()[0, 0])
    assert torch.equal(zero[row], torch.eye(5, dtype=zero.dtype)[row])


def tiny_dims(size):
    return (Axis(size),)


@pytest.mark.parametrize("text", range(3))
@pytest.mark.parametrize("start", [-1, 0, 1])
def test_clip_is_the_published_one(text, start):
    case = full_golden("03e_gae_clip")
    model = CLIPModel.from_pretrained(shared("golden", "03e_gae_clip", "hf"), dtype=torch.float64).eval()
    ids = torch.from_numpy(case["input_ids"][text : text + 1])
    inputs = {"pixel_values": torch.from_numpy(case["pixel_values"]).double(), "input_ids": ids}
    e = whence.explain(model, inputs, METHOD, lambda o: o.logits_per_image[:, 0], start_layer=start)
    end = int(ids.argmax())
    assert relative(e.streams["image"][0, 1:], case[f"image_relevance_start{start}"][text]) < EXACT
    assert relative(e.streams["text"][0], case[f"text_relevance_start{start}"][text, end]) < EXACT


class Pair(nn.Module):
    """torch's own encoder and decoder."""

    def __init__(self, layers: int = 2, mean: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean = mean
        self.embed, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)
        self.inner = nn.Transformer(8, 2, layers, layers, 16, batch_first=True)

    def forward(self, source, target):
        out = self.inner(self.embed(source), self.embed(target))
        return self.head(out.mean(1) if self.mean else out[:, 0])


ROLLED_UP = [METHOD, "rollout", "transformer-attribution", "attention", "grad-cam"]


@pytest.mark.parametrize("method", ROLLED_UP)
def test_streams_of_equal_length_are_told_apart(method):
    model, source, target = Pair().double().eval(), tiny.ids(), tiny.ids(seed=1)
    e = whence.explain(model, {"source": source, "target": target}, method, 1)
    assert len(e.streams) == 2
    assert not torch.allclose(*e.streams.values()) or method == "grad-cam"  # whose map may be all zeros
    alone = whence.explain(model, {"source": source[1:2], "target": target[1:2]}, method, 1)
    assert list(e.streams) == ["encoder", "decoder"]
    for name in e.streams:
        assert torch.allclose(e.streams[name][1:2], alone.streams[name], atol=1e-12)


@pytest.mark.parametrize("mean", [False, True])
def test_rollout_of_two_streams_is_a_distribution(mean):
    """Every row of every matrix is an average, so the mean of the rows that are read sums to 1 over all streams."""
    inputs = {"source": tiny.ids(), "target": tiny.ids(2, 4)[:1].expand(3, -1)}
    e = whence.explain(Pair(mean=mean).eval(), inputs, "rollout", 1)
    assert torch.allclose(sum(s.sum(1) for s in e.streams.values()), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("method", ["attention-flow", "token-tm", "bi-attention", "legrad", "partial-lrp"])
def test_methods_for_one_stream_say_so(method):
    with pytest.raises(whence.ModelError, match="different sets of tokens"):
        whence.explain(Pair().eval(), {"source": tiny.ids(), "target": tiny.ids(seed=1)}, method)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (METHOD, {"co_attention": "some"}, "co_attention"),
        ("attention", {"layer": 0}, "layer"),
        ("transformer-attribution", {"block": -1}, "block"),
        (METHOD, {"start_layer": 9}, "Layer 9"),
    ],
)
def test_options_that_make_no_sense(method, options, said):
    with pytest.raises(whence.MethodError, match=said):
        whence.explain(Pair().eval(), {"source": tiny.ids(), "target": tiny.ids(seed=1)}, method, **options)


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "res-lrp", "gradient-x-input"])
@pytest.mark.parametrize("at", ["position", "token"])
def test_the_books_of_several_streams_are_of_the_whole(method, at):
    """What enters all streams, and what was absorbed on the way, make up the target."""
    inputs = {"source": tiny.ids(), "target": tiny.ids(seed=1)}
    e = whence.explain(Pair().double().eval(), inputs, method, 1, at=at)
    assert e.ledger.sums.shape == (3, 1)
    assert float(e.ledger.imbalance.abs().max()) < 1e-9
    if at == "position":
        assert relative(sum(s.sum(1) for s in e.streams.values()), e.ledger.sums[:, 0]) < EXACT
    assert "into all streams" in repr(e.ledger)


@pytest.mark.parametrize("target", ["argmax", "other"])
def test_all_rows_are_those_of_the_streams_that_the_target_reads(target):
    """LXMERT's answer reads the text in the end, and the picture only through it."""
    case, model, inputs = lxmert(target)
    e = whence.explain(model, inputs, METHOD, int(case["target"]), rows="all")
    assert relative(e.scores[0, 1:], case["ours_nolrp_norm__R_t_t"].sum(0)[1:]) < EXACT
    assert relative(e.streams["image"][0], case["ours_nolrp_norm__R_t_i"].sum(0)) < EXACT


@pytest.mark.parametrize("token", [1, 3])
def test_the_row_of_a_word_is_the_published_one(token):
    case, model, inputs = lxmert("argmax")
    e = whence.explain(model, inputs, METHOD, int(case["target"]), token=token)
    assert relative(e.scores[0], case["ours_nolrp_norm__R_t_t"][token]) < EXACT
    assert relative(e.streams["image"][0], case["ours_nolrp_norm__R_t_i"][token]) < EXACT


def test_the_rows_of_all_words_add_up_to_all_rows():
    model, inputs = tiny.bert().double(), {"input_ids": tiny.ids(2)}
    each = [whence.explain(model, inputs, METHOD, 1, token=i).scores for i in range(7)]
    whole = whence.explain(model, inputs, METHOD, 1, rows="all").scores
    assert relative(sum(each), whole) < EXACT
    assert relative(each[0], whence.explain(model, inputs, METHOD, 1).scores) < EXACT  # [CLS], which is read


@pytest.mark.parametrize("token", [-1, 7])
def test_a_token_that_is_not_there(token):
    with pytest.raises(whence.MethodError, match=f"no token {token}"):
        whence.explain(tiny.bert(), {"input_ids": tiny.ids(2)}, METHOD, 1, token=token)
    with pytest.raises(whence.MethodError, match="give one of the two"):
        whence.explain(tiny.bert(), {"input_ids": tiny.ids(2)}, METHOD, 1, token=1, rows="all")


def test_the_books_leave_out_what_happened_before_the_first_block():
    """CLIP adds positions to its text after the blocks of the picture: read at the words, this is still before."""
    tower = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**tower, "vocab_size": 60, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**tower, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )
    model, pixels = CLIPModel(config).double().eval(), torch.randn(1, 3, 16, 16, dtype=torch.float64)
    for at in ("position", "token", "pixel"):
        e = whence.explain(
            model, {"input_ids": tiny.ids(1), "pixel_values": pixels}, "conservative-lrp",
            lambda outputs: outputs.logits_per_image[:, 0], at=at,
        )  # fmt: skip
        assert float(e.ledger.imbalance.abs().max()) < 1e-9


@pytest.mark.parametrize("skip", [False, True])
def test_relations_of_one_stream_are_its_roll_up(skip):
    """Also if a tensor derives from two states (a long skip): it has the later one."""

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3))

        def forward(self, input_ids):
            one = self.layers[0](self.embed(input_ids))
            two = self.layers[1](one)
            return self.head(self.layers[2](two + one if skip else two)[:, 0])

    method, run = traced(Skipping().double().eval(), {"input_ids": tiny.ids()}, METHOD, 1)
    maps, _ = method.maps(run, keep=True)
    (_, found), *others = explained_scores(run, roll_up_states(run, maps, accumulate))
    assert others == []
    assert relative(found, roll_up(maps, all_rows(maps[0]))[:, 0]) < EXACT  # the head reads the first row
