"""PA-LRP: the published numbers, and positions of every kind by a second computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import full_golden, golden, load

# The published code adds 1e-6 or 1e-8 to every denominator (see the method's docstring). An independent form in
# gradients differs from it by as much: 2.7e-4 (text), 1e-4 (tokens of the picture), 2e-3 (its pixels), and by at most
# 6e-7 once those are taken out (README of the golden cases).
STABILISED = {"text": 3e-4, "tokens": 1e-4, "pixels": 2e-3}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("target", ["argmax", "argmin"])
@pytest.mark.parametrize(("attention", "name"), [("split", "attnlrp"), ("constant", "cp")])
def test_rotary_positions(target, attention, name, implementation):
    case, model = golden("14_palrp_llama"), load("LlamaForCausalLM", "14_palrp_llama", implementation)
    inputs, wanted = {"input_ids": torch.from_numpy(case["input_ids"])}, int(case[f"{target}_target"])
    e = whence.explain(model, inputs, "pa-lrp", wanted, at="token", attention=attention)
    assert relative(e.scores[0], case[f"{name}_{target}_pe_total"]) < STABILISED["text"]
    plain = whence.explain(model, inputs, "attn-lrp", wanted, at="token", attention=attention)
    assert relative(plain.scores[0], case[f"{name}_{target}_nope_semantic"]) < STABILISED["text"]
    if attention == "constant":  # nothing reaches queries and keys
        assert relative(e.scores, plain.scores) < EXACT


@pytest.mark.parametrize("target", ["argmax", "argmin"])
def test_learned_positions_of_vit(target):
    case, model = golden("13_palrp_vit"), load("ViTForImageClassification", "13_palrp_vit")
    pixels, wanted = (torch.from_numpy(case["pixel_uint8"]).double() / 255 - 0.5) / 0.5, int(case[f"{target}_target"])
    options = {"attention": "halved", "gamma": 0.05, "conv_gamma": 100}
    tokens = whence.explain(model, pixels, "pa-lrp", wanted, **options)
    logit = float(tokens.logits[0, wanted])
    assert relative(tokens.scores[0] / logit, case[f"split_{target}_tokens_total"]) < STABILISED["tokens"]
    if target == "argmin":
        case = full_golden("13_palrp_vit")  # the map of one class is enough for the compact copy
    raw = whence.explain(model, pixels, "pa-lrp", wanted, at="pixel", **options).heatmap()[0] / logit
    expected = case[f"full_lrp_GammaLinear_POS_ENC_gammaConv__{target}"]
    assert relative(raw.clamp(min=0), expected) < STABILISED["pixels"]


class Biased(nn.Module):
    """One attention with rotated queries and keys and a bias per distance, its positions open to differentiation."""

    def __init__(self, tokens: int = 5, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.q, self.k, self.v, self.head = (nn.Linear(width, width) for _ in range(4))
        angle = torch.arange(tokens)[:, None] * torch.tensor([1.0, 0.3, 1.0, 0.3])
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("bias", torch.randn(tokens, tokens))
        self.register_buffer("learned", torch.randn(tokens, width))
        self.register_buffer("again", torch.randn(tokens, width))
        self.weights = 1 + torch.rand(tokens, dtype=torch.float64)  # of keys, behind the softmax: no encoding of theirs

    def forward(self, input_ids, halve=lambda x: x):
        x = self.embed(input_ids) + self.learned
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k = (halve(t * self.cos) + halve(torch.cat([-t[..., 2:], t[..., :2]], -1) * self.sin) for t in (q, k))
        scores = halve(q @ k.transpose(1, 2)) / math.sqrt(4) + self.bias
        return self.head((x + halve(torch.softmax(scores, -1) * self.weights @ v) + self.again).mean(1))


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g / 2


@pytest.mark.parametrize("counted", ["absolute", "positive", "signed"])
def test_positions_of_every_kind(counted):
    """The same rules written by hand, with cos, sin, bias and embeddings as leaves."""
    torch.manual_seed(0)
    model, ids = Biased().double(), torch.randint(20, (1, 5))
    leaves = {name: buffer.clone().requires_grad_() for name, buffer in model.named_buffers()}
    rows = model.embed(ids).detach().requires_grad_()

    class Given(nn.Module):
        def forward(self, _):
            return rows

    twin = Biased().double()
    twin.load_state_dict(model.state_dict())
    twin.weights = model.weights
    twin._buffers.update(leaves)
    twin.embed = Given()
    twin(ids, Half.apply)[0, 1].backward()
    count = {"absolute": torch.abs, "positive": lambda R: R.clamp(min=0), "signed": lambda R: R}[counted]
    inside = count((leaves["cos"].grad * leaves["cos"]).sum(1)) + count((leaves["sin"].grad * leaves["sin"]).sum(1))
    inside = inside + count((leaves["bias"].grad * leaves["bias"]).sum(0))
    word = (rows.grad[0] * rows[0]).sum(1)
    learned = sum((leaves[name].grad * leaves[name]).sum(1) for name in ("learned", "again"))
    for at in ("token", "position"):
        e = whence.explain(model, ids, "pa-lrp", 1, at=at, positions=counted)
        assert relative(e.scores[0], word + learned + inside) < EXACT


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_with_added_positions_nothing_is_lost_between_embedding_and_block(name):
    """Without rotations the method is attn-lrp where everything enters; at token the position's part is added."""
    model = getattr(tiny, name)().double()
    inputs = tiny.pixels(2).double() if name == "vit" else tiny.ids(2)
    a, b = (whence.explain(model, inputs, method, 1) for method in ("pa-lrp", "attn-lrp"))
    assert relative(a.scores, b.scores) < EXACT
    if name == "gpt2":  # no norm before the first block: word and position make up the whole
        token = whence.explain(model, inputs, "pa-lrp", 1, at="token")
        assert relative(token.scores, b.scores) < EXACT
        given = {"input_ids": inputs, "position_ids": torch.arange(inputs.shape[1]).expand(2, -1)}
        assert relative(whence.explain(model, given, "pa-lrp", 1, at="token").scores, b.scores) < EXACT


def test_patches_of_a_picture_get_their_position_in_equal_parts():
    """Patch by patch, pixels sum to what enters the first block, but for the convolution's bias."""
    model, pixels = tiny.vit().double(), tiny.pixels(2).double()
    with torch.no_grad():
        model.vit.embeddings.patch_embeddings.projection.bias.zero_()
    raw = whence.explain(model, pixels, "pa-lrp", 1, at="pixel").heatmap()
    tokens = whence.explain(model, pixels, "pa-lrp", 1)
    sums = raw.unflatten(1, (3, 4)).unflatten(3, (3, 4)).sum((2, 4))
    assert relative(sums, tokens.patches) < EXACT


@pytest.mark.parametrize("options", [{"positions": "some"}, {"attention": "none"}, {"gamma": -1}])
def test_options_that_make_no_sense(options):
    with pytest.raises(whence.MethodError, match=next(iter(options))):
        whence.explain(tiny.bert(), tiny.ids(1), "pa-lrp", **options)
