"""LibraGrad: the published numbers, completeness of every architecture, and biases computed a second way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import CLIPConfig, CLIPModel, SwinConfig, SwinForImageClassification
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import golden, load
from whence.readout.bias_relevance import token_slices
from whence.tracing.axes import Axis, Part

RULES = {"NG": "gradient", "LX1": "libra", "LX-GA-D2": "attn-lrp", "LX-NA": "ali-lrp"}
READOUTS = {
    "input-x-gradient": "IxG", "full-grad": "FullGrad", "full-grad-plus": "FullGradPlus",
    "hires-cam": "HiResCAM_lastblock", "att-cat": "AttCAT_sum",
}  # fmt: skip


def libra(model, inputs, readout, target=1, **options):
    return whence.explain(model, inputs, "libragrad", target, readout=readout, **options)


def biased(model, seed=0):
    """In double precision, every norm and bias away from where it is initialised."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.double().eval().parameters():
            if p.dim() == 1:
                p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


@pytest.mark.parametrize("seed", ["S0", "S1"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("readout", READOUTS)
def test_the_published_numbers(seed, rules, readout):
    arrays = golden("12_libragrad_vit")
    case = {
        name.removeprefix(f"{seed}_{rules}_"): a for name, a in arrays.items() if name.startswith(f"{seed}_{rules}_")
    }
    model, pixels = load("ViTForImageClassification", "12_libragrad_vit"), torch.from_numpy(arrays["pixel_values"])
    options = {"rules": RULES[rules], "probability": seed == "S1"}
    e = libra(model, {"pixel_values": pixels.double()}, readout, case["target"].tolist(), **options)
    assert relative(e.value, case["target_value"]) < EXACT
    assert relative(e.scores, case[READOUTS[readout]]) < EXACT
    assert relative(e.layers, case["IxG_per_block"]) < EXACT
    if readout == "full-grad":
        assert (e.scores.sum(1) - e.value - torch.from_numpy(case["completeness_error"])).abs().max() < 1e-12
        assert relative(e.scores.numpy() - case["IxG"], case["bias_map"]) < EXACT
    assert e.ledger is None or e.ledger.imbalance.abs().max() < 1e-12


class Registers(nn.Module):
    """Norms over tokens, puts tokens of its own (zeros) beside the others, pools by the mean of the others."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True) for _ in range(2)]
        self.embed, self.layers, self.head = nn.Embedding(60, 16), nn.ModuleList(layers), nn.Linear(16, 3)
        self.own, self.over, self.inner = nn.Parameter(torch.zeros(1, 2, 16)), nn.LayerNorm(7), nn.Linear(16, 16)

    def forward(self, input_ids):
        x = self.over(self.layers[0](self.embed(input_ids)).mT).mT
        x = torch.cat([self.own.expand(len(x), -1, -1), x], 1)
        x = self.layers[1](x)[:, 2:]
        return self.head(torch.tanh(self.inner(x).mean(1)))


class BatchNormed(nn.Module):
    """An encoder between two batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.last = nn.Embedding(60, 16), nn.BatchNorm1d(16), nn.BatchNorm1d(16)
        self.layer, self.head = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), nn.Linear(16, 3)
        for norm in (self.first, self.last):
            norm.running_mean.normal_()

    def forward(self, input_ids):
        x = self.layer(self.first(self.embed(input_ids).mT).mT)
        return self.head(self.last(x.mT)[..., 0])


def exact_norm(self, x):
    """HuggingFace computes it in single precision."""
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


FAMILIES = {
    "vit": (tiny.vit, lambda: {"pixel_values": tiny.pixels().double()}),
    "bert": (tiny.bert, lambda: tiny.padded([7, 4, 2])),
    "bert, eager": (lambda: tiny.bert(implementation="eager"), lambda: tiny.padded([7, 4, 2])),
    "llama": (tiny.llama, lambda: {"input_ids": tiny.ids()}),
    "llama, classifying": (lambda: tiny.llama(classify=True), lambda: tiny.padded([7, 4, 2])),
    "gpt2": (tiny.gpt2, lambda: tiny.padded([7, 4, 2], left=True)),
    "one sample": (tiny.gpt2, lambda: {"input_ids": tiny.ids(1)}),
    "one token": (tiny.bert, lambda: {"input_ids": tiny.ids(2, 1)}),
    "sequence first": (lambda: tiny.Encoder(batch_first=False), lambda: {"input_ids": tiny.ids()}),
    "pre-norm": (lambda: tiny.Encoder(norm_first=True, activation="relu"), lambda: {"input_ids": tiny.ids()}),
    "mean over tokens": (tiny.Handwritten, lambda: {"input_ids": tiny.ids()}),
    "batch norm": (BatchNormed, lambda: {"input_ids": tiny.ids()}),
    "tokens of its own": (Registers, lambda: {"input_ids": tiny.ids()}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_full_grad_is_complete(family, monkeypatch):
    monkeypatch.setattr(LlamaRMSNorm, "forward", exact_norm)
    make, inputs = FAMILIES[family]
    torch.manual_seed(0)
    e = libra(biased(make()), inputs(), "full-grad")
    assert float((e.scores.sum(1) - e.value).abs().max() / e.scores.abs().max()) < 1e-12
    assert not e.coverage.plain


@given(seed=st.integers(0, 99), layers=st.integers(1, 3), lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3))
@settings(max_examples=12)
def test_full_grad_of_a_padded_batch_is_that_of_its_samples(seed, layers, lengths):
    model, batch = biased(tiny.bert(layers, seed=seed), seed), tiny.padded(lengths, seed=seed)
    for readout in ("full-grad", "hires-cam", *["att-cat"] * (layers > 1)):
        e = libra(model, batch, readout)
        assert (e.scores[batch["attention_mask"] == 0] == 0).all()
        for i, n in enumerate(lengths):
            one = libra(model, {k: v[i : i + 1, :n] for k, v in batch.items()}, readout)
            assert torch.allclose(e.scores[i, :n], one.scores[0], rtol=0, atol=1e-12 * float(e.scores.abs().max()))
            if readout == "full-grad":
                assert torch.allclose(one.scores.sum(1), one.value, rtol=1e-12, atol=1e-12)


def test_masks_are_no_biases():
    batch = tiny.padded([7, 4, 2])
    one, two = (
        libra(biased(tiny.bert(implementation=name)), batch, "full-grad", rules="gradient")
        for name in ("eager", "sdpa")
    )
    assert relative(one.scores, two.scores) < EXACT


class Pairs(nn.Module):
    """Adds a bias to every pair of tokens, outside of an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.bias, self.head = nn.Embedding(60, 8), nn.Parameter(torch.ones(7, 7)), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)

    def forward(self, input_ids):
        x = self.layer(self.embed(input_ids))
        return self.head(((x @ x.mT + self.bias) @ x).mean(1))


def test_experts_are_complete():
    """The weights of a router are constants. (The experts' kernel has no double precision.)"""
    e = libra(tiny.mixtral(), {"input_ids": tiny.ids(2)}, "full-grad")
    assert torch.allclose(e.scores.sum(1), e.value, rtol=1e-5)


def test_two_streams_are_complete():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    text, vision = {"vocab_size": 60, "eos_token_id": 2, **sizes}, {"image_size": 12, "patch_size": 4, **sizes}
    torch.manual_seed(0)
    model = biased(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)))
    inputs = {"input_ids": tiny.ids(2), "pixel_values": tiny.pixels(2).double()}
    e = libra(model, inputs, "full-grad", lambda out: out.logits_per_image.diagonal())
    halves = [scores.sum(1) for scores in e.streams.values()]
    assert len(halves) == 2
    for half in halves:  # a product gives half to each
        assert torch.allclose(half, e.value / 2, rtol=1e-10)
    with pytest.raises(whence.ModelError, match="full-grad"):
        libra(model, inputs, "full-grad-plus", lambda out: out.logits_per_image.diagonal())


def balanced(model, ids):
    """The same as ``tiny.Handwritten``, written with constants, and with a bias of its own at every position."""
    biases = []

    def linear(layer, x):
        b = layer.bias.detach().expand(*x.shape[:-1], -1).clone().requires_grad_()
        biases.append(b)
        return x @ layer.weight.detach().T + b

    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6).detach() * model.gain.detach()

    entries = [model.embed(ids).detach().requires_grad_()]
    for _ in range(model.blocks):
        x = entries[-1]
        q, k, v = (t.unflatten(-1, (4, 8)) for t in linear(model.qkv, norm(x)).chunk(3, -1))
        a = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5).softmax(-1).detach()
        x = x + linear(model.out, torch.einsum("bhqk,bkhd->bqhd", a, v).flatten(2))
        g, u = linear(model.up, norm(x)).chunk(2, -1)
        g = g * torch.sigmoid(1.702 * g).detach()
        entries.append(x + linear(model.down, (g * u.detach() + g.detach() * u) / 2))
    value = linear(model.head, entries[-1].mean(1))[:, 1]
    gradients = torch.autograd.grad(value.sum(), [*entries[:-1], *biases])
    shares = [(t * g).detach().sum(-1) for t, g in zip([*entries[:-1], *biases], gradients, strict=True)]
    inputs, inner, head = shares[: model.blocks], shares[model.blocks : -1], shares[-1]
    return inputs, sum(inner) + head[:, None] / ids.shape[1], value.detach()


