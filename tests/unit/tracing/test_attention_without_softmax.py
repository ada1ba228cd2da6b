"""Attention in steps that no rule is certain for is listed by coverage; equal steps are explained alike."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import whence

WIDTH, TOKENS = 8, 6
IDS = torch.randint(0, 20, (2, TOKENS), generator=torch.Generator().manual_seed(0))


class Encoder(nn.Module):
    """One block whose attention is a function of queries, keys and values, read at the first token."""

    def __init__(self, attend, wrap=lambda block, x: block(x), pool=lambda self, x: x[:, 0]):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.score = nn.Embedding(20, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head, self.attend, self.wrap, self.pool = nn.Linear(WIDTH, 3), attend, wrap, pool
        self.double().eval()

    def block(self, x):
        y = self.norm(x)
        return x + self.out(self.attend(self.q(y), self.k(y), self.v(y)))

    def forward(self, ids):
        return self.head(self.pool(self, self.wrap(self.block, self.embed(ids))))


def softmax_attention(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def scores(method="attn-lrp", attend=softmax_attention, **parts):
    return whence.explain(Encoder(attend, **parts), IDS, method, 1).scores


def listed(attend, method="attn-lrp"):
    return set(whence.explain(Encoder(attend), IDS, method, 1).coverage.plain)


def feature(x):
    return F.elu(x) + 1


def test_softmax_attention_has_no_product_over_tokens():
    assert not any("token" in name or "without" in name for name in listed(softmax_attention))


def test_attention_over_features_has_no_product_over_tokens():
    assert not any("token" in name for name in listed(lambda q, k, v: v @ (q.mT @ k).softmax(-1)))


def test_products_over_tokens_that_are_no_attention_are_listed():
    assert "matmul over tokens" in listed(lambda q, k, v: q @ (k.mT @ v) / TOKENS)
    assert "einsum over tokens" in listed(lambda q, k, v: torch.einsum("bqd,bkd,bke->bqe", q, k, v) / TOKENS)
    assert "matmul over tokens" in listed(lambda q, k, v: torch.sigmoid(q @ k.mT) @ v, "conservative-lrp")


def test_scores_over_their_sum_are_listed():
    def attend(q, k, v):
        a = feature(q) @ feature(k).mT
        return (a / a.sum(-1, keepdim=True)) @ v

    assert "attention without softmax" in listed(attend, "conservative-lrp")


@pytest.mark.parametrize(
    "sigmoid",
    [lambda s: 1 / (1 + torch.exp(-s)), lambda s: 0.5 + 0.5 * torch.tanh(s / 2), lambda s: s.clone().sigmoid_()],
)
def test_a_sigmoid_of_shifted_scores_is_one_activation_of_them(sigmoid):
    def attend(function):
        return lambda q, k, v: function(q @ k.mT - math.log(TOKENS)) @ v

    assert torch.allclose(scores(attend=attend(torch.sigmoid)), scores(attend=attend(sigmoid)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("copy", [torch.clone, lambda x: x * 1, lambda x: x * torch.ones(TOKENS, 1).double()])
def test_a_copy_does_not_change_what_an_activation_is(copy):
    def attend(function):
        return lambda q, k, v: feature(q) @ (function(feature(k)).mT @ v) / TOKENS

    assert torch.allclose(scores(attend=attend(lambda x: x)), scores(attend=attend(copy)), rtol=1e-9, atol=1e-12)


def rotated(block, x):
    y = torch.rot90(x.unflatten(1, (2, 3)), 2, (1, 2)).flatten(1, 2)
    return torch.rot90(block(y).unflatten(1, (2, 3)), 2, (1, 2)).flatten(1, 2)


def looked_up(block, x):
    rows = torch.arange(len(x))[:, None] * TOKENS + torch.arange(TOKENS).flip(0)
    return block(F.embedding(rows, x.flatten(0, 1))).flip(1)


@pytest.mark.parametrize("wrap", [rotated, looked_up])
@pytest.mark.parametrize("method", ["conservative-lrp", "rollout"])
def test_tokens_are_followed_through_rotations_and_tables_of_activations(wrap, method):
    assert torch.allclose(scores(method), scores(method, wrap=wrap), rtol=1e-9, atol=1e-12)


def pooled(self, x):
    return (self.score(x).softmax(1) * x).sum(1)


def pooled_by_loop(self, x):
    a = self.score(x).softmax(1)
    return sum(a[:, i] * x[:, i] for i in range(TOKENS))


def pooled_by_sample(self, x):
    return torch.stack([self.score(sample).squeeze(-1).softmax(0) @ sample for sample in x])


def pooled_by_query(self, x):
    return ((x @ self.score.weight[0]).softmax(-1)[:, None] @ x)[:, 0]


@pytest.mark.parametrize("pool", [pooled_by_loop, pooled_by_sample, pooled_by_query])
@pytest.mark.parametrize("method", ["attn-lrp", "generic-attention", "lrp"])
def test_attention_pooling_does_not_depend_on_its_steps(pool, method):
    assert torch.allclose(scores(method, pool=pooled), scores(method, pool=pool), rtol=1e-6, atol=1e-12)


class Scaled(Encoder):
    """Adds half of its attention to the residual stream."""

    def block(self, x):
        return x + self.branch(x)

    def branch(self, x):
        y = self.norm(x)
        return self.out(self.attend(self.q(y), self.k(y), self.v(y))) * 0.5


class Overwritten(Scaled):
    """Adds the residual stream to half of its attention, in place."""

    def block(self, x):
        branch = self.branch(x)
        branch += x
        return branch


def test_a_scaled_branch_may_be_overwritten():
    found = [whence.explain(net(softmax_attention), IDS, "flash-trace", 1).scores for net in (Scaled, Overwritten)]
    assert torch.allclose(*found, rtol=1e-9, atol=1e-12)
