"""Methods that read a model block by block: the published numbers, a second way to them, and what must always hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.goldens import golden, load
from tests.support.runs import traced
from tests.support.snapshot import snapshot
from whence.explainer.explain import explain

FLOAT32 = 1e-4
VARIANTS = [
    ("token-tm", {}), ("token-tm", {"rules": "libra"}), ("bi-attention", {"steps": 3}),
    ("bi-attention", {"steps": 3, "variant": "token"}), ("legrad", {}), ("legrad", {"layers": None}),
]  # fmt: skip
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
variants = pytest.mark.parametrize(("method", "options"), VARIANTS)
dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, FLOAT32)])


# -- published numbers ---------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("seed", ["S0", "S1"])
@pytest.mark.parametrize(("name", "rules"), [("NG", "gradient"), ("LX1", "libra"), ("LX-NA", "ali-lrp")])
def test_token_tm_is_the_published_one(name, rules, seed, dtype, tolerance):
    """[CLS] is hundreds of times the largest patch, so patches are compared apart. S1 explains the probability."""
    arrays = golden("12_libragrad_vit")
    model = load("ViTForImageClassification", "12_libragrad_vit", dtype=dtype)
    classes = torch.from_numpy(arrays[f"{seed}_{name}_target"]).long()
    probability = lambda outputs: outputs.logits.softmax(-1).gather(1, classes[:, None])[:, 0]  # noqa: E731
    target = classes.tolist() if seed == "S0" else probability
    e = whence.explain(model, torch.from_numpy(arrays["pixel_values"]).to(dtype), "token-tm", target, rules=rules)
    expected = arrays[f"{seed}_{name}_TokenTM_cls_row"]
    assert relative(e.scores, expected) < tolerance
    assert relative(e.scores[:, 1:], expected[:, 1:]) < tolerance


@pytest.mark.parametrize("variant", ["head", "token"])
@pytest.mark.parametrize(
    ("start", "dtype", "tolerance"),
    [(1, torch.float64, EXACT), (2, torch.float64, EXACT), (4, torch.float64, EXACT), (2, torch.float32, FLOAT32)],
)
def test_bi_attention_is_the_published_one(variant, start, dtype, tolerance):
    """Two pictures, two classes of each, in one batch."""
    arrays = golden("20_biattn_vit")
    model = load("ViTForImageClassification", "20_biattn_vit", dtype=dtype)
    pixels = torch.from_numpy(arrays["pixel_values"]).to(dtype).repeat_interleave(2, 0)
    names = [f"img{i}_{which}" for i in range(2) for which in ("argmax", "argmin")]
    classes = [int(arrays[f"{name}_target"]) for name in names]
    options = {"variant": variant, "start_layer": start - 1}
    e = whence.explain(model, {"pixel_values": pixels}, "bi-attention", classes, **options)
    for scores, name in zip(e.scores, names, strict=True):
        assert relative(scores[1:], arrays[f"{name}_{variant}_start{start}"]) < tolerance


class Similarity(nn.Module):
    """How similar CLIP finds a picture to each of some texts."""

    def __init__(self, clip, texts):
        super().__init__()
        self.clip, self.texts = clip, texts

    def forward(self, pixel_values):
        features = self.clip.visual_projection(self.clip.vision_model(pixel_values).pooler_output)
        return F.normalize(features, dim=-1) @ self.texts.T


@dtypes
@pytest.mark.parametrize(("name", "layers"), [("L-2", 2), ("L0", None), ("L-1", 1)])
def test_legrad_is_the_published_one(name, layers, dtype, tolerance):
    """Three texts and one picture, which is given three times. The published map is upsampled, without [CLS]."""
    arrays = golden("10_legrad_clip")
    texts = torch.from_numpy(arrays["text_embedding"]).to(dtype)
    model = Similarity(load("CLIPModel", "10_legrad_clip", dtype=dtype), texts)
    pixels = torch.from_numpy(arrays["pixel_values"]).to(dtype).expand(3, -1, -1, -1)
    e = whence.explain(model, {"pixel_values": pixels}, "legrad", [0, 1, 2], layers=layers)
    assert relative(e.logits[:1], arrays["cosine"]) < tolerance
    expected = arrays[f"{name}_REIMPL_patch_per_layer"]
    assert relative(e.layers[:, -len(expected) :, 1:].transpose(0, 1), expected) < tolerance
    assert not e.layers[:, : -len(expected)].any()
    upsampled = F.interpolate(e.patches[None], scale_factor=8, mode="bilinear")
    assert relative(upsampled, arrays[f"{name}_before_minmax"]) < tolerance


# -- a second way ----------------------------------------------------------------------------------------------------


class Seen:
    """A HuggingFace model run plainly, with its attentions, and what its modules returned."""

    def __init__(self, model, inputs, modules, target, scale=1.0, entry=None):
        self.out = {name: [] for name in modules}
        hooks = [
            module.register_forward_hook(lambda _, __, out, name=name: self.out[name].append(_first(out)))
            for name, chosen in modules.items()
            for module in chosen
        ]
        if entry is not None:
            hooks.append(entry.register_forward_hook(lambda _, __, out: out * scale))
        outputs = model(**inputs, output_attentions=True)
        for hook in hooks:
            hook.remove()
        self.attentions, self.logits = outputs.attentions, outputs.logits
        logits = self.logits if self.logits.dim() == 2 else self.logits[:, -1]
        self.gradients = torch.autograd.grad(logits[:, target].sum(), self.attentions, retain_graph=True)


def _first(out):
    return out[0] if isinstance(out, tuple) else out


def weight(x, y):
    return y.norm(dim=-1) / (x.norm(dim=-1) + 1e-8) * F.cosine_similarity(x, y, dim=-1).softmax(-1)


def contributions(before, between, after, attentions, gradients):
    """TokenTM's matrix, step by step as it is written."""
    eye = torch.eye(before[0].shape[1], dtype=before[0].dtype)
    C = torch.diag_embed(before[0].norm(dim=-1))
    for x, y, z, A, g in zip(before, between, after, attentions, gradients, strict=True):
        C = (eye + A.mean(1) @ torch.diag_embed(weight(x, y)) * g.clamp(min=0).mean(1)) @ C
        if y is not z:
            C = (eye + torch.diag_embed(weight(y, z))) @ C
    return C