def test_biases_computed_a_second_way():
    torch.manual_seed(0)
    model, ids = biased(tiny.Handwritten()), tiny.ids()
    inputs, biases, value = balanced(model, ids)
    assert relative(libra(model, ids, "input-x-gradient").scores, inputs[0]) < EXACT
    assert relative(libra(model, ids, "full-grad").scores, inputs[0] + biases) < EXACT
    e = libra(model, ids, "full-grad-plus")
    assert relative(e.scores, sum(inputs) + biases) < EXACT
    assert relative(e.layers, torch.stack(inputs, 1)) < EXACT
    assert relative(e.value, value) < EXACT


class Gated(nn.Module):
    def __init__(self, gate) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.embed, self.up, self.down = gate, nn.Embedding(60, 8), nn.Linear(8, 16), nn.Linear(8, 3)

    def forward(self, input_ids):
        a, b = self.up(self.embed(input_ids)).chunk(2, -1)
        return self.down(self.gate(a, b)).mean(1)


@pytest.mark.parametrize(
    ("gate", "balance"),
    [
        (
            lambda a, b: F.silu(a) * b,
            lambda a, b: (a * torch.sigmoid(a).detach() * b) / 2 + (F.silu(a) * b).detach() / 2,
        ),
        (lambda a, b: a * b, lambda a, b: (a * b + (a * b).detach()) / 2),
        (lambda a, b: (1 + b) * a, lambda a, b: ((1 + b) * a + ((1 + b) * a).detach()) / 2),
        (lambda a, b: a * torch.sigmoid(b), lambda a, b: a * torch.sigmoid(b).detach()),
        (lambda a, b: (1 + torch.tanh(b)) * a, lambda a, b: a * (1 + torch.tanh(b)).detach()),
        (lambda a, b: b.softmax(-1) * a * 8.0, lambda a, b: b.softmax(-1).detach() * a * 8.0),
    ],
    ids=["silu", "bilinear", "shifted", "sigmoid", "tanh", "softmax"],
)
def test_a_branch_that_is_not_linear_is_a_constant(gate, balance):
    model, other = Gated(gate).double(), Gated(balance).double()
    e = libra(model, {"input_ids": tiny.ids()}, "input-x-gradient", at="token")
    embedded = other.embed(tiny.ids()).detach().requires_grad_()
    a, b = other.up(embedded).chunk(2, -1)
    (gradient,) = torch.autograd.grad(other.down(balance(a, b)).mean(1)[:, 1].sum(), embedded)
    assert relative(e.scores, (gradient * embedded).sum(-1)) < EXACT
    e = libra(model, {"input_ids": tiny.ids()}, "full-grad")
    assert torch.allclose(e.scores.sum(1), e.value, rtol=1e-12)


