"""Spellings of what stands between the last norm and the classifier: products with a pooled vector, attention pooling.

A head maps ``[batch, tokens, width]`` to ``[batch, width]`` with a pooling function and a linear layer of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from tools.spellings.linears import Linear
from tools.spellings.pooling import Pool


@dataclass(frozen=True)
class Dense:
    """The head's own linear layer, ``[width, width]``.

    Attributes:
        weight: of the layer; its first row is also the query of attention pooling.
        bias: of the layer; also the gain of a scaled head.
        linear: the spelling of linear layers.
    """

    weight: Tensor
    bias: Tensor
    linear: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return self.linear(x, self.weight, self.bias)


Head = Callable[[Tensor, Pool, Dense], Tensor]


def pooled(function: Callable[[Tensor, Dense], Tensor]) -> Head:
    """Return a head from a function of the pooled vector."""
    return lambda x, pool, dense: function(pool(x), dense)


def tokenwise(function: Callable[[Tensor, Dense], Tensor]) -> Head:
    """Return a head that pools after a function of all tokens."""
    return lambda x, pool, dense: pool(function(x, dense))


def in_place(p: Tensor, g: Dense) -> Tensor:
    out = torch.sigmoid(g(p)).clone()
    out *= p
    return out


def weighted(weights: Callable[[Tensor, Tensor], Tensor], mix: Callable[[Tensor, Tensor], Tensor]) -> Head:
    """Return attention pooling: a softmax over tokens of their product with a learned query."""
    return lambda x, pool, dense: mix(weights(x, dense.weight[0]), x)


def exp_sum(s: Tensor) -> Tensor:
    e = s.exp()
    return e / e.sum(1, keepdim=True)


def fused_pool(x: Tensor, pool: Pool, dense: Dense) -> Tensor:
    query = dense.weight[:1].expand(len(x), 1, -1)
    return F.scaled_dot_product_attention(query, x, x, scale=1.0).squeeze(1)


def pool_by_loop(x: Tensor, pool: Pool, dense: Dense) -> Tensor:
    a = (x @ dense.weight[0]).softmax(1)
    return sum((a[:, i : i + 1] * x[:, i] for i in range(1, x.shape[1])), a[:, :1] * x[:, 0])


def divided_later(x: Tensor, pool: Pool, dense: Dense) -> Tensor:
    e = (x @ dense.weight[0]).exp().unsqueeze(-1)
    return (x * e).sum(1) / e.sum(1)


def scores(x: Tensor, query: Tensor) -> Tensor:
    """Return ``[batch, tokens]``."""
    return (x @ query).softmax(1)


def sum_of_products(a: Tensor, x: Tensor) -> Tensor:
    return (a.unsqueeze(-1) * x).sum(1)


HEADS: dict[str, dict[str, Head]] = {
    "pooled": {
        "usual": pooled(lambda p, g: p),
        "clone": pooled(lambda p, g: p.clone()),
        "unsqueezed": pooled(lambda p, g: p.unsqueeze(1).squeeze(1)),
    },
    "sigmoid-gate": {
        "usual": pooled(lambda p, g: p * torch.sigmoid(g(p))),
        "commuted": pooled(lambda p, g: torch.sigmoid(g(p)) * p),
        "function": pooled(lambda p, g: torch.mul(torch.sigmoid(g(p)), p)),
        "einsum": pooled(lambda p, g: torch.einsum("bd,bd->bd", g(p).sigmoid(), p)),
        "glu": pooled(lambda p, g: F.glu(torch.cat([p, g(p)], -1), -1)),
        "quotient": pooled(lambda p, g: p / (1 + torch.exp(-g(p)))),
        "addcmul": pooled(lambda p, g: torch.addcmul(torch.zeros_like(p), torch.sigmoid(g(p)), p)),
        "in-place": pooled(in_place),
        "unsqueezed": pooled(lambda p, g: (p[:, None] * torch.sigmoid(g(p[:, None])))[:, 0]),
    },
    "tanh-gate": {
        "usual": pooled(lambda p, g: p * torch.tanh(g(p))),
        "commuted": pooled(lambda p, g: torch.tanh(g(p)) * p),
    },
    "softmax-gate": {
        "usual": pooled(lambda p, g: p * g(p).softmax(-1)),
        "commuted": pooled(lambda p, g: g(p).softmax(-1) * p),
        "exp-sum": pooled(lambda p, g: p * exp_sum(g(p))),
    },
    "bilinear": {
        "usual": pooled(lambda p, g: p * g(p)),
        "commuted": pooled(lambda p, g: g(p) * p),
        "einsum": pooled(lambda p, g: torch.einsum("bd,bd->bd", g(p), p)),
    },
    "residual-gate": {
        "usual": pooled(lambda p, g: p + p * torch.sigmoid(g(p))),
        "commuted": pooled(lambda p, g: torch.sigmoid(g(p)) * p + p),
        "factored": pooled(lambda p, g: p * (1 + torch.sigmoid(g(p)))),
    },
    "scaled": {
        "usual": pooled(lambda p, g: p * g.bias),
        "commuted": pooled(lambda p, g: g.bias * p),
        "einsum": pooled(lambda p, g: torch.einsum("bd,d->bd", p, g.bias)),
        "diagonal": pooled(lambda p, g: p @ torch.diag(g.bias)),
    },
    "tanh": {
        "usual": pooled(lambda p, g: torch.tanh(g(p))),
        "functional": pooled(lambda p, g: F.tanh(g(p))),
        "sigmoid": pooled(lambda p, g: 2 * torch.sigmoid(2 * g(p)) - 1),
        "in-place": pooled(lambda p, g: g(p).tanh_()),
    },
    "token-gate": {
        "usual": tokenwise(lambda x, g: x * torch.sigmoid(g(x))),
        "commuted": tokenwise(lambda x, g: torch.sigmoid(g(x)) * x),
        "quotient": tokenwise(lambda x, g: x / (1 + torch.exp(-g(x)))),
    },
    "excitation": {
        "usual": tokenwise(lambda x, g: x * torch.sigmoid(g(x.mean(1))).unsqueeze(1)),
        "commuted": tokenwise(lambda x, g: torch.sigmoid(g(x.mean(1)))[:, None] * x),
        "keepdim": tokenwise(lambda x, g: x * torch.sigmoid(g(x.mean(1, keepdim=True)))),
        "expand": tokenwise(lambda x, g: torch.sigmoid(g(x.mean(1))).unsqueeze(1).expand_as(x) * x),
        "einsum": tokenwise(lambda x, g: torch.einsum("bnd,bd->bnd", x, torch.sigmoid(g(x.mean(1))))),
    },
    "attention-pool": {
        "usual": weighted(scores, lambda a, x: (a.unsqueeze(1) @ x).squeeze(1)),
        "einsum": weighted(scores, lambda a, x: torch.einsum("bn,bnd->bd", a, x)),
        "product-sum": weighted(scores, sum_of_products),
        "product-sum-commuted": weighted(scores, lambda a, x: torch.sum(x * a[..., None], dim=1)),
        "values-first": weighted(scores, lambda a, x: (x.mT @ a.unsqueeze(-1)).squeeze(-1)),
        "exp-sum": weighted(lambda x, q: exp_sum(x @ q), sum_of_products),
        "keepdim": lambda x, pool, g: (F.linear(x, g.weight[:1]).softmax(1) * x).sum(1),
        "transposed": lambda x, pool, g: (F.linear(x, g.weight[:1]).softmax(1).mT @ x).flatten(1),
        "fused": fused_pool,
        "linear-bias": lambda x, pool, g: (F.linear(x, g.weight[:1], g.bias[:1]).softmax(1) * x).sum(1),
        "loop": pool_by_loop,
        "by-sample": lambda x, pool, g: torch.stack([(t @ g.weight[0]).softmax(0) @ t for t in x]),
        "divided-later": divided_later,
    },
}
