"""Models of other people, each held against a computation of its own: autograd by hand, or the usual spelling.

Gemma 4, Qwen3-MoE, ViTMAE, the model of Ali et al. (ICML 2022), VQGAN's attention, multiple choice, PaliGemma, Gemma 3.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
import transformers
from torch import nn
from transformers.models.qwen3_moe import modeling_qwen3_moe

import whence
from tests.support.checks import EXACT, close, relative
from tests.support.goldens import golden, load_attention_only_bert

modeling_gemma4 = pytest.importorskip(
    "transformers.models.gemma4.modeling_gemma4", reason="transformers has no Gemma 4"
)

FLOAT32_INSIDE = 2e-6  # HuggingFace computes norms, rotations and the eager softmax in float32
RELPROP = 1e-7  # LRP divides by sums near zero, which amplifies rounding
MAPS = ["attention", "rollout", "generic-attention", "grad-cam", "transformer-attribution"]
TEXT = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DECODER = TEXT | {"num_key_value_heads": 2, "head_dim": 4, "initializer_range": 0.3}


def ids(*shape, seed=0):
    return torch.randint(5, 60, shape, generator=torch.Generator().manual_seed(seed))


def randomise(model, seed=0):
    """Draw weights large enough for attention that is not flat, and norms and biases that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(0.4 * draw if p.dim() > 1 or "bias" in name else 1 + 0.2 * draw)
    return model.double().eval()


def limit(method):
    return RELPROP if method in ("transformer-attribution", "partial-lrp") else EXACT


def at_last_token(outputs):
    return outputs.logits[:, -1, 5]


# -- Gemma 4: a norm by torch.pow(mean_square, -0.5) -------------------------------------------------------------------


def gemma4(**options):
    config = transformers.Gemma4TextConfig(
        **DECODER, global_head_dim=4, sliding_window=4, vocab_size_per_layer_input=60,
        **{"hidden_size_per_layer_input": 4, **options},
    )  # fmt: skip
    return randomise(transformers.Gemma4ForCausalLM(config))