def test_token_tm_of_a_post_norm_model_compares_normed_tokens():
    model, inputs = tiny.bert(3, implementation="eager").double(), {"input_ids": tiny.ids(2)}
    layers = model.bert.encoder.layer
    modules = {"entry": [model.bert.embeddings], "between": [x.attention.output for x in layers], "after": layers}
    seen = Seen(model, inputs, modules, 1)
    before = [*seen.out["entry"], *seen.out["after"][:-1]]
    expected = contributions(before, seen.out["between"], seen.out["after"], seen.attentions, seen.gradients)[:, 0]
    scores = whence.explain(model, inputs, "token-tm", 1).scores
    assert relative(scores[:, 1:], expected[:, 1:]) < EXACT
    assert relative(scores, expected) < EXACT


def test_token_tm_of_a_parallel_block_transforms_once():
    torch.manual_seed(0)
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, attn_implementation="eager")).double().eval()
    inputs = {"input_ids": tiny.ids(2)}
    seen = Seen(model, inputs, {"entry": [model.gpt_neox.emb_dropout], "after": model.gpt_neox.layers}, 3)
    after = seen.out["after"]
    expected = contributions([*seen.out["entry"], after[0]], after, after, seen.attentions, seen.gradients)[:, -1]
    assert relative(whence.explain(model, inputs, "token-tm", 3).scores, expected) < 1e-6  # a softmax in float32


def test_exposed_attention_is_as_constant_as_detached_attention():
    """To read a gradient at the maps changes no other gradient."""
    model, pixels = tiny.vit(3).double(), {"pixel_values": tiny.pixels(2).double()}
    _, exposed = traced(model, pixels, "token-tm", 1, rules="libra")
    _, detached = traced(model, pixels, "libragrad", 1, readout="input-x-gradient")
    gradients = [run.backward([b.tensor for b in run.boundaries]) for run in (exposed, detached)]
    for a, b in zip(*gradients, strict=True):
        assert relative(a, b) < EXACT


