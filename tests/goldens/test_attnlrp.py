"""AttnLRP, CP-LRP and ResLRP: the published numbers, and what the rules must hold."""

from __future__ import annotations

import pytest
import torch

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import golden, load, load_bert
from tests.support.runs import traced
from whence.tracing.tensor_info import node_of

VIT = "ViTForImageClassification"
WRITTEN_OUT = 5e-9  # GPT-2 writes its GELU out, so that the published stabiliser of 1e-10 is not there
FLOAT32_INSIDE = 2e-6  # HuggingFace's Llama computes norms, rotations and the eager softmax in float32


@pytest.mark.parametrize("padding", ["nopad", "pad"])
def test_bert(padding):
    case = golden("05_attnlrp_bert", "attnlrp")
    inputs = {k: torch.from_numpy(case[f"{padding}_{k}"]) for k in ("input_ids", "attention_mask")}
    for target, name in [("target", "relevance"), ("target2", "relevance_target2")]:
        e = whence.explain(load_bert(), inputs, "attn-lrp", int(case[f"{padding}_{target}"]), at="token")
        assert relative(e.scores[0], case[f"{padding}_{name}"]) < EXACT


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("method", ["attn-lrp", "conservative-lrp"])
@pytest.mark.parametrize(
    ("name", "folder", "limit"),
    [("GPT2LMHeadModel", "05_attnlrp_gpt2", WRITTEN_OUT), ("LlamaForCausalLM", "05_attnlrp_llama", FLOAT32_INSIDE)],
)
def test_decoders(name, folder, limit, method, implementation):
    """The published CP-LRP is our conservative-lrp."""
    case = golden(folder, "attnlrp" if method == "attn-lrp" else "cplrp")
    model, inputs = load(name, folder, implementation), {"input_ids": torch.from_numpy(case["nopad_input_ids"])}
    for target, array in [("target", "relevance"), ("target2", "relevance_target2")]:
        e = whence.explain(model, inputs, method, int(case[f"nopad_{target}"]), at="token")
        assert relative(e.scores[0], case[f"nopad_{array}"]) < limit


@pytest.fixture(params=[0, 1])
def picture(request):
    """A ViT, one of two pictures, and what the gamma composite gives."""
    case = golden("15_attnlrp_vit_gamma")
    return f"img{request.param}", torch.from_numpy(case["pixel_values"][request.param : request.param + 1]).double()


@pytest.mark.parametrize(("conv", "linear"), [(0.25, 0.05), (0, 0.05), (0.25, 0), (100, 1)])
def test_gamma_composite_of_vit(picture, conv, linear):
    case, (image, pixels) = golden("15_attnlrp_vit_gamma"), picture
    model = load(VIT, "15_attnlrp_vit_gamma")
    options = {"at": "pixel", "gamma": linear, "conv_gamma": conv}
    for name, attention in [(f"{image}_cp", "constant"), (f"REIMPL_{image}_attnlrp", "split")]:
        e = whence.explain(model, pixels, "attn-lrp", int(case[f"{image}_target"]), attention=attention, **options)
        assert relative(e.heatmap()[0], case[f"{name}_conv{conv}_lin{linear}"]) < EXACT


def test_without_gamma_and_of_another_class(picture):
    case, (image, pixels) = golden("15_attnlrp_vit_gamma"), picture
    model = load(VIT, "15_attnlrp_vit_gamma")
    options = {"at": "pixel", "attention": "constant"}
    e = whence.explain(model, pixels, "attn-lrp", int(case[f"{image}_target"]), **options)
    assert relative(e.heatmap()[0], case[f"{image}_cp_nozennit"]) < EXACT
    e = whence.explain(model, pixels, "attn-lrp", int(case[f"{image}_target2"]), gamma=0.05, conv_gamma=0.25, **options)
    assert relative(e.heatmap()[0], case[f"{image}_cp_conv0.25_lin0.05_target2"]) < EXACT


@pytest.mark.parametrize("gamma", [0, 0.25, 1, 10])
@pytest.mark.parametrize("attention", ["split", "constant"])
@pytest.mark.parametrize("target", ["argmax", "argmin"])
def test_residual_gamma(gamma, attention, target):
    case, model = golden("16_reslrp_vit"), load(VIT, "16_reslrp_vit")
    pixels = torch.from_numpy(case["pixel_values"]).double()
    targets = [int(case[f"img{i}_{target}_target"]) for i in range(2)]
    options = {"gamma": gamma, "attention": attention}
    raw = whence.explain(model, pixels, "res-lrp", targets, at="pixel", **options)
    tokens = whence.explain(model, pixels, "res-lrp", targets, **options)
    for i in range(2):
        name = f"img{i}_{target}_{'cp' if attention == 'constant' else 'attnlrp'}_g{gamma}"
        assert relative(raw.heatmap()[i], case[f"{name}_pixel"]) < EXACT
        assert relative(tokens.scores[i], case[f"{name}_token_emb"]) < EXACT
        assert relative(tokens.layers[i], case[f"{name}_block_inputs"]) < EXACT
    if not gamma:
        plain = whence.explain(model, pixels, "attn-lrp", targets, attention=attention)
        assert relative(tokens.scores, plain.scores) < 1e-7  # which has a stabiliser