def by_rsqrt(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def by_rsqrt_detached(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps).detach()


def in_float64(self, x):
    """Gemma's norm without its conversion to float32."""
    return self._norm(x) * self.weight if self.with_scale else self._norm(x)


GEMMA_METHODS = {  # of a model with embeddings in every layer, LibraGrad has the read-outs that need no common blocks
    "attn-lrp": {}, "pa-lrp": {}, "res-lrp": {}, "libragrad": {"readout": "input-x-gradient"}, "conservative-lrp": {},
}  # fmt: skip


@pytest.mark.parametrize("method", GEMMA_METHODS)
def test_gemma4_unmodified_is_explained_as_with_rsqrt(monkeypatch, method):
    model, inputs = gemma4(), ids(2, 7)
    found = whence.explain(model, inputs, method, at_last_token, **GEMMA_METHODS[method])
    monkeypatch.setattr(modeling_gemma4.Gemma4RMSNorm, "_norm", by_rsqrt)
    expected = whence.explain(model, inputs, method, at_last_token, **GEMMA_METHODS[method])
    close(found.logits, expected.logits, FLOAT32_INSIDE)
    close(found.scores, expected.scores, 10 * FLOAT32_INSIDE)
    assert set(found.coverage.plain) == set(expected.coverage.plain)


@pytest.mark.parametrize("method", GEMMA_METHODS)
def test_gemma4_in_float64_is_explained_as_with_rsqrt(monkeypatch, method):
    monkeypatch.setattr(modeling_gemma4.Gemma4RMSNorm, "forward", in_float64)
    model, inputs = gemma4(), ids(2, 7)
    found = whence.explain(model, inputs, method, at_last_token, **GEMMA_METHODS[method])
    monkeypatch.setattr(modeling_gemma4.Gemma4RMSNorm, "_norm", by_rsqrt)
    expected = whence.explain(model, inputs, method, at_last_token, **GEMMA_METHODS[method])
    close(found.scores, expected.scores, EXACT)


def test_gemma4_norm_rule_is_a_detached_denominator(monkeypatch):
    """The rule for norms alone is the gradient of a model whose norms detach their denominator."""
    monkeypatch.setattr(modeling_gemma4.Gemma4RMSNorm, "forward", in_float64)
    model, inputs = gemma4(hidden_size_per_layer_input=0), ids(2, 7)
    found = whence.explain(
        model, inputs, "conservative-lrp", at_last_token, at="token", heads=False, activations="gradient"
    )
    monkeypatch.setattr(modeling_gemma4.Gemma4RMSNorm, "_norm", by_rsqrt_detached)
    x = model.get_input_embeddings()(inputs).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(at_last_token(model(inputs_embeds=x)).sum(), x)
    close(found.scores, (x * gradient).sum(-1), EXACT)


# -- Qwen3-MoE: a router that divides by the sum of its weights --------------------------------------------------------


class Float64Torch:
    """``torch`` for a modelling file that converts to float32 inside: it converts to float64 instead."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def qwen3_moe(norm_topk_prob):
    config = transformers.Qwen3MoeConfig(
        **DECODER, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2, norm_topk_prob=norm_topk_prob,
        tie_word_embeddings=False, attn_implementation="eager", experts_implementation="eager",
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config).double().eval()
    with torch.no_grad():
        for i, (name, p) in enumerate(sorted(model.named_parameters())):
            wave = torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (1.3 + 0.1 * i) + i).view_as(p)
            p.copy_(1 + 0.3 * wave if name.endswith("norm.weight") else 0.6 * wave)
    return model


QWEN_IDS = torch.tensor([[5, 17, 42, 8, 33, 21, 50]])
#: input x gradient of LXT (git f043441, transformers 5.22) in float64, of the logit of token 5 behind the last position
PUBLISHED = {
    True: [
        0.00525907937538316, 0.0110653748483907, -0.0298085782651608, 0.0387355943485456, 0.0212819253471197,
        -0.0165356053946986, 1.3029647635138,
    ],
    False: [
        0.0164501597087726, -0.00279006545390659, -0.0285502403794278, 0.0385591300135134, 0.0163053846265806,
        -0.0123520711102824, 1.29856743930147,
    ],
}  # fmt: skip


def scaled_gradient(y, factor):
    """Return ``y`` with its gradient multiplied by ``factor``."""
    return factor * y + (y - factor * y).detach()


def root_mean_square(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt().detach() * weight


def silu_by_ratio(x):
    ratio = (F.silu(x) / (x + 1e-10)).detach()
    return ratio * x + (F.silu(x) - ratio * x).detach()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def qwen_attention(w, x, config, cos, sin):
    """AttnLRP: the gradient is halved behind both products, so that q and k have a quarter and v a half."""
    size, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    q, k, v = (F.linear(x, w[f"self_attn.{n}_proj.weight"]).unflatten(-1, (-1, size)).transpose(1, 2) for n in "qkv")
    q = rotate(root_mean_square(q, w["self_attn.q_norm.weight"], config.rms_norm_eps), cos, sin)
    k = rotate(root_mean_square(k, w["self_attn.k_norm.weight"], config.rms_norm_eps), cos, sin)
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    A = (scaled_gradient(q @ k.mT, 0.5) / size**0.5).masked_fill(future, float("-inf")).softmax(-1)
    return F.linear(scaled_gradient(A @ v, 0.5).transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])


def qwen_experts(w, x, config):
    """Every expert for every token, weighted by the router: softmax, selection and division are differentiated."""
    p = F.linear(x, w["mlp.gate.weight"]).softmax(-1)
    p = p * torch.zeros_like(p).scatter(-1, p.topk(config.num_experts_per_tok, -1).indices, 1.0)
    if config.norm_topk_prob:
        p = p / p.sum(-1, keepdim=True)
    total = torch.zeros_like(x)
    for i in range(config.num_experts):
        gate, up = F.linear(x, w["mlp.experts.gate_up_proj"][i]).chunk(2, -1)
        y = F.linear(scaled_gradient(silu_by_ratio(gate) * up, 0.5), w["mlp.experts.down_proj"][i])
        total = total + scaled_gradient(p[..., i : i + 1] * y, 0.5)
    return total


def qwen_by_hand(model, tokens):
    """Relevance of each token's embedding by AttnLRP, as LXT defines it for Qwen3-MoE, and the logits."""
    config, weights = model.config, dict(model.named_parameters())
    x = start = weights["model.embed_tokens.weight"][tokens].detach().requires_grad_()
    cos, sin = model.model.rotary_emb(x, torch.arange(tokens.shape[1])[None])
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        w = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        y = root_mean_square(x, w["input_layernorm.weight"], config.rms_norm_eps)
        x = x + qwen_attention(w, y, config, cos, sin)
        y = root_mean_square(x, w["post_attention_layernorm.weight"], config.rms_norm_eps)
        x = x + qwen_experts(w, y, config)
    x = root_mean_square(x, weights["model.norm.weight"], config.rms_norm_eps)
    logits = F.linear(x, weights["lm_head.weight"])
    (gradient,) = torch.autograd.grad(logits[:, -1, 5].sum(), start)
    return (start * gradient).sum(-1).detach(), logits.detach()


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_qwen3_moe_is_explained_as_by_lxt(monkeypatch, norm_topk_prob):
    """LXT leaves the router alone: its softmax, its top-k and its division all have their plain gradient."""
    monkeypatch.setattr(modeling_qwen3_moe, "torch", Float64Torch())
    model = qwen3_moe(norm_topk_prob)
    expected, logits = qwen_by_hand(model, QWEN_IDS)
    close(model(QWEN_IDS).logits, logits, EXACT)
    close(expected[0], PUBLISHED[norm_topk_prob], EXACT)
    found = whence.explain(model, QWEN_IDS, "attn-lrp", at_last_token, at="token")
    close(found.scores, expected, EXACT)


def test_qwen3_moe_unmodified_is_explained_as_by_lxt():
    found = whence.explain(qwen3_moe(True), QWEN_IDS, "attn-lrp", at_last_token, at="token")
    close(found.scores[0], PUBLISHED[True], FLOAT32_INSIDE)


# -- ViTMAE: patches in the order of a noise ---------------------------------------------------------------------------

SHUFFLED = [*MAPS, "conservative-lrp", "attn-lrp", "gradient-x-input", "integrated-gradients", "occlusion"]


def vit_mae(kind):
    config = transformers.ViTMAEConfig(
        image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=4,
        decoder_intermediate_size=24, mask_ratio=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    return randomise(getattr(transformers, kind)(config))


def of_the_class_token(outputs):
    return outputs.last_hidden_state[:, 0, :5].pow(3).sum(-1)


def of_a_reconstructed_patch(outputs):
    return outputs.logits[:, 5, :7].pow(3).sum(-1)


def images(size=(16, 16), seed=1):
    return torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


IN_ORDER = torch.arange(16, dtype=torch.float64).expand(2, 16)
NOISE = torch.rand(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
MAE = {"ViTMAEModel": of_the_class_token, "ViTMAEForPreTraining": of_a_reconstructed_patch}


@pytest.mark.parametrize("method", SHUFFLED)
@pytest.mark.parametrize("kind", MAE)
def test_shuffled_patches_return_to_their_places(kind, method):
    """With nothing masked, the order of the patches does not matter to the model, nor to ``e.patches``."""
    model, target = vit_mae(kind), MAE[kind]
    usual, shuffled = (
        whence.explain(model, {"pixel_values": images(), "noise": noise}, method, target) for noise in (IN_ORDER, NOISE)
    )
    close(shuffled.value, usual.value, EXACT)
    assert usual.grid == shuffled.grid == (4, 4)
    close(shuffled.patches, usual.patches, limit(method))
    close(shuffled.heatmap(), usual.heatmap(), limit(method))


def test_patches_of_vit_mae_sum_their_pixels():
    """Without position embeddings and bias, a patch's score is the sum of gradient x input over its pixels."""
    model = vit_mae("ViTMAEModel")
    with torch.no_grad():
        model.embeddings.position_embeddings.zero_()
        model.embeddings.patch_embeddings.projection.bias.zero_()
    x = images().requires_grad_()
    (gradient,) = torch.autograd.grad(of_the_class_token(model(x, noise=NOISE)).sum(), x)
    expected = (x * gradient).sum(1).detach()
    inputs = {"pixel_values": images(), "noise": NOISE}
    pixels = whence.explain(model, inputs, "gradient-x-input", of_the_class_token, at="pixel")
    close(pixels.heatmap(), expected, EXACT)
    patches = whence.explain(model, inputs, "gradient-x-input", of_the_class_token)
    close(patches.patches, expected.unfold(1, 4, 4).unfold(2, 4, 4).sum((-1, -2)), EXACT)


# -- the model of Ali et al., ICML 2022: a LayerNorm by hand -----------------------------------------------------------

#: mode of the published code -> method, options, and what the reference detaches
ALI_MODES = {
    "none_GI": ("gradient-x-input", {}, ()),
    "AH": ("conservative-lrp", {"norms": False}, ("attention",)),
    "LN": ("conservative-lrp", {"heads": False}, ("std",)),
    "AH_LN": ("conservative-lrp", {}, ("attention", "std")),
    "LN_meandetach": ("conservative-lrp", {"heads": False, "detach_mean": True}, ("std", "mean")),
    "AH_LN_meandetach": ("conservative-lrp", {"detach_mean": True}, ("attention", "std", "mean")),
}


def by_their_ratio(layer, x):
    """A linear layer as in their evaluation mode with gamma 0: its output times a constant ratio of 1."""
    return layer(x) * (layer(x) / layer(x)).data


class AttentionOnlyBert(nn.Module):
    """Their model: attention without MLP, scores without scale, ``(x - mean) / (std + eps)`` with an unbiased std."""

    def __init__(self, linear):
        super().__init__()
        bert = load_attention_only_bert()
        self.embeddings, self.layers = bert.bert.embeddings, bert.bert.encoder.layer
        self.pooler, self.classifier, self.linear = bert.bert.pooler.dense, bert.classifier, linear

    def norm(self, x, detached):
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        mean, std = (t.detach() if name in detached else t for name, t in (("mean", mean), ("std", std)))
        return (x - mean) / (std + 1e-12)

    def attend(self, layer, x, detached):
        q, k, v = (
            self.linear(f, x).view(*x.shape[:2], 4, 12).permute(0, 2, 1, 3)
            for f in (layer.self.query, layer.self.key, layer.self.value)
        )
        A = nn.Softmax(dim=-1)(torch.matmul(q / 12**0.5, k.transpose(-1, -2)))  # whose queries hold a factor sqrt(12)
        A = A.detach() if "attention" in detached else A
        return layer.output.dense(torch.matmul(A, v).permute(0, 2, 1, 3).contiguous().view(*x.shape))

    def encode(self, x, detached=()):
        for layer in self.layers:
            x = self.norm(self.attend(layer.attention, x, detached) + x, detached)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))

    def forward(self, input_ids):
        return {"logits": self.encode(self.embeddings(input_ids=input_ids))}


@pytest.mark.parametrize("mode", ALI_MODES)
@pytest.mark.parametrize("linear", [lambda f, x: f(x), by_their_ratio], ids=["linear", "ratio"])
def test_a_layernorm_by_hand_has_both_settings_of_its_mean(linear, mode):
    method, options, detached = ALI_MODES[mode]
    published, model = golden("04_icml22_ali", "nopad"), AttentionOnlyBert(linear).eval()
    tokens = torch.tensor(published["input_ids"])
    close(model(tokens)["logits"], published["logits"], EXACT)
    for target in range(3):
        x = model.embeddings(input_ids=tokens).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model.encode(x, detached)[:, target].sum(), x)
        expected = (x * gradient).sum(-1).detach()
        close(expected[0], published[f"cl{target}_{mode}__R"], EXACT)
        found = whence.explain(model, tokens, method, target, **options)
        close(found.scores, expected, EXACT)