@pytest.mark.parametrize("start", [0, 2])
def test_bi_attention_of_bert_scales_what_enters_the_first_block(start):
    model, inputs, steps = tiny.bert(3, implementation="eager").double(), {"input_ids": tiny.ids(1)}, 5
    layers, embeddings = model.bert.encoder.layer, model.bert.embeddings
    modules = {"values": [x.attention.self.value for x in layers], "entry": [embeddings], "after": layers}
    seen = Seen(model, inputs, modules, 1)
    line = [Seen(model, inputs, {}, 1, a, embeddings).gradients[-1] for a in torch.linspace(0, 1, steps).tolist()]
    feedback = (sum(line) / steps).clamp(min=0).mean(1)[0]
    before = [*seen.out["entry"], *seen.out["after"]]
    R = {"head": torch.eye(7, dtype=torch.float64), "token": torch.eye(7, dtype=torch.float64)}
    for l in range(start, 3):
        A, g = seen.attentions[l][0], seen.gradients[l][0]
        share = torch.stack([(a.T @ b).abs().mean() for a, b in zip(A, g, strict=True)])
        R["head"] = R["head"] + torch.einsum("h,hqk->qk", share / share.sum(), A) @ R["head"]
        written = F.linear(seen.out["values"][l][0], layers[l].attention.output.dense.weight)
        ratio = written.norm(dim=-1) / before[l][0].norm(dim=-1)
        R["token"] = R["token"] + A.mean(0) @ torch.diag(ratio) @ R["token"]
    for variant in ("head", "token"):
        options = {"variant": variant, "start_layer": start, "steps": steps}
        e = whence.explain(model, inputs, "bi-attention", 1, **options)
        assert relative(e.scores[0], (feedback * R[variant])[0]) < EXACT
        assert (e.heads is None) == (variant == "token")


class Pooled(nn.Module):
    """A mean over patches: every row but that of [CLS] is read."""

    def __init__(self):
        super().__init__()
        self.vit = tiny.vit().vit

    def forward(self, pixel_values):
        return self.vit(pixel_values).last_hidden_state[:, 1:].mean(1)[:, :3]


def test_bi_attention_of_a_mean_over_patches_is_the_mean_of_their_rows():
    """As the published code has it for MAE, here with every row written out."""
    model, pixels = Pooled().double(), {"pixel_values": tiny.pixels(1).double()}
    chosen, run = traced(model, pixels, "bi-attention", 1, steps=2)
    reading = chosen.read(run)
    records = run.trace.attentions
    A = [r.arrange(r.probabilities.detach())[0] for r in records]
    g = [r.arrange(x)[0] for r, x in zip(records, run.backward([r.probabilities for r in records]), strict=True)]
    assert not g[-1][:, 0].any()
    R = torch.eye(10, dtype=torch.float64)
    for a, b in zip(A, g, strict=True):
        share = (a.mT @ b).abs().mean((1, 2))
        R = R + torch.einsum("h,hqk->qk", share / share.sum(), a) @ R
    zero = traced(model, {"pixel_values": pixels["pixel_values"] * 0}, "bi-attention", 1)[1]
    last = zero.trace.attentions[-1]
    feedback = ((g[-1] + last.arrange(zero.backward([last.probabilities])[0])[0]) / 2).clamp(min=0).mean(0)
    assert relative(reading.scores[0], (feedback * R)[1:].mean(0)) < EXACT


def legrad(after, attentions, head, hidden=None):
    """The sum over layers, written out, for one sample."""
    total = 0
    for x, A in zip(after, attentions, strict=True):
        (g,) = torch.autograd.grad(head(x.mean(1)), A, retain_graph=True)
        total = total + (g if hidden is None else g.masked_fill(hidden, 0)).clamp(min=0).mean((1, 2))
    return total[0]


def test_legrad_of_bert_asks_its_own_head():
    model, inputs = tiny.bert(3, implementation="eager").double(), {"input_ids": tiny.ids(1)}
    seen = Seen(model, inputs, {"after": model.bert.encoder.layer}, 1)
    head = lambda mean: model.classifier(model.bert.pooler(mean[:, None]))[0, 1]  # noqa: E731
    expected = legrad(seen.out["after"], seen.attentions, head)
    e = whence.explain(model, inputs, "legrad", 1, layers=None)
    assert relative(e.scores[0], expected) < EXACT
    assert relative(e.layers.sum(1), e.scores) < EXACT
    assert relative(e.heads.mean(-1), e.layers.sum(-1)) < EXACT
    expected = legrad(seen.out["after"][-2:], seen.attentions[-2:], head)
    assert relative(whence.explain(model, inputs, "legrad", 1).scores[0], expected) < EXACT