@pytest.mark.parametrize("gamma", [0.25, 1, 10])
def test_books_balance_with_constant_attention(gamma):
    """What does not arrive at the tokens is in biases alone: sums with gamma conserve."""
    case, model = golden("16_reslrp_vit"), load(VIT, "16_reslrp_vit")
    pixels = torch.from_numpy(case["pixel_values"]).double()
    e = whence.explain(model, pixels, "res-lrp", gamma=gamma, attention="constant")
    assert set(e.ledger.absorbed) == {"bias"}
    assert float(e.ledger.imbalance.abs().max()) < 1e-10


@pytest.mark.parametrize("model", ["bert", "vit", "llama", "gpt2"])
@pytest.mark.parametrize("method", ["attn-lrp", "res-lrp"])
def test_books_balance(model, method):
    inputs = tiny.pixels(2).double() if model == "vit" else tiny.ids(2)
    e = whence.explain(getattr(tiny, model)().double(), inputs, method, 1)
    assert float(e.ledger.imbalance.abs().max()) < 1e-5 * float(e.ledger.sums.abs().max())


def test_gamma_composite_keeps_its_books():
    e = whence.explain(tiny.vit().double(), tiny.pixels(2).double(), "attn-lrp", 1, gamma=0.5, conv_gamma=0.5)
    assert float(e.ledger.imbalance.abs().max()) < 1e-8


def test_one_tensor_as_query_key_and_value():
    """Fused attention of a tensor with itself: three factors, though one tensor."""

    class Alone(torch.nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.fused, self.head = fused, torch.nn.Linear(4, 2)

        def forward(self, x):
            if self.fused:
                y = torch.nn.functional.scaled_dot_product_attention(x, x, value=x)
            else:
                y = torch.softmax(x @ x.transpose(1, 2) / 2, -1) @ x
            return self.head((x + y).mean(1))

    torch.manual_seed(0)
    one, two = Alone(fused=True).double(), Alone(fused=False).double()
    two.load_state_dict(one.state_dict())
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    a, b = (whence.explain(m, x, "attn-lrp", 0).scores for m in (one, two))
    assert relative(a, b) < EXACT


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("attn-lrp", {"attention": "all"}, "attention"),
        ("attn-lrp", {"gamma": -1}, "gamma"),
        ("attn-lrp", {"conv_gamma": -0.5}, "conv_gamma"),
        ("res-lrp", {"gamma": -1}, "gamma"),
        ("res-lrp", {"attention": "all"}, "attention"),
    ],
)
def test_options_that_make_no_sense(method, options, said):
    with pytest.raises(whence.MethodError, match=said):
        whence.explain(tiny.vit(), tiny.pixels(1), method, **options)


class Bare(torch.nn.Module):
    """An MLP, then attention without projections, in a residual stream; or two branches that are summed alone."""

    def __init__(self, residual):
        super().__init__()
        torch.manual_seed(0)
        self.residual = residual
        self.embed = torch.nn.Embedding(60, 8)
        self.one, self.two, self.head = (torch.nn.Linear(8, n) for n in (8, 8, 3))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        if not self.residual:
            return self.head((self.one(x) + self.two(x)).mean(1))
        x = x + self.one(x).relu()
        x = x + torch.nn.functional.scaled_dot_product_attention(x * 0.1, x, x)
        return self.head(x[:, 0])


def test_only_residual_additions_have_the_gamma_rule():
    """Two branches of one tensor are no trunk and branch; nor are the halves of a rotation (Llama)."""
    for method, options in [("attn-lrp", {}), ("res-lrp", {"gamma": 5.0})]:
        e = whence.explain(Bare(residual=False).double(), tiny.ids(2), method, 1, **options)
        if method == "attn-lrp":
            expected = e.scores
    assert relative(e.scores, expected) < EXACT
    a, b = (whence.explain(Bare(residual=True).double(), tiny.ids(2), "res-lrp", 1, gamma=g).scores for g in (0, 5.0))
    assert relative(a, b) > 1e-2


def test_gamma_finds_the_layers_of_an_attention_without_projections():
    """The MLP before such an attention is no part of it, and has the gamma rule."""
    _, run = traced(Bare(residual=True).double(), tiny.ids(2), "attn-lrp", 1)
    seen, stack = {}, [node_of(run.seed.output)]
    while stack:
        node = stack.pop()
        if node.seq not in seen:
            seen[node.seq] = node
            stack += node.parents
    assert [n.projection for n in seen.values() if n.kind == "linear"] == [False, False]
