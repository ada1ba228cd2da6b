"""Attention alone, rollout, attention flow and GradCAM: the published numbers, and a second way of computing them."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import golden, load_attention_only_bert, load_bert, load_vit
from whence.methods.attention_flow import flows

FLOWS = [f"{kind}_{residual}" for kind in ("dense", "causal", "padded") for residual in ("res", "nores")]


def stretched(x):
    """Min-max scaled, as the published code does."""
    return (x - x.min()) / (x.max() - x.min())


@pytest.fixture(params=["argmax", "other"])
def vit(request):
    arrays = golden("01_cvpr21_vit", request.param)
    inputs = {"pixel_values": torch.from_numpy(arrays["pixel_values"]).double()}
    return arrays, lambda method, **options: whence.explain(
        load_vit(), inputs, method, int(arrays["target"]), **options
    )


@pytest.fixture(params=["nopad_argmax", "nopad_other", "pad_argmax", "pad_other"])
def bert(request):
    arrays = golden("02_cvpr21_bert", request.param)
    inputs = {k: torch.from_numpy(arrays[k]) for k in ("input_ids", "attention_mask", "token_type_ids")}
    return arrays, lambda method, **options: whence.explain(
        load_bert(), inputs, method, int(arrays["target"]), **options
    )


@pytest.mark.parametrize("start", [0, 1])
def test_rollout_of_vit(vit, start):
    arrays, explain = vit
    assert relative(explain("rollout", start_layer=start).scores[:, 1:], arrays[f"attn_rollout_start{start}"]) < EXACT


def test_last_attention_and_grad_cam_of_vit(vit):
    arrays, explain = vit
    assert relative(explain("attention").scores[0, 1:], arrays["ours_last_layer_attn"]) < EXACT
    assert relative(stretched(explain("grad-cam").patches[0]), arrays["gradcam_attn"]) < EXACT


def test_attention_methods_of_bert(bert):
    """The published code sets the entry of [CLS] to 0."""
    arrays, explain = bert
    for method, name in [("attention", "attn_last_layer"), ("rollout", "rollout_start0")]:
        scores = explain(method).scores
        scores[:, 0] = 0
        assert relative(scores, arrays[f"ours_generate_{name}"]) < EXACT


@pytest.mark.parametrize("bert", ["nopad_argmax", "nopad_other"], indirect=True)
def test_grad_cam_of_bert(bert):
    """The published code scales the whole map before it takes the row; it averages gradients over padding, too."""
    arrays, explain = bert
    scores = explain("grad-cam", weights="map").scores[0, 1:]
    expected = arrays["ours_generate_attn_gradcam"].ravel()[1:]
    largest = max(float(scores.max()), 1e-30), max(float(expected.max()), 1e-30)  # one of the two maps is all zeros
    assert np.allclose(scores / largest[0], expected / largest[1], atol=EXACT)


@pytest.mark.parametrize("options", [{"rows": "all"}, {"weights": "map"}, {"rows": "all", "weights": "map"}])
def test_grad_cam_does_not_look_at_padding(options):
    model, batch = tiny.bert().double(), tiny.padded([7, 3])
    together = whence.explain(model, batch, "grad-cam", 1, **options).scores[1, :3]
    alone = whence.explain(model, {k: v[1:, :3] for k, v in batch.items()}, "grad-cam", 1, **options).scores[0]
    assert torch.allclose(together, alone, atol=1e-12)


def test_attention_methods_of_ali():
    arrays = golden("04_icml22_ali", "nopad")
    inputs = {"input_ids": torch.from_numpy(arrays["input_ids"])}
    for method, name, options in [
        ("attention", "attn_last", {}), ("rollout", "rollout_2", {}),
        ("rollout", "rollout_nores_2", {"residual": False}),
        ("attention-flow", "attention_flow_2", {"normalise": True}),
    ]:  # fmt: skip
        e = whence.explain(load_attention_only_bert(), inputs, method, rows="all", **options)
        assert relative(e.scores[0], arrays[name]) < EXACT


@pytest.mark.parametrize("case", FLOWS)
def test_flows_are_the_published_ones(case):
    arrays = golden("06_attention_flow")
    found = np.stack([flows(arrays[f"{case}_mats"], row) for row in range(6)])
    assert relative(found, arrays[f"{case}_flow_mats_unnormalised"][-1]) < EXACT


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_flows_equal_those_of_another_library(seed, layers, tokens):
    capacities = np.random.default_rng(seed).dirichlet(np.full(tokens, 0.3), (layers, tokens))
    graph = networkx.DiGraph()
    graph.add_nodes_from((layer, i) for layer in range(layers + 1) for i in range(tokens))
    for layer, above, below in np.ndindex(*capacities.shape):
        graph.add_edge((layer + 1, above), (layer, below), capacity=capacities[layer, above, below])
    expected = [networkx.maximum_flow_value(graph, (layers, 0), (0, i)) for i in range(tokens)]
    assert np.allclose(flows(capacities, 0), expected, atol=1e-9)


def test_rollout_is_the_product_of_the_layers():
    model, inputs = tiny.bert(implementation="eager").double(), {"input_ids": tiny.ids(2)}
    attentions = model(**inputs, output_attentions=True).attentions
    product = torch.eye(7, dtype=torch.float64).expand(2, -1, -1)
    for A in attentions:
        product = (A.mean(1) + torch.eye(7)) / 2 @ product
    assert relative(whence.explain(model, inputs, "rollout").scores, product[:, 0]) < EXACT
    last = attentions[-1]
    assert relative(whence.explain(model, inputs, "attention").scores, last.mean(1)[:, 0]) < EXACT
    assert relative(whence.explain(model, inputs, "attention", layer=0, head=2).scores, attentions[0][:, 2, 0]) < EXACT


def test_what_is_out_of_range_is_said():
    for options, said in [({"head": 9}, "Head 9"), ({"layer": 7}, "Layer 7"), ({"rows": "some"}, "rows")]:
        with pytest.raises(whence.MethodError, match=said):
            whence.explain(tiny.bert(), tiny.ids(1), "attention", **options)


def test_only_some_methods_follow_the_class():
    for name, method in whence.list_methods().items():
        model, inputs = (tiny.vit(), tiny.pixels(1)) if method.needs == "pictures" else (tiny.bert(), tiny.ids(1))
        one, two = (whence.explain(model, inputs, name, target).scores for target in (0, 1))
        assert torch.equal(one, two) != method.class_specific, name