def test_legrad_of_a_causal_model_leaves_out_what_no_token_may_look_at():
    model, inputs = tiny.gpt2(3, implementation="eager").double(), {"input_ids": tiny.ids(1)}
    seen = Seen(model, inputs, {"after": model.transformer.h}, 5)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    head = lambda mean: model.lm_head(model.transformer.ln_f(mean))[0, 5]  # noqa: E731
    expected = legrad(seen.out["after"], seen.attentions, head, future)
    assert relative(whence.explain(model, inputs, "legrad", 5, layers=None).scores[0], expected) < EXACT


class SiglipSimilarity(nn.Module):
    """How similar SigLIP finds a picture to each of some texts, as the published code has it: without a scale."""

    def __init__(self, implementation="sdpa"):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
        config = SiglipVisionConfig(**sizes, image_size=12, patch_size=4, attn_implementation=implementation)
        self.vision, self.texts = SiglipVisionModel(config), nn.Parameter(torch.randn(3, 16))
        with torch.no_grad():
            for p in self.vision.parameters():
                p.copy_(0.4 * torch.randn(p.shape) + (p.dim() == 1) * 0.5)

    def forward(self, pixel_values):
        return F.normalize(self.vision(pixel_values).pooler_output, dim=-1) @ self.texts.T


def attended(own, query, x):
    """``nn.MultiheadAttention`` written out: its map ``[batch, heads, queries, keys]``, and what it returns."""
    weights = zip((query, x, x), own.in_proj_weight.chunk(3), own.in_proj_bias.chunk(3), strict=True)
    q, k, v = ((y @ w.T + b).unflatten(-1, (own.num_heads, -1)).transpose(1, 2) for y, w, b in weights)
    A = (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1)
    return A, own.out_proj((A @ v).transpose(1, 2).flatten(2))


def pool_of(head, x, norm=None):
    """SigLIP's pooling head by its own modules, with its attention's map."""
    A, pooled = attended(head.attention, head.probe.expand(len(x), -1, -1), x if norm is None else norm(x))
    return A, (pooled + head.mlp(head.layernorm(pooled)))[:, 0]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("layers", [2, None, 1])
def test_legrad_of_siglip_reads_its_pooling_attention(layers, implementation, norm):
    """``compute_legrad_siglip`` of the published code, before its correction and min-max, on the stock modules."""
    model, pixels = SiglipSimilarity(implementation).double().eval(), torch.randn(2, 3, 12, 12).double()
    head, last = model.vision.head, model.vision.post_layernorm
    plain = pool_of(head, model.vision(pixels).last_hidden_state)[1]
    assert relative(plain, model.vision(pixels).pooler_output) < EXACT
    states = model.vision(pixels, output_hidden_states=True).hidden_states[1:]
    expected = []
    for state in states[-(layers or 3) :]:
        A, pooled = pool_of(head, state.detach(), last if norm else None)
        similarity = (F.normalize(pooled, dim=-1) * model.texts[[1, 2]]).sum()
        (gradient,) = torch.autograd.grad(similarity, A)
        expected.append(gradient.clamp(min=0).mean(1)[:, 0])
    e = whence.explain(model, {"pixel_values": pixels}, "legrad", [1, 2], layers=layers, pool_norm=norm)
    assert relative(e.scores, sum(expected)) < EXACT
    assert relative(e.layers[:, -len(expected) :], torch.stack(expected, 1)) < EXACT
    assert not e.layers[:, : -len(expected)].any()
    assert float(e.scores.min(1).values.max()) < float(e.scores.max())
    alone = whence.explain(model, {"pixel_values": pixels[1:]}, "legrad", 2, layers=layers, pool_norm=norm)
    assert relative(alone.scores[0], e.scores[1]) < EXACT