# -- VQGAN, timm's Attention2d: values @ attention^T, features before positions ----------------------------------------


class UsualBlock(nn.Module):
    """``softmax(q k^T) v`` over ``[batch, positions, features]``."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.heads = norm(), 2
        self.q, self.k, self.v, self.out = (nn.Linear(12, 12) for _ in range(4))

    def normed(self, x):
        return self.norm(x.mT).mT if isinstance(self.norm, nn.GroupNorm) else self.norm(x)

    def forward(self, x):
        y = self.normed(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        A = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        return x + self.out((A @ v).transpose(1, 2).flatten(2))


class PositionsLast(UsualBlock):
    """``v @ A^T`` over ``[batch, features, positions]``."""

    def normed(self, x):
        return self.norm(x) if isinstance(self.norm, nn.GroupNorm) else self.norm(x.mT).mT

    def forward(self, x):
        y = self.normed(x)
        q, k, v = ((f.weight @ y + f.bias[:, None]).unflatten(1, (self.heads, -1)) for f in (self.q, self.k, self.v))
        A = torch.softmax(q.transpose(-2, -1) @ k * q.shape[-2] ** -0.5, -1)
        return x + (self.out.weight @ (v @ A.transpose(-2, -1)).flatten(1, 2) + self.out.bias[:, None])


class Vqgan(UsualBlock):
    """Convolutions of one pixel over ``[batch, features, height, width]``, and ``torch.bmm``."""

    def normed(self, x):
        if isinstance(self.norm, nn.GroupNorm):
            return self.norm(x)
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward(self, x):
        batch, features, *size = x.shape
        y = self.normed(x)
        q, k, v = (
            F.conv2d(y, f.weight[..., None, None], f.bias).reshape(batch * self.heads, features // self.heads, -1)
            for f in (self.q, self.k, self.v)
        )
        A = F.softmax(torch.bmm(q.permute(0, 2, 1), k) * q.shape[1] ** -0.5, dim=2)
        read = torch.bmm(v, A.permute(0, 2, 1)).reshape(batch, features, *size)
        return x + F.conv2d(read, self.out.weight[..., None, None], self.out.bias)


#: from ``[batch, features, height, width]`` to what the blocks read, and from there to ``[batch, positions, features]``
LAYOUTS = {
    UsualBlock: (lambda x: x.flatten(2).mT, lambda x: x),
    PositionsLast: (lambda x: x.flatten(2), lambda x: x.mT),
    Vqgan: (lambda x: x, lambda x: x.flatten(2).mT),
}


class ImageClassifier(nn.Module):
    """Patches, two blocks of one kind, and the mean over positions."""

    def __init__(self, block, norm):
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, 12, 4, 4), nn.ModuleList(block(norm) for _ in range(2))
        self.norm, self.head, self.layout = nn.LayerNorm(12), nn.Linear(12, 3), LAYOUTS[block]

    def forward(self, x):
        before, after = self.layout
        x = before(self.patches(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(after(x)).mean(1))


FEATURE_NORMS = {"layer norm": lambda: nn.LayerNorm(12), "group norm": lambda: nn.GroupNorm(3, 12)}


@pytest.mark.parametrize("method", [*MAPS, "legrad", "partial-lrp", "attn-lrp", "conservative-lrp"])
@pytest.mark.parametrize("norm", FEATURE_NORMS)
@pytest.mark.parametrize("block", [PositionsLast, Vqgan])
def test_values_times_transposed_attention(block, norm, method):
    usual, found = (randomise(ImageClassifier(b, FEATURE_NORMS[norm])) for b in (UsualBlock, block))
    x = images((16, 20))
    close(found(x), usual(x), EXACT)
    a, b = (whence.explain(m, x, method, 1) for m in (usual, found))
    assert a.grid == b.grid == (4, 5)
    assert float(a.scores.abs().max()) > 0 or method == "grad-cam"  # whose positive part may be empty
    close(b.scores, a.scores, limit(method))


# -- multiple choice: [batch, choices, tokens] -------------------------------------------------------------------------


class OneChoice(nn.Module):
    """The encoder and the classifier of a multiple-choice model over the tokens of one choice."""

    def __init__(self, model):
        super().__init__()
        self.bert, self.classifier = model.bert, model.classifier

    def forward(self, input_ids, attention_mask, token_type_ids):
        read = self.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return self.classifier(read.pooler_output)


def multiple_choice(implementation="sdpa"):
    config = transformers.BertConfig(**TEXT, attn_implementation=implementation)
    return randomise(transformers.BertForMultipleChoice(config))


def choices(lengths):
    """Two samples of three choices with up to seven tokens, padded on the right."""
    mask = (torch.arange(7) < torch.tensor(lengths)[..., None]).long()
    types = (torch.arange(7) > 2).long().expand_as(mask).contiguous()
    return {"input_ids": ids(2, 3, 7) * mask, "attention_mask": mask, "token_type_ids": types}


LENGTHS = {"equal": [[7, 7, 7], [7, 7, 7]], "padded": [[7, 5, 6], [4, 7, 5]]}
CHOICE_METHODS = [*MAPS, "attention-flow", "legrad", "partial-lrp", "attn-lrp", "conservative-lrp", "gradient-x-input"]


@pytest.mark.parametrize("method", CHOICE_METHODS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_choice_is_explained_as_if_it_stood_alone(lengths, method):
    """The logit of a choice depends on the tokens of that choice alone."""
    model, inputs = multiple_choice(), choices(LENGTHS[lengths])
    for choice in (0, 2):
        found = whence.explain(model, inputs, method, choice)
        alone = {name: x[:, choice] for name, x in inputs.items()}
        expected = whence.explain(OneChoice(model).eval(), alone, method, 0)
        close(found.value, expected.value, EXACT)
        close(found.scores, expected.scores, limit(method))


def test_each_sample_has_its_own_choice():
    model, inputs = multiple_choice(), choices(LENGTHS["padded"])
    found = whence.explain(model, inputs, "rollout", [2, 0])
    for i, choice in enumerate([2, 0]):
        alone = {name: x[i : i + 1, choice] for name, x in inputs.items()}
        close(found.scores[i : i + 1], whence.explain(OneChoice(model).eval(), alone, "rollout", 0).scores, EXACT)


def test_attention_of_a_choice_is_the_row_of_its_class_token():
    model, inputs = multiple_choice("eager"), choices(LENGTHS["padded"])
    for choice in range(3):
        maps = model.bert(**{name: x[:, choice] for name, x in inputs.items()}, output_attentions=True).attentions
        found = whence.explain(model, inputs, "attention", choice)
        close(found.scores, maps[-1].mean(1)[:, 0], EXACT)


# -- PaliGemma, Gemma 3: image patches between the tokens of a text ----------------------------------------------------

IMAGE_TOKEN = 4
VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "patch_size": 4, "vision_use_head": False,
}  # fmt: skip


def paligemma():
    """Nine patches become nine tokens."""
    config = transformers.PaliGemmaConfig(
        text_config=DECODER | {"model_type": "gemma"}, vision_config=VISION | {"image_size": 12}, projection_dim=16,
        image_token_id=IMAGE_TOKEN, attn_implementation="eager",
    )  # fmt: skip
    return transformers.PaliGemmaForConditionalGeneration(config), 9, 1


def gemma3():
    """Sixteen patches become four tokens, each the mean of four."""
    text = DECODER | {"model_type": "gemma3_text", "sliding_window": 40, "query_pre_attn_scalar": 4}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=VISION | {"image_size": 16}, image_token_id=IMAGE_TOKEN, mm_tokens_per_image=4,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.Gemma3ForConditionalGeneration(config), 4, 2


def with_image(build):
    """A model, its inputs, the positions of the image tokens, and which patches each of these is the mean of."""
    model, tokens, pooled = build()
    text, size = ids(2, 7), 4 * pooled * int(tokens**0.5)
    text = torch.cat([text[:, :3], torch.full((2, tokens), IMAGE_TOKEN), text[:, 3:]], 1)
    inputs = {
        "input_ids": text, "attention_mask": torch.ones_like(text), "pixel_values": images((size, size)),
        "token_type_ids": torch.zeros_like(text) if build is paligemma else (text == IMAGE_TOKEN).long(),
    }  # fmt: skip
    side = size // 4
    cells = torch.eye(side * side).view(-1, side, side)[:, None]
    share = F.avg_pool2d(cells, pooled).flatten(1).mT.double()  # [image tokens, patches]
    return randomise(model), inputs, slice(3, 3 + tokens), share


def image_relevance(model, inputs, method):
    """The image's stream, or ``None`` where a warning or an error tells the user that it is not complete."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = whence.explain(model, inputs, method, at_last_token)
        except whence.EngineError:
            raise
        except whence.WhenceError:
            return None
    return None if any(issubclass(w.category, whence.WhenceWarning) for w in seen) else found.streams["image"]


