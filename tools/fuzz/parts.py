"""The parts of which a model is built: norms, MLPs and attentions, each written as people write it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor, nn

from tools.fuzz.grammar import HIDDEN, WIDTH, Architecture


class Norm(nn.Module):
    """LayerNorm or RMSNorm, torch's or written out."""

    def __init__(self, a: Architecture, width: int = WIDTH) -> None:
        super().__init__()
        self.kind = a.norm_as
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if a.biases and a.norm_as.startswith("layer") else None

    def forward(self, x: Tensor) -> Tensor:
        """Of the last axis."""
        if self.kind == "layer":
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)
        if self.kind == "rms":
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        if self.kind == "layer-written":
            x = x - x.mean(-1, keepdim=True)
            x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight
            return x if self.bias is None else x + self.bias
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def activated(x: Tensor, name: str) -> Tensor:
    """An activation by its name."""
    if name == "tanh-gelu":
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "quick-gelu":
        return x * torch.sigmoid(1.702 * x)
    if name == "torch-tanh-gelu":
        return F.gelu(x, approximate="tanh")
    return {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}[name](x)


class Mlp(nn.Module):
    """Two layers with an activation between them, or a gated unit."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.a = a
        self.up = nn.Linear(WIDTH, HIDDEN if a.mlp == "plain" else 2 * HIDDEN, a.biases)
        self.down = nn.Linear(HIDDEN, WIDTH, a.biases)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]``."""
        x = self.up(x)
        if self.a.mlp == "glu":
            return self.down(F.glu(x, -1))
        if self.a.mlp == "gated":
            gate, value = x.chunk(2, -1)
            return self.down(activated(gate, self.a.activation) * value)
        return self.down(activated(x, self.a.activation))


def rotated(x: Tensor, places: Tensor, kind: str) -> Tensor:
    """Queries or keys ``[batch, heads, tokens, size]``, turned by their places ``[batch, tokens]``."""
    half = x.shape[-1] // 2
    speeds = 10.0 ** -torch.arange(half, dtype=x.dtype)
    angles = places[:, None, :, None].to(x.dtype) * speeds
    if kind == "halves":
        cos, sin = (torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cos + turned * sin
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Attention(nn.Module):
    """Attention from some tokens to others (or themselves), computed in one of five ways from the same weights."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.a, self.size = a, WIDTH // a.heads
        self.keys = WIDTH // a.groups
        if a.attend == "module":
            self.inner = nn.MultiheadAttention(WIDTH, a.heads, bias=a.biases, batch_first=a.layout == "batch-first")
        elif a.packed == "no":
            self.q = nn.Linear(WIDTH, WIDTH, a.biases)
            self.k, self.v = (nn.Linear(WIDTH, self.keys, a.biases) for _ in range(2))
        else:
            self.qkv = nn.Linear(WIDTH, WIDTH + 2 * self.keys, a.biases)
        if a.attend != "module":
            self.out = nn.Linear(WIDTH, WIDTH, a.biases)
        if a.query_norm:
            self.norms = nn.ModuleList(Norm(a, self.size) for _ in range(2))

    def forward(self, x: Tensor, other: Tensor, keep: Tensor | None, places: tuple[Tensor, Tensor]) -> Tensor:
        """From ``x`` to ``other``; ``keep`` is ``[batch or 1, queries, keys]``, true for what is seen."""
        if self.a.attend == "module":
            return self._module(x, other, keep)
        q, k, v = (self._heads(t) for t in self._projected(x, other))
        if self.a.query_norm:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.a.rotary != "no":
            q, k = (rotated(t, p, self.a.rotary) for t, p in zip((q, k), places, strict=True))
        mixed = self._mixed(q, k, v, None if keep is None else keep[:, None])  # [batch, heads, queries, size]
        order = (0, 2, 1, 3) if self.a.layout == "batch-first" else (2, 0, 1, 3)
        return self.out(mixed.permute(order).flatten(2))

    def _projected(self, x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        if self.a.packed == "no":
            return self.q(x), self.k(other), self.v(other)
        if x is not other:  # as torch cuts a packed projection for two inputs
            weights, biases = self.qkv.weight, self.qkv.bias
            cut = [WIDTH, 2 * self.keys]
            (wq, wo), (bq, bo) = weights.split(cut), (None, None) if biases is None else biases.split(cut)
            return F.linear(x, wq, bq), *F.linear(other, wo, bo).chunk(2, -1)
        packed = self.qkv(x)
        if self.a.packed == "chunk":
            return packed.chunk(3, -1)
        if self.a.packed == "unbind":
            return packed.unflatten(-1, (3, WIDTH)).unbind(-2)
        return packed.split([WIDTH, self.keys, self.keys], -1)

    def _heads(self, t: Tensor) -> Tensor:
        """``[batch, heads, tokens, size]``."""
        t = t.unflatten(-1, (-1, self.size))
        return t.transpose(1, 2) if self.a.layout == "batch-first" else t.permute(1, 2, 0, 3)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        a = self.a
        if a.attend == "fused":
            grouped = {"enable_gqa": True} if a.groups > 1 else {}
            if a.masking == "flag":
                return F.scaled_dot_product_attention(q, k, v, is_causal=keep is not None, **grouped)
            mask = keep if keep is None or a.masking == "bool" else added(keep, q.dtype)
            return F.scaled_dot_product_attention(q, k, v, mask, **grouped)
        if a.groups > 1:
            k, v = (t.repeat_interleave(a.groups, 1) for t in (k, v))
        scale = 1 / math.sqrt(self.size)
        if a.attend == "einsum":
            A = self._softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * scale, keep)
            return torch.einsum("bhqk,bhkd->bhqd", A, v)
        if a.attend == "bmm":
            batch = q.shape[:2]
            q, k, v = (t.flatten(0, 1) for t in (q, k, v))
            scores = torch.bmm(q * scale, k.transpose(1, 2)).unflatten(0, batch)
            A = self._softmax(scores, keep).flatten(0, 1)
            return torch.bmm(A, v).unflatten(0, batch)
        return self._softmax(q @ k.mT * scale, keep) @ v

    def _softmax(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        if self.a.cap:
            scores = 5 * torch.tanh(scores / 5)
        if keep is not None and self.a.masking == "bool":
            scores = scores.masked_fill(~keep, -math.inf)
        elif keep is not None and self.a.masking == "where":
            scores = torch.where(keep, scores, torch.finfo(scores.dtype).min)
        elif keep is not None:
            scores = scores + added(keep, scores.dtype)
        return scores.softmax(-1)

    def _module(self, x: Tensor, other: Tensor, keep: Tensor | None) -> Tensor:
        mask = None
        if keep is not None:
            batch = x.shape[0 if self.a.layout == "batch-first" else 1]
            keep = keep.expand(batch, -1, -1).repeat_interleave(self.a.heads, 0)
            mask = ~keep if self.a.masking in ("bool", "flag") else added(keep, x.dtype)
        weights = self.a.masking == "where"  # asked for or not: torch then computes in another way
        return self.inner(x, other, other, attn_mask=mask, need_weights=weights)[0]


def added(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores."""
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.finfo(dtype).min)