class Latents(nn.Module):
    """Several learned queries read the tokens, of which the first is used (CoCa), or are made of the tokens."""

    def __init__(self, learned=True):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.embed, self.encoder = nn.Linear(6, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.query, self.norm_q, self.norm_k = nn.Parameter(torch.randn(4, 8)), nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention, self.norm, self.head = (
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.LayerNorm(8),
            nn.Linear(8, 3),
        )
        self.learned = learned

    def query_of(self, x):
        return self.norm_q(self.query).expand(len(x), -1, -1) if self.learned else x.mean(1, keepdim=True)

    def forward(self, x):
        x = self.norm_k(self.encoder(self.embed(x)))
        return self.head(self.norm(self.attention(self.query_of(x), x, x)[0]))[:, 0]


def test_legrad_of_several_latents_reads_the_first_as_published_for_coca():
    model, x = Latents().double().eval(), torch.randn(2, 5, 6).double()
    first = model.encoder.layers[0](model.embed(x))
    expected = 0
    for state in (first, model.encoder.layers[1](first)):
        A, pooled = attended(model.attention, model.query_of(state), model.norm_k(state.detach()))
        logits = model.head(model.norm(pooled))[:, 0]
        (gradient,) = torch.autograd.grad(logits[:, 1].sum(), A)
        assert not gradient[:, :, 1:].any()
        expected = expected + gradient.clamp(min=0).mean(1)[:, 0]
    e = whence.explain(model, x, "legrad", 1, pool_norm=True)
    assert relative(e.scores, expected) < EXACT


def test_legrad_refuses_a_pool_whose_query_is_made_of_the_tokens():
    with pytest.raises(whence.ModelError, match="different sets of tokens"):
        whence.explain(Latents(learned=False).eval(), torch.randn(2, 5, 6), "legrad", 1)


# -- what must always hold -------------------------------------------------------------------------------------------


def check_one_by_one(model, batch, lengths, method, options, left=False):
    together = whence.explain(model, batch, method, 1, **options).scores
    width = together.shape[1]
    for i, n in enumerate(lengths):
        real = slice(width - n, width) if left else slice(n)
        alone = whence.explain(model, {k: v[i : i + 1, real] for k, v in batch.items()}, method, 1, **options).scores
        assert relative(together[i, real], alone[0]) < 1e-9
        assert (alone >= 0).all()
        together[i, real] = 0
    assert not together.any()


@variants
@given(seed=st.integers(0, 99), lengths=st.lists(st.integers(2, 8), min_size=2, max_size=3))
@settings(max_examples=2, deadline=None)
def test_batch_and_padding_change_nothing(method, options, seed, lengths):
    check_one_by_one(tiny.bert(seed=seed).double(), tiny.padded(lengths, seed=seed), lengths, method, options)


@variants
@pytest.mark.parametrize("family", [tiny.llama, tiny.gpt2])
def test_left_padding_changes_nothing(family, method, options):
    batch = tiny.padded([6, 3], left=True)
    check_one_by_one(family().double(), batch, [6, 3], method, options, left=True)


@variants
@pytest.mark.parametrize(("batch_first", "norm_first"), [(True, False), (False, True)])
def test_the_layout_of_the_stream_does_not_matter(method, options, batch_first, norm_first):
    torch.manual_seed(1)
    model, batch = tiny.Encoder(batch_first, norm_first).double().eval(), tiny.padded([5, 3])
    del batch["position_ids"]
    check_one_by_one(model, batch, [5, 3], method, options)


@variants
def test_eager_attention_is_sdpa(method, options):
    a, b = (
        whence.explain(tiny.bert(implementation=i).double(), tiny.ids(2), method, 1, **options).scores
        for i in ("eager", "sdpa")
    )
    assert relative(a, b) < EXACT


@variants
def test_single_precision_and_half_precision_are_close(method, options):
    model, pixels = tiny.vit(), {"pixel_values": tiny.pixels(2).bfloat16()}
    low = whence.explain(model.bfloat16(), pixels, method, 1, **options).scores
    full = whence.explain(model.float(), {"pixel_values": pixels["pixel_values"].float()}, method, 1, **options).scores
    assert low.dtype == torch.float32
    assert relative(low, full) < 0.06


@pytest.mark.parametrize("method", ["bi-attention", "legrad"])
def test_the_model_is_left_as_found_by_repeated_runs(method):
    model, ids = tiny.bert().train(), tiny.ids(2)
    before = snapshot(model)
    free = whence.explain(model, {"input_ids": ids}, method)
    assert snapshot(model) == before
    named = whence.explain(model, {"input_ids": ids}, method, free.prediction.tolist())
    assert torch.equal(free.scores, named.scores)


@pytest.mark.parametrize("method", ["bi-attention", "legrad"])
def test_experts_that_gather_tokens_do_not_mix_samples(method):
    model, x, quick = tiny.mixtral(), tiny.ids(2), whence.list_methods()[method].quick
    e = whence.explain(model, {"input_ids": x}, method, [0, 1], **quick)
    one = whence.explain(model, {"input_ids": x[1:]}, method, 1, **quick)
    assert relative(e.scores[1], one.scores[0]) < 1e-4


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99), layers=st.integers(1, 4), steps=st.integers(2, 4))
def test_parts_make_the_whole(seed, layers, steps):
    model, pixels = tiny.vit(3, seed=seed).double(), {"pixel_values": tiny.pixels(1, seed).double()}
    e = whence.explain(model, pixels, "legrad", 1, layers=layers)
    every = whence.explain(model, pixels, "legrad", 1, layers=None)
    assert torch.equal(e.layers[:, -layers:], every.layers[:, -layers:])
    assert relative(e.scores, every.layers[:, -layers:].sum(1)) < EXACT
    e = whence.explain(model, pixels, "bi-attention", 1, steps=steps)
    assert torch.allclose(e.heads.sum(-1), torch.ones(1, 3, dtype=torch.float64))