@pytest.mark.parametrize("method", MAPS)
@pytest.mark.parametrize("build", [paligemma, gemma3])
def test_an_image_that_matters_has_no_empty_map(build, method):
    model, inputs, _, _ = with_image(build)
    x = inputs["pixel_values"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(at_last_token(model(**{**inputs, "pixel_values": x})).sum(), x)
    assert float(gradient.abs().max()) > 0.01
    found = image_relevance(model, inputs, method)
    assert found is None or float(found.abs().max()) > 0


def last_row(model, inputs, method):
    """The last attention's row of the last token, or its GradCAM: the mean over heads of ``w_h A_h``, clamped at 0."""
    outputs = model(**inputs, output_attentions=True)
    A = outputs.attentions[-1]
    if method == "attention":
        return A[:, :, -1].mean(1).detach()
    (gradient,) = torch.autograd.grad(at_last_token(outputs).sum(), A)
    weights = gradient[:, :, -1, :-1].mean(-1, keepdim=True)
    return (A[:, :, -1] * weights).mean(1).clamp(min=0).detach()


@pytest.mark.parametrize("method", ["attention", "grad-cam"])
@pytest.mark.parametrize("build", [paligemma, gemma3])
def test_the_last_attention_to_image_tokens_goes_to_their_patches(build, method):
    """The last attention to a patch is that of the language model to the token that the patch became part of."""
    model, inputs, image, share = with_image(build)
    row = last_row(model, inputs, method)
    assert bool((row[:, image].sum(1) > 0).all())
    found = whence.explain(model, inputs, method, at_last_token)
    close(found.streams["image"], row[:, image] @ share, FLOAT32_INSIDE)
    row[:, image] = 0
    close(found.streams["text"], row, FLOAT32_INSIDE)


@pytest.mark.parametrize("build", [paligemma, gemma3])
def test_rollout_goes_on_in_the_image_encoder(build):
    """The product of the language model's layers, then of the image encoder's for the columns of image tokens."""

    def product(maps):
        total = torch.eye(maps[0].shape[-1], dtype=torch.float64)
        for A in maps:
            total = (A.mean(1).double().detach() + torch.eye(A.shape[-1])) / 2 @ total
        return total

    model, inputs, image, share = with_image(build)
    row = product(model(**inputs, output_attentions=True).attentions)[:, -1]
    encoder = product(model.model.vision_tower(inputs["pixel_values"], output_attentions=True).attentions)
    found = whence.explain(model, inputs, "rollout", at_last_token)
    close(found.streams["image"], ((row[:, image] @ share)[:, None] @ encoder)[:, 0], FLOAT32_INSIDE)
    assert relative(found.streams["image"].sum(1) + found.streams["text"].sum(1), torch.ones(2)) < FLOAT32_INSIDE
