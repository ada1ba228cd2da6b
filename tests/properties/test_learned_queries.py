"""Learned queries that all samples share: the ledger balances for each sample, and a batch is its samples.

Attention pooling, DETR and Perceiver, each with queries that are expanded over the batch and with queries that are
broadcast. Relevance that such queries receive is not read anywhere, so the ledger counts it as absorbed.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support.checks import EXACT, close, relative

WIDTH, QUERIES = 8, 3
METHODS = ["gradient-x-input", "attn-lrp", "conservative-lrp"]
IDS = torch.randint(0, 20, (3, 6), generator=torch.Generator().manual_seed(1))


def unfused(q, k, v):
    return torch.softmax(q @ k.mT * WIDTH**-0.5, -1) @ v


ATTENTIONS = {"fused": F.scaled_dot_product_attention, "unfused": unfused}


class Model(nn.Module):
    """A classifier of embedded tokens, with learned queries that a subclass uses."""

    expanded = True  # whether queries get a batch dimension before they are used

    def __init__(self, attend):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(20, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))
        self.queries = nn.Parameter(torch.zeros(QUERIES, WIDTH))
        self.attend = attend

    def block(self, x):
        q, k, v, out = self.layers[:4]
        y = self.norm(x)
        return x + out(self.attend(q(y), k(y), v(y)))

    def shared(self, x):
        return self.queries[None].repeat(len(x), 1, 1) if self.expanded else self.queries

    def forward(self, ids):
        return self.read(self.embed(ids))


class Pooling(Model):
    """Queries read the tokens; what they read is averaged."""

    def encode(self, x):
        return x

    def read(self, x):
        x, (q, k, v) = self.encode(x), self.layers[4:7]
        return self.head(self.attend(q(self.shared(x)), k(x), v(x)).mean(1))


class BroadcastPooling(Pooling):
    """Queries without a batch dimension."""

    expanded = False


class EncoderPooling(BroadcastPooling):
    """Queries read what a block made of the tokens."""

    def encode(self, x):
        return self.block(x)


class Detr(Model):
    """Queries begin from zeros and are told what they ask in every layer."""

    def begin(self, asked, x):
        return torch.zeros_like(asked)

    def tell(self, y, asked):
        return y + asked

    def read(self, x):
        x = self.block(x)
        asked = self.shared(x)
        y = self.begin(asked, x)
        for q, k, r, s in (self.layers[4:8], self.layers[8:12]):
            y = self.norm(y + self.attend(q(self.tell(y, asked)), k(self.tell(y, asked)), y))
            y = y + self.attend(r(self.tell(y, asked)), s(x), x)
        return self.head(y.mean(1))


class ZeroDetr(Detr):
    """The zeros are no function of the queries."""

    def begin(self, asked, x):
        return torch.zeros(len(x), QUERIES, WIDTH, dtype=x.dtype)


class BroadcastDetr(ZeroDetr):
    """Queries without a batch dimension."""

    expanded = False


class InPlaceDetr(BroadcastDetr):
    """Queries are added in place."""

    def tell(self, y, asked):
        told = y.clone()
        told.add_(asked)
        return told


class Perceiver(Model):
    """Learned latents read the tokens, then one another."""

    def encode(self, x):
        return x

    def read(self, x):
        x, (q, k, v) = self.encode(x), self.layers[4:7]
        latents = self.shared(x)
        return self.head(self.block(latents + self.attend(q(latents), k(x), v(x))).mean(1))


class BroadcastPerceiver(Perceiver):
    """Latents without a batch dimension."""

    expanded = False


class NormedPerceiver(Perceiver):
    """Latents read normed tokens."""

    def encode(self, x):
        return self.norm(x)


class EncoderPerceiver(Perceiver):
    """Latents read what a block made of the tokens."""

    def encode(self, x):
        return self.block(x)


MODELS = [
    Pooling, BroadcastPooling, EncoderPooling, Detr, ZeroDetr, BroadcastDetr, InPlaceDetr, Perceiver,
    BroadcastPerceiver, NormedPerceiver, EncoderPerceiver,
]  # fmt: skip


def prepared(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=generator))
    return model.double().eval()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("model", MODELS)
def test_a_batch_balances_and_is_its_samples(model, attend, method):
    model = prepared(model(ATTENTIONS[attend]))
    batch = whence.explain(model, IDS, method, 1)
    ones = [whence.explain(model, IDS[i : i + 1], method, 1) for i in range(len(IDS))]
    for e in (batch, *ones):
        assert float(e.ledger.imbalance.abs().max()) < EXACT * float(e.ledger.total.abs().max())
    assert "text" in batch.streams
    for name, scores in batch.streams.items():
        close(scores, torch.cat([e.streams[name] for e in ones]), EXACT)
    close(batch.ledger.sums, torch.cat([e.ledger.sums for e in ones]), EXACT)
    for kind, amounts in batch.ledger.absorbed.items():
        alone = torch.cat([e.ledger.absorbed[kind] for e in ones])
        assert float((amounts - alone).abs().max()) < EXACT * float(batch.ledger.total.abs().max())


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("model", [Pooling, BroadcastPooling, Perceiver, BroadcastPerceiver])
def test_scores_of_tokens_are_those_of_autograd(model, attend):
    model = prepared(model(ATTENTIONS[attend]))
    x = model.embed(IDS).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.read(x)[:, 1].sum(), x)
    close(whence.explain(model, IDS, "gradient-x-input", 1).streams["text"], (gradient * x).sum(-1).detach(), EXACT)


@pytest.mark.parametrize("method", [
    *METHODS, "lrp", "rollout", "generic-attention", "transformer-attribution", "attention", "grad-cam",
])  # fmt: skip
@pytest.mark.parametrize(("broadcast", "expanded"), [(BroadcastPerceiver, Perceiver), (BroadcastPooling, Pooling)])
def test_broadcast_queries_are_explained_as_expanded_ones(broadcast, expanded, method):
    found, usual = (whence.explain(prepared(m(unfused)), IDS, method, 1) for m in (broadcast, expanded))
    fused = whence.explain(prepared(broadcast(F.scaled_dot_product_attention)), IDS, method, 1)
    assert set(found.streams) == set(usual.streams) == set(fused.streams)
    for name, scores in usual.streams.items():
        scale = usual.scores if not bool(scores.any()) else scores
        for other in (found, fused):
            assert relative(other.streams[name], scores, scale) < 1e-7  # LRP divides by sums near zero