# -- what is refused ---------------------------------------------------------------------------------------------------


class Stream(nn.Module):
    """Attention with a stream that is not what these methods need."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.embed, self.qkv, self.head = nn.Embedding(60, 8), nn.Linear(8, 24), nn.Linear(8, 3)

    def attention(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, input_ids):
        x = first = self.embed(input_ids)
        for _ in range(2):
            if self.kind == "none":
                x = self.attention(x)
            elif self.kind == "in place":
                x += self.attention(x.clone())
            else:
                x = x + self.attention(x)
        if self.kind == "scaled in place":
            x *= 2
        if self.kind == "pooled":
            x = F.scaled_dot_product_attention(self.head.weight[:1].expand(len(x), 1, 8), x, x)
        return self.head((x + first.tanh() if self.kind == "around" else x)[:, 0])


@variants
@pytest.mark.parametrize(
    ("kind", "said"),
    [("none", "0 residual sums"), ("in place", "in place"), ("scaled in place", "in place"),
     ("pooled", "different sets of tokens")],
)  # fmt: skip
def test_without_blocks_there_is_nothing_to_read(method, options, kind, said):
    """Only the head-wise variant of Beyond Intuition does without the stream; LeGrad reads a pooling attention."""
    if kind == "pooled" and method == "legrad":
        assert whence.explain(Stream(kind), tiny.ids(1), method, **options).scores.shape == (1, 7)
        return
    if kind != "pooled" and method == "bi-attention" and "variant" not in options:
        assert whence.explain(Stream(kind), tiny.ids(1), method, **options).scores.shape == (1, 7)
        return
    with pytest.raises(whence.ModelError, match=said):
        whence.explain(Stream(kind), tiny.ids(1), method, **options)


def test_legrad_refuses_an_answer_that_goes_around_the_last_block():
    with pytest.raises(whence.ModelError, match="last block's output alone"):
        whence.explain(Stream("around"), tiny.ids(1), "legrad", 1)


def test_legrad_of_blocks_that_add_attention_and_mlp_one_after_the_other():
    """Cohere's sums ``(x + attention) + mlp`` are one block: its output is what the head reads."""
    torch.manual_seed(0)
    model = CohereForCausalLM(CohereConfig(**SIZES)).eval()
    e = whence.explain(model, tiny.ids(1), "legrad", 1)
    assert torch.isfinite(e.scores).all()
    assert float(e.scores.sum()) > 0


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [("token-tm", {"rules": "some"}, "rules"), ("bi-attention", {"variant": "row"}, "variant"),
     ("bi-attention", {"steps": 1}, "steps"), ("bi-attention", {"start_layer": 2}, "Layer 2"),
     ("legrad", {"layers": 0}, "layers")],
)  # fmt: skip
def test_options_out_of_range_are_refused(method, options, said):
    with pytest.raises(whence.MethodError, match=said):
        whence.explain(tiny.bert(), tiny.ids(1), method, **options)


@pytest.mark.parametrize("family", ["bert", "vit", "llama"])
def test_legrad_runs_the_head_again_and_not_the_model(family, monkeypatch):
    model = getattr(tiny, family)().double()
    inputs = {"pixel_values": tiny.pixels().double()} if family == "vit" else {"input_ids": tiny.ids()}
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    ours = explain(model, inputs, "legrad", 1, layers=None)
    assert len(runs) == 1
    monkeypatch.setattr(
        "whence.tracing.output_head.OutputHead.again", lambda *_: None
    )  # as where the tape does not tell
    assert relative(ours.scores, explain(model, inputs, "legrad", 1, layers=None).scores) < EXACT
    assert len(runs) == 4