class Patches(nn.Module):
    def __init__(self, bias=True) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 8, 4, 4, bias=bias), nn.Linear(8, 3)

    def forward(self, pixels):
        return self.head(self.patch(pixels).flatten(2).mean(-1))


def test_dissent_is_suppressed_at_pixels():
    torch.manual_seed(0)
    model, pixels = Patches().double(), tiny.pixels(2).double()
    cut = F.unfold(pixels, 4, stride=4)[:, None]  # [batch, 1, 48, patches]
    contributions = model.patch.weight.detach().reshape(1, 8, 48, 1) * cut
    total = contributions.sum(2, keepdim=True)
    kept = contributions * (contributions * total > 0)
    shares = kept / kept.sum(2, keepdim=True) * total
    relevance = (shares * model.head.weight[1].detach().reshape(1, 8, 1, 1) / 9).sum(1)
    expected = F.fold(relevance, (12, 12), 4, stride=4).sum(1)
    e = libra(model, {"pixels": pixels}, "input-x-gradient", at="pixel")
    assert relative(e.patches, expected) < EXACT
    lost = model.head.bias[1] + model.head.weight[1] @ model.patch.bias
    assert torch.allclose(e.scores.sum(1) + lost, e.value)


def test_the_probability_is_that_of_the_class():
    model, inputs = tiny.bert().double(), {"input_ids": tiny.ids()}
    for readout in READOUTS:
        e = libra(model, inputs, readout, [0, 1, 2], probability=True)
        same = libra(model, inputs, readout, lambda out: out.logits.softmax(-1).diagonal())
        assert torch.equal(e.scores, same.scores)
        assert torch.allclose(e.value, model(**inputs).logits.softmax(-1).diagonal(), rtol=1e-12)
    assert e.target.tolist() == [0, 1, 2]
    at = libra(tiny.gpt2().double(), inputs, "full-grad", [3, 4, 5], probability=True)
    assert torch.allclose(at.value, tiny.gpt2().double()(**inputs).logits[:, -1].softmax(-1)[[0, 1, 2], [3, 4, 5]])
    with pytest.raises(whence.TargetError, match="no class among others"):
        libra(model, inputs, "full-grad", lambda out: out.logits[:, 0], probability=True)


