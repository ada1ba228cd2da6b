"""Weighted sums of tokens and of layers, and layers that run on slices of tokens: the scores of the usual spelling."""

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.properties.test_known_spellings import IDS, METHODS, Encoder, joined, prepared, split, unfused
from tests.support.checks import EXACT, relative

LENGTHS = torch.tensor([9, 6])
EVERY = [*METHODS, "pa-lrp"]


def equal(model, usual, method, inputs, **options):
    found, expected = (whence.explain(m, inputs, method, 1, **options).scores for m in (model, usual))
    return relative(found, expected) <= (1e-6 if method in ("lrp", "partial-lrp", "transformer-attribution") else EXACT)


class Pooled(Encoder):
    """Classify the sum of tokens by weights of each sample."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, ids, lengths):
        x = self.encode(self.embed(ids) + self.position)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        return self.head(self.pool(x, mask.to(x.dtype)))


def masked_mean(x, m):
    return (x * m[..., None]).sum(1) / m.sum(1, keepdim=True)


def last_token(x, m):
    return x[torch.arange(len(x)), m.sum(1).long() - 1]


def last_by_one_hot(x, m):
    return torch.einsum("btd,bt->bd", x, F.one_hot(m.sum(1).long() - 1, x.shape[1]).to(x.dtype))


POOLS = {
    "bmm": (masked_mean, lambda x, m: torch.bmm((m / m.sum(1, keepdim=True))[:, None], x)[:, 0]),
    "einsum": (masked_mean, lambda x, m: torch.einsum("btd,bt->bd", x, m / m.sum(1, keepdim=True))),
    "softmax": (masked_mean, lambda x, m: (torch.softmax(m.log(), 1)[:, None] @ x)[:, 0]),
    "one-hot": (last_token, last_by_one_hot),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("method", EVERY)
def test_weights_of_each_sample(name, method):
    usual, other = (prepared(Pooled(pool)) for pool in POOLS[name])
    assert equal(other, usual, method, {"ids": IDS, "lengths": LENGTHS})


class Mixed(Encoder):
    """Classify a learned mix of the embeddings and of the encoder's output."""

    def __init__(self, mix):
        super().__init__()
        self.mix, self.weights = mix, nn.Parameter(torch.zeros(2))

    def read(self, x):
        return self.head(self.mix([self.norm(x), self.encode(x)], self.weights.softmax(0))[:, 0])


def accumulated(layers, weights):
    total = torch.zeros_like(layers[0])
    for weight, layer in zip(weights.unbind(), layers, strict=True):
        total.add_(weight * layer)
    return total


MIXES = {
    "product": lambda layers, w: (torch.stack(layers) * w.view(-1, 1, 1, 1)).sum(0),
    "einsum": lambda layers, w: torch.einsum("lbtd,l->btd", torch.stack(layers), w),
    "matmul": lambda layers, w: torch.stack(layers, -1) @ w,
    "tensordot": lambda layers, w: torch.tensordot(w, torch.stack(layers), 1),
    "linear": lambda layers, w: F.linear(torch.stack(layers, -1), w[None]).squeeze(-1),
    "view": lambda layers, w: (w[:, None] * torch.stack(layers).view(2, -1)).sum(0).view(layers[0].shape),
    "in-place": accumulated,
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("method", EVERY)
def test_mix_of_layers(name, method):
    usual = prepared(Mixed(lambda layers, w: sum(c * layer for c, layer in zip(w.unbind(), layers, strict=True))))
    assert equal(prepared(Mixed(MIXES[name])), usual, method, IDS)


class Sliced(Encoder):
    """Run the layers behind the attention on slices of the tokens."""

    def __init__(self, run):
        super().__init__(attend=unfused)
        self.run = run

    def encode(self, x):
        for i in range(2):
            q, k, v = map(split, self.qkv[i](self.norm(x)).chunk(3, -1))
            x = x + self.out[i](joined(self.attend(q, k, v)))
            x = x + self.run(lambda y, i=i: self.down[i](self.activation(self.up[i](y))), self.norm(x))
        return self.norm(x)


def buffered(layer, x):
    out = torch.empty_like(x)
    for start in range(0, x.shape[1], 3):
        out[:, start : start + 3] = layer(x[:, start : start + 3])
    return out


SLICES = {
    "split": lambda layer, x: torch.cat([layer(part) for part in x.split(4, 1)], 1),
    "one-by-one": lambda layer, x: torch.stack([layer(x[:, t]) for t in range(x.shape[1])], 1),
    "buffer": buffered,
    "flat": lambda layer, x: layer(x.flatten(0, 1)).view(x.shape),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("readout", ["full-grad", "full-grad-plus"])
def test_biases_of_slices_are_at_their_tokens(name, readout):
    usual = prepared(Sliced(lambda layer, x: layer(x)))
    assert equal(prepared(Sliced(SLICES[name])), usual, "libragrad", IDS, readout=readout)


class GatedAttention(Encoder):
    """Gate what each attention has read, before its output projection."""

    def __init__(self, gate):
        super().__init__(attend=unfused)
        self.gate = gate

    def encode(self, x):
        for i in range(2):
            y = self.norm(x)
            q, k, v = map(split, self.qkv[i](y).chunk(3, -1))
            x = x + self.out[i](self.gate(self.up[i](y)[..., :12], joined(self.attend(q, k, v))))
        return self.norm(x)


@pytest.mark.parametrize("method", EVERY)
def test_gate_of_what_an_attention_has_read(method):
    usual = prepared(GatedAttention(lambda g, u: u * torch.sigmoid(g)))
    assert equal(prepared(GatedAttention(lambda g, u: u / (1 + torch.exp(-g)))), usual, method, IDS)
    assert equal(prepared(GatedAttention(lambda g, u: u - u * torch.sigmoid(-g))), usual, method, IDS)
