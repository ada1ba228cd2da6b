"""Blocks in other torch calls: parallel branches, blocks for some tokens, streams as lists, gates, post-norm."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.properties.test_known_spellings import compared, joined, prepared, split, unfused
from tests.support.checks import EXACT, relative

WIDTH, TOKENS, BLOCKS = 12, 9, 2
IDS = torch.randint(0, 40, (2, TOKENS), generator=torch.Generator().manual_seed(1))
INPUTS = ["conservative-lrp", "attn-lrp", "gradient-x-input", "res-lrp", "libragrad"]
MAPS = ["generic-attention", "rollout", "transformer-attribution", "attention", "grad-cam"]
STREAMS = ["legrad", "token-tm", "bi-attention"]
METHODS = [*INPUTS, *MAPS, *STREAMS]


class Blocks(nn.Module):
    """Blocks of attention and MLP, run by a function of the model and the embedded tokens."""

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.embed, self.head = nn.Embedding(40, WIDTH), nn.Linear(WIDTH, 3)
        self.qkv, self.out, self.up, self.down, self.gate = (
            nn.ModuleList(nn.Linear(a, b) for _ in range(BLOCKS))
            for a, b in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 20), (20, WIDTH), (WIDTH, WIDTH))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * BLOCKS))

    def attend(self, i, y, queries=slice(None)):
        q, k, v = map(split, self.qkv[i](y).chunk(3, -1))
        return self.out[i](joined(unfused(q[:, :, queries], k, v)))

    def mlp(self, i, y):
        return self.down[i](F.gelu(self.up[i](y)))

    def forward(self, input_ids):
        return self.head(self.run(self, self.embed(input_ids))[:, 0])


def parallel(add):
    """Return blocks whose attention and MLP read the same tokens."""

    def run(model, x):
        for i in range(BLOCKS):
            y = model.norms[i](x)
            x = add(x, model.attend(i, y), model.mlp(i, y))
        return x

    return run


def one_by_one(model, x, add=torch.add):
    for i in range(BLOCKS):
        x = add(x, model.attend(i, model.norms[2 * i](x)))
        x = add(x, model.mlp(i, model.norms[2 * i + 1](x)))
    return x


def listed(total):
    """Return blocks that keep all that was added to the stream in a list."""

    def run(model, x):
        parts = [x]
        for i in range(BLOCKS):
            parts.append(model.attend(i, model.norms[2 * i](total(parts))))
            parts.append(model.mlp(i, model.norms[2 * i + 1](total(parts))))
        return total(parts)

    return run


def channels_first(model, x):
    z = x.mT
    for i in range(BLOCKS):
        z = z + model.attend(i, model.norms[2 * i](z.mT)).mT
        z = z + model.mlp(i, model.norms[2 * i + 1](z.mT)).mT
    return z.mT


def late(model, x):
    """Add attention and MLP of a block to its input at once, although the MLP reads their sum."""
    for i in range(BLOCKS):
        a = model.attend(i, model.norms[2 * i](x))
        h = x + a
        x = x + (a + model.mlp(i, model.norms[2 * i + 1](h)))
    return x


def late_from_branch(model, x):
    for i in range(BLOCKS):
        a = model.attend(i, model.norms[2 * i](x))
        x = x + (a + model.mlp(i, model.norms[2 * i + 1](a + x)))
    return x


SUMS = {
    "at once": (parallel(lambda x, a, m: x + (a + m)), parallel(lambda x, a, m: x + a + m)),
    "branches first": (parallel(lambda x, a, m: m + a + x), parallel(lambda x, a, m: x + a + m)),
    "stacked": (parallel(lambda x, a, m: torch.stack([x, a, m]).sum(0)), parallel(lambda x, a, m: x + a + m)),
    "in place": (parallel(lambda x, a, m: x.clone().add_(a).add_(m)), parallel(lambda x, a, m: x + a + m)),
    "listed": (listed(lambda parts: functools.reduce(torch.add, parts)), one_by_one),
    "summed": (listed(sum), one_by_one),
    "late": (late, one_by_one),
    "branches from the first": (late_from_branch, one_by_one),
    "channels first": (channels_first, one_by_one),
    "lerp": (lambda m, x: one_by_one(m, x, lambda x, f: torch.lerp(x, x + f, torch.ones_like(x))), one_by_one),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spelling", SUMS)
def test_a_stream_is_the_same_however_it_is_summed(spelling, method):
    model, usual = (prepared(Blocks(run)) for run in SUMS[spelling])
    assert compared(model, usual, method) == "equal"


def last_for_one_token(model, x):
    """Compute the last block for the token that is read."""
    x = x + model.attend(0, model.norms[0](x))
    x = x + model.mlp(0, model.norms[1](x))
    x = x[:, :1] + model.attend(1, model.norms[2](x), slice(1))
    return x + model.mlp(1, model.norms[3](x))


def last_mlp_for_one_token(model, x):
    x = x + model.attend(0, model.norms[0](x))
    x = x + model.mlp(0, model.norms[1](x))
    x = x + model.attend(1, model.norms[2](x))
    return x[:, :1] + model.mlp(1, model.norms[3](x[:, :1]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("run", [last_for_one_token, last_mlp_for_one_token])
def test_a_last_block_for_one_token_has_the_scores_of_one_for_all(run, method):
    """Methods that read the stream of all tokens are refused."""
    found = compared(prepared(Blocks(run)), prepared(Blocks(one_by_one)), method)
    assert found == ("refused" if method in ("legrad", "token-tm") else "equal")


POSITIONS = torch.randn(1 + TOKENS, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def time_then_space(bias):
    """Return a block for all tokens but the first, inside windows, then one for all tokens (TimeSformer)."""

    def run(model, x):
        x = torch.cat([model.gate[0].bias.expand(len(x), 1, -1), x], 1) + POSITIONS
        patches = model.norms[0](x[:, 1:]).reshape(-1, 3, WIDTH)
        q, k, v = map(split, model.qkv[0](patches).chunk(3, -1))
        read = joined(torch.softmax(q @ k.mT + bias, -1) @ v).reshape(len(x), TOKENS, WIDTH)
        x = torch.cat([x[:, :1], x[:, 1:] + model.out[0](read)], 1)
        x = x + model.mlp(0, model.norms[1](x))
        return x + model.attend(1, model.norms[2](x))

    return run


def test_a_block_for_some_tokens_begins_from_all_of_them():
    model = prepared(Blocks(time_then_space(0.0)))
    e = whence.explain(model, IDS, "gradient-x-input", 1)
    x = model.embed(IDS).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.head(model.run(model, x)[:, 0])[:, 1].sum(), x)
    assert e.scores.shape == (2, 1 + TOKENS)
    assert relative(e.scores[:, 1:], (gradient * (x + POSITIONS[1:])).sum(-1).detach()) <= EXACT
    assert whence.explain(model, IDS, "conservative-lrp", 1).ledger.sums.shape == (2, BLOCKS + 1)


def test_positions_that_are_added_before_windows_are_part_of_what_enters_them():
    model = prepared(Blocks(time_then_space(0.0)))
    tokens, positions = (whence.explain(model, IDS, method, 1).scores for method in ("attn-lrp", "pa-lrp"))
    assert relative(positions, tokens) <= EXACT
    bias = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(whence.ModelError, match="windows"):
        whence.explain(prepared(Blocks(time_then_space(bias))), IDS, "pa-lrp", 1)
    with pytest.raises(whence.ModelError, match="windows"):
        whence.explain(model, IDS, "pa-lrp", 1, at="token")


def gated(mix):
    """Return blocks in which a gate closes the stream as far as it opens the branch."""

    def run(model, x):
        for i in range(BLOCKS):
            x = mix(x, model.attend(i, model.norms[i](x)), model.gate[i](x))
        return x

    return run


def pair(z):
    """Return a gate and its complement as a softmax of two scores."""
    return torch.stack([z, torch.zeros_like(z)], -1).softmax(-1)


GATED = {
    "lerp": lambda x, f, z: torch.lerp(x, f, z.sigmoid()),
    "difference": lambda x, f, z: x + z.sigmoid() * (f - x),
    "subtracted": lambda x, f, z: x - z.sigmoid() * (x - f),
    "from the branch": lambda x, f, z: f + (1 - z.sigmoid()) * (x - f),
    "distributed": lambda x, f, z: x - z.sigmoid() * x + z.sigmoid() * f,
    "difference of products": lambda x, f, z: x + (z.sigmoid() * f - z.sigmoid() * x),
    "softmax": lambda x, f, z: (lambda p: p[..., 0] * f + p[..., 1] * x)(pair(z)),
    "einsum": lambda x, f, z: torch.einsum("bndk,bndk->bnd", pair(z), torch.stack([f, x], -1)),
    "quotient": lambda x, f, z: (lambda e: (f + e * x) / (1 + e))(torch.exp(-z)),
}


def usual_mixture(x, f, z):
    g = torch.sigmoid(z)
    return g * f + (1 - g) * x


@pytest.mark.filterwarnings("ignore::whence.WhenceWarning")  # scores of all spellings are read at the embedding
@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "gradient-x-input", "res-lrp", "lrp"])
@pytest.mark.parametrize("spelling", GATED)
def test_a_gated_stream_is_the_same_however_it_is_mixed(spelling, method):
    model, usual = (
        prepared(Blocks(gated(GATED[spelling]))),
        prepared(Blocks(gated(usual_mixture))),
    )
    assert compared(model, usual, method) == "equal"


def modulated(modulate):
    """Return blocks whose norms are scaled and shifted by functions of the mean token."""

    def run(model, x):
        c = F.silu(x.mean(1, keepdim=True))
        for i in range(BLOCKS):
            x = x + model.attend(i, modulate(model.norms[2 * i](x), model.gate[i](c)))
            x = x + model.mlp(i, modulate(model.norms[2 * i + 1](x), model.gate[i](c)))
        return x

    return run


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "res-lrp", "lrp", "transformer-attribution"])
@pytest.mark.parametrize("modulate", [lambda y, s: y + y * s, lambda y, s: torch.addcmul(y, y, s)])
def test_a_modulated_norm_is_the_same_as_a_sum(modulate, method):
    model, usual = (prepared(Blocks(modulated(f))) for f in (modulate, lambda y, s: y * (1 + s)))
    assert compared(model, usual, method) == "equal"


def frozen(norm):
    """Return blocks with batch norms in the place of layer norms."""

    def run(model, x):
        mean, variance = torch.linspace(-0.3, 0.3, WIDTH), torch.linspace(0.5, 1.5, WIDTH)
        mean, variance = mean.to(x.dtype), variance.to(x.dtype)
        for i in range(BLOCKS):
            x = x + model.attend(i, norm(x, mean, variance, model.norms[2 * i]))
            x = x + model.mlp(i, norm(x, mean, variance, model.norms[2 * i + 1]))
        return x

    return run


FROZEN = {
    "by hand": lambda x, m, v, n: (x - m) / torch.sqrt(v + 1e-5) * n.weight + n.bias,
    "folded": lambda x, m, v, n: (lambda s: x * s + (n.bias - m * s))(n.weight * torch.rsqrt(v + 1e-5)),
}


@pytest.mark.parametrize("method", [*INPUTS, "lrp", "partial-lrp", "transformer-attribution"])
@pytest.mark.parametrize("spelling", FROZEN)
def test_a_batch_norm_with_stored_statistics_is_a_scale_and_a_bias(spelling, method):
    usual = frozen(lambda x, m, v, n: F.batch_norm(x.mT, m, v, n.weight, n.bias).mT)
    model, usual = (prepared(Blocks(run)) for run in (frozen(FROZEN[spelling]), usual))
    assert compared(model, usual, method) == "equal"


def post_norm(norm):
    def run(model, x):
        for i in range(BLOCKS):
            x = norm(model.norms[2 * i], x + model.attend(i, x))
            x = norm(model.norms[2 * i + 1], x + model.mlp(i, x))
        return x

    return run


NORMS = {
    "addcmul": lambda m, x: torch.addcmul(m.bias, m.weight, F.layer_norm(x, (WIDTH,))),
    "apart": lambda m, x: F.layer_norm(x, (WIDTH,)) * m.weight + m.bias,
    "unfused": lambda m, x: (
        (x - x.mean(-1, True)) * (x.var(-1, False, keepdim=True) + 1e-5).rsqrt() * m.weight + m.bias
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spelling", NORMS)
def test_a_post_norm_is_the_same_with_its_weight_and_bias_apart(spelling, method):
    model, usual = (prepared(Blocks(post_norm(norm))) for norm in (NORMS[spelling], lambda m, x: m(x)))
    assert compared(model, usual, method) == "equal"


def masked_in_place(model, x):
    """Multiply the output of each block by a padding mask, in place (FlauBERT, XLM)."""
    mask = torch.ones(*x.shape[:2], 1, dtype=x.dtype)
    for i in range(BLOCKS):
        x = model.norms[2 * i](x + model.attend(i, x))
        x = model.norms[2 * i + 1](x + model.mlp(i, x))
        x *= mask
    return x


@pytest.mark.parametrize("method", METHODS)
def test_a_post_norm_is_the_same_where_it_is_masked_in_place(method):
    model, usual = (prepared(Blocks(run)) for run in (masked_in_place, post_norm(lambda m, x: m(x))))
    assert compared(model, usual, method) == "equal"


def inner_sum(core):
    def run(model, x):
        for i in range(BLOCKS):
            q, k, v = map(split, model.qkv[i](model.norms[2 * i](x)).chunk(3, -1))
            x = x + model.out[i](joined(core(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1), v)))
        return x

    return run


@pytest.mark.parametrize("method", ["gradient-x-input", "saliency"])
def test_a_sum_inside_an_attention_is_no_stream(method):
    model = prepared(Blocks(inner_sum(lambda a, v: v + (a - torch.eye(TOKENS, dtype=a.dtype)) @ v)))
    assert compared(model, prepared(Blocks(inner_sum(lambda a, v: a @ v))), method) == "equal"


@torch.jit.script
def hidden_sum(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    return x + f


@pytest.mark.parametrize("method", ["generic-attention", "rollout", "transformer-attribution"])
def test_an_attention_whose_residual_sum_is_not_seen_is_not_rolled_up(method):
    def run(model, x):
        x = x + model.attend(0, model.norms[0](x))
        return hidden_sum(x[:, :1], model.attend(1, model.norms[2](x), slice(1)))

    with pytest.raises(whence.ModelError, match="residual"):
        whence.explain(prepared(Blocks(run)), IDS, method, 1)