def test_parts_of_an_axis_that_are_tokens():
    tokens = (Axis(5),)
    cut = (Axis(3, (Part(tokens, 1, 3),)),)
    assert token_slices(tokens, tokens) == [(0, 0, 5)]
    assert token_slices(cut, tokens) == [(0, 1, 3)]
    joined = (Axis(7, (Part(None, 0, 2), Part(cut, 0, 3), Part(tokens, 3, 2))),)
    assert token_slices(joined, tokens) == [(2, 1, 3), (5, 3, 2)]
    assert token_slices((Axis(4, (Part(joined, 3, 4),)),), tokens) == [(0, 2, 2), (2, 3, 2)]
    assert token_slices((Axis(5),), tokens) == token_slices((), tokens) == token_slices((), ()) == []


def test_what_it_cannot_do_is_said():
    config = SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=3
    )
    model, pixels = SwinForImageClassification(config).eval(), torch.randn(1, 3, 16, 16)
    assert libra(model, {"pixel_values": pixels}, "input-x-gradient", 0).scores.isfinite().all()
    for readout, said in [("full-grad", "not followed to its tokens"), ("hires-cam", "blocks that all work")]:
        with pytest.raises(whence.ModelError, match=said):
            libra(model, {"pixel_values": pixels}, readout, 0)
    with pytest.raises(whence.ModelError, match="not followed to its tokens"):
        libra(Pairs().eval(), {"input_ids": tiny.ids()}, "full-grad")
    with pytest.raises(whence.ModelError, match="no tokens"):
        libra(Patches(bias=False), {"pixels": tiny.pixels()}, "full-grad", 0)
    with pytest.raises(whence.ModelError, match="two blocks"):
        libra(tiny.bert(1), {"input_ids": tiny.ids()}, "att-cat")
    for options, said in [
        ({"readout": "all"}, "`readout` must be 'full-grad-plus', .* or 'att-cat'"), ({"rules": "all"}, "`rules` must"),
        ({"at": "token"}, "must be read at 'position'"), ({"at": "pixel", "readout": "full-grad"}, "must be read"),
    ]:  # fmt: skip
        with pytest.raises(whence.MethodError, match=said):
            whence.explain(tiny.bert(), tiny.ids(1), "libragrad", **options)
