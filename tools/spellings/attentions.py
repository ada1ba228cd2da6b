"""Spellings of multi-head attention.

Queries, keys and values are ``[batch, heads, tokens, head width]``, attention maps ``[batch, heads, queries, keys]``.
A map is made of scores, their scale and a softmax, then changed by functions that keep it, then contracted with the
values; each step has spellings of its own. A named spelling changes one step (``softmax-exp-sum``); a composition
changes all of them (``einsum.query.exp-sum.clone.matmul``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tools.spellings.rotations import HALVES, NEIGHBOURS, Rotation

Step = Callable[..., Tensor]

sdpa = F.scaled_dot_product_attention


@dataclass(frozen=True)
class Branch:
    """The last projection of a residual branch, which a residual sum may fuse with its addition.

    Attributes:
        inputs: ``[batch, tokens, features]``.
        weight: of the projection, or None where the branch is projected already.
        bias: of the projection.
        linear: the spelling of linear layers.
    """

    inputs: Tensor
    weight: Tensor | None
    bias: Tensor | None
    linear: Step

    @property
    def value(self) -> Tensor:
        """What the branch adds to the residual stream."""
        return self.inputs if self.weight is None else self.linear(self.inputs, self.weight, self.bias)


@dataclass(frozen=True)
class Projections:
    """The weights of an attention: ``qkv`` packed in rows, and the projection of its output.

    Attributes:
        weight: ``[(heads + 2 * groups) * head width, width]``.
        bias: ``[(heads + 2 * groups) * head width]``.
        out_weight: ``[width, width]``.
        out_bias: ``[width]``.
        heads: of queries.
        groups: heads of keys and values.
        linear: the spelling of linear layers.
    """

    weight: Tensor
    bias: Tensor
    out_weight: Tensor
    out_bias: Tensor
    heads: int
    groups: int
    linear: Step

    @property
    def sizes(self) -> list[int]:
        """Features of queries, keys and values."""
        head = self.out_weight.shape[1] // self.heads
        return [head * self.heads, head * self.groups, head * self.groups]

    def packed(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values ``[batch, tokens, features]`` from one projection."""
        return list(self.linear(x, self.weight, self.bias).split(self.sizes, -1))

    def parts(self, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values, cut into heads: ``[batch, heads, tokens, head width]``."""
        return [t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in zip(self.packed(x), self.counts, strict=True)]

    @property
    def counts(self) -> list[int]:
        """Heads of queries, keys and values."""
        return [self.heads, self.groups, self.groups]

    def branch(self, mixed: Tensor) -> Branch:
        """Return the output projection of ``[batch, heads, tokens, head width]``."""
        return self.merged(mixed.transpose(1, 2).flatten(2))

    def merged(self, mixed: Tensor) -> Branch:
        """Return the output projection of ``[batch, tokens, features]``."""
        return Branch(mixed, self.out_weight, self.out_bias, self.linear)

    def done(self, out: Tensor) -> Branch:
        """Return a branch that is projected already."""
        return Branch(out, None, None, self.linear)


Attention = Callable[[Tensor, Projections], Branch]


def heads(core: Step) -> Attention:
    """Return an attention from a function of queries, keys and values."""
    return lambda x, p: p.branch(core(*p.parts(x)))


def root(q: Tensor) -> float:
    """Return the square root of the head width."""
    return math.sqrt(q.shape[-1])


def bmm_scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).view(*q.shape[:3], k.shape[2])


def baddbmm_scores(q: Tensor, k: Tensor) -> Tensor:
    b, h, s, _ = q.shape
    empty = torch.empty(b * h, s, k.shape[2], dtype=q.dtype)
    return torch.baddbmm(empty, q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=1).view(b, h, s, -1)


#: ``(q, k) -> scores``
SCORES: dict[str, Step] = {
    "matmul": lambda q, k: q @ k.transpose(-2, -1),
    "mT": lambda q, k: torch.matmul(q, k.mT),
    "permute": lambda q, k: torch.matmul(q, k.permute(0, 1, 3, 2)),
    "keywords": lambda q, k: torch.matmul(input=q, other=k.swapaxes(-1, -2)),
    "einsum": lambda q, k: torch.einsum("bhsd,bhtd->bhst", q, k),
    "einsum-ellipsis": lambda q, k: torch.einsum("...sd,...td->...st", q, k),
    "einsum-implicit": lambda q, k: torch.einsum("...ad,...td", q, k),
    "einsum-swapped": lambda q, k: torch.einsum("bhtd,bhsd->bhst", k, q),
    "broadcast": lambda q, k: (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1),
    "vecdot": lambda q, k: torch.linalg.vecdot(q.unsqueeze(-2), k.unsqueeze(-3)),
    "keys-first": lambda q, k: (k @ q.mT).mT,
    "bmm": bmm_scores,
    "baddbmm": baddbmm_scores,
}


def fourth_root(scores: Step, q: Tensor, k: Tensor) -> Tensor:
    factor = q.shape[-1] ** -0.25
    return scores(q * factor, k * factor)


#: ``(scores, q, k) -> scaled scores``
SCALES: dict[str, Step] = {
    "divide": lambda f, q, k: f(q, k) / math.sqrt(q.shape[-1]),
    "multiply": lambda f, q, k: f(q, k) * q.shape[-1] ** -0.5,
    "scale-first": lambda f, q, k: q.shape[-1] ** -0.5 * f(q, k),
    "query": lambda f, q, k: f(q * q.shape[-1] ** -0.5, k),
    "query-divide": lambda f, q, k: f(q / root(q), k),
    "key": lambda f, q, k: f(q, k * q.shape[-1] ** -0.5),
    "both": fourth_root,
    "in-place": lambda f, q, k: f(q, k).clone().div_(root(q)),
    "tensor": lambda f, q, k: f(q, k) * torch.tensor(q.shape[-1], dtype=q.dtype).rsqrt(),
    "div-function": lambda f, q, k: torch.div(f(q, k), torch.full([], root(q), dtype=q.dtype)),
}


def maximum_subtracted(s: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def detached_maximum(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max(dim=-1, keepdim=True).values.detach())
    return e / e.sum(dim=-1, keepdim=True)


def global_maximum(s: Tensor) -> Tensor:
    e = (s - s.max()).exp()
    return e / e.sum(-1, keepdim=True)


def in_place_exponential(s: Tensor) -> Tensor:
    e = (s - s.max(-1, keepdim=True)[0]).exp_()
    return e.div(e.sum(-1, keepdim=True))


def over_sum(total: Step) -> Step:
    """Return a softmax as the exponential over a spelling of its sum."""

    def softmax(s: Tensor) -> Tensor:
        e = s.exp()
        return e / total(e)

    return softmax


def merged_softmax(s: Tensor) -> Tensor:
    return s.flatten(0, 1).softmax(2).unflatten(0, s.shape[:2])


#: ``scores -> map``
SOFTMAXES: dict[str, Step] = {
    "method": lambda s: s.softmax(-1),
    "function": lambda s: F.softmax(s, dim=-1),
    "torch-function": lambda s: torch.softmax(s, 3),
    "keywords": lambda s: F.softmax(input=s, dim=-1, dtype=torch.float64),
    "special": lambda s: torch.special.softmax(s, -1),
    "module": lambda s: torch.nn.Softmax(dim=-1)(s),
    "dtype": lambda s: torch.softmax(s, -1, dtype=torch.float64).to(s.dtype),
    "transposed": lambda s: F.softmax(s.transpose(-2, -1), dim=-2).transpose(-2, -1),
    "merged": merged_softmax,
    "softmin": lambda s: F.softmin(-s, dim=-1),
    "log-softmax": lambda s: F.log_softmax(s, -1).exp(),
    "special-log-softmax": lambda s: torch.exp(torch.special.log_softmax(s, -1)),
    "logsumexp": lambda s: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)),
    "exp-sum": over_sum(lambda e: e.sum(-1, keepdim=True)),
    "exp-einsum": over_sum(lambda e: torch.einsum("bhst->bhs", e).unsqueeze(-1)),
    "exp-matmul": over_sum(lambda e: e @ e.new_ones(e.shape[-1], 1)),
    "exp-mean": over_sum(lambda e: e.mean(-1, keepdim=True) * e.shape[-1]),
    "exp-cumsum": over_sum(lambda e: e.cumsum(-1)[..., -1:]),
    "exp-norm": over_sum(lambda e: torch.linalg.vector_norm(e, 1, -1, keepdim=True)),
    "exp-normalize": lambda s: F.normalize(s.exp(), p=1.0, dim=-1),
    "exp-reciprocal": lambda s: s.exp() * s.exp().sum(-1, keepdim=True).reciprocal(),
    "exp-power": lambda s: s.exp() * s.exp().sum(-1, keepdim=True) ** -1,
    "exp-log": lambda s: torch.exp(s - s.exp().sum(-1, keepdim=True).log()),
    "exp2": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp2(s * math.log2(math.e))),
    "power-of-e": lambda s: (lambda e: e / e.sum(-1, keepdim=True))(torch.pow(math.e, s)),
    "maximum": maximum_subtracted,
    "detached-maximum": detached_maximum,
    "global-maximum": global_maximum,
    "softmax-of-shifted": lambda s: (s - s.amax(-1, keepdim=True)).softmax(-1),
    "in-place": in_place_exponential,
    "zero-mask": lambda s: (s + torch.zeros(s.shape[-2:], dtype=s.dtype)).softmax(-1),
    "ones-mask": lambda s: s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool), -math.inf).softmax(-1),
    "where-mask": lambda s: torch.where(torch.ones_like(s, dtype=torch.bool), s, -1e9).softmax(-1),
    "query-blocks": lambda s: torch.cat([part.softmax(-1) for part in s.split(4, 2)], 2),
}


def remasked(a: Tensor) -> Tensor:
    kept = a * torch.ones_like(a)
    return kept / kept.sum(-1, keepdim=True)


#: ``map -> map``, by functions that keep it
AFTERWARDS: dict[str, Step] = {
    "kept": lambda a: a,
    "dropout": lambda a: F.dropout(a, p=0.0, training=True),
    "dropout-off": lambda a: F.dropout(a, 0.1, training=False),
    "nan-to-num": lambda a: torch.nan_to_num(a),
    "nan-to-num-zero": lambda a: a.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0),
    "clamp": lambda a: a.clamp(0, 1),
    "clamp-min": lambda a: torch.clamp(a, min=0.0),
    "where": lambda a: torch.where(a.isnan(), torch.zeros_like(a), a),
    "where-scalar": lambda a: torch.where(a >= 0, a, 0.0),
    "masked-fill": lambda a: a.masked_fill(torch.isnan(a), 0.0),
    "mask-product": lambda a: a * torch.ones(a.shape[-2:], dtype=a.dtype),
    "bool-product": lambda a: a * (a >= 0),
    "renormalised": lambda a: a / a.sum(-1, keepdim=True),
    "normalize": lambda a: F.normalize(a, p=1, dim=-1),
    "mask-and-renormalise": remasked,
    "clone": lambda a: a.clone(),
    "contiguous": lambda a: a.transpose(-1, -2).contiguous().transpose(-1, -2),
    "to-dtype": lambda a: a.to(torch.float64).type_as(a),
    "times-one": lambda a: a * 1.0,
    "plus-zero": lambda a: a + 0.0,
    "negated-twice": lambda a: a.neg().neg(),
    "abs": lambda a: a.abs(),
    "relu": lambda a: F.relu(a),
}


def bmm_mix(a: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(a.flatten(0, 1), v.flatten(0, 1)).unflatten(0, a.shape[:2])


def baddbmm_mix(a: Tensor, v: Tensor) -> Tensor:
    b, h, s, _ = a.shape
    empty = torch.empty(b * h, s, v.shape[-1], dtype=v.dtype)
    return torch.baddbmm(empty, a.reshape(b * h, s, -1), v.flatten(0, 1), beta=0).view(b, h, s, -1)


def each(product: Step) -> Step:
    """Return a contraction by a product of matrices, one for each sample and head."""

    def mix(a: Tensor, v: Tensor) -> Tensor:
        rows = [product(x, y) for x, y in zip(a.flatten(0, 1), v.flatten(0, 1), strict=True)]
        return torch.stack(rows).unflatten(0, a.shape[:2])

    return mix


def key_blocks(a: Tensor, v: Tensor) -> Tensor:
    return a[..., :4] @ v[..., :4, :] + a[..., 4:] @ v[..., 4:, :]


#: ``(map, v) -> mixed values``
CONTRACTIONS: dict[str, Step] = {
    "matmul": lambda a, v: a @ v,
    "matmul-function": lambda a, v: torch.matmul(input=a, other=v),
    "einsum": lambda a, v: torch.einsum("bhst,bhtd->bhsd", a, v),
    "einsum-ellipsis": lambda a, v: torch.einsum("...st,...td->...sd", a, v),
    "einsum-implicit": lambda a, v: torch.einsum("...at,...td", a, v),
    "einsum-swapped": lambda a, v: torch.einsum("bhtd,bhst->bhsd", v, a),
    "values-first": lambda a, v: (v.mT @ a.mT).mT,
    "values-first-einsum": lambda a, v: torch.einsum("bhdt,bhst->bhds", v.mT, a).mT,
    "broadcast": lambda a, v: (a.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2),
    "broadcast-commuted": lambda a, v: torch.sum(v.unsqueeze(2) * a[..., None], dim=3),
    "bmm": bmm_mix,
    "baddbmm": baddbmm_mix,
    "linear": each(lambda a, v: F.linear(a, v.mT)),
    "tensordot": each(lambda a, v: torch.tensordot(a, v, dims=1)),
    "mm": each(torch.mm),
    "addmm": each(lambda a, v: torch.addmm(torch.zeros(1, v.shape[-1], dtype=v.dtype), a, v)),
    "key-blocks": key_blocks,
    "query-blocks": lambda a, v: torch.cat([part @ v for part in a.split(4, 2)], 2),
    "vecdot": lambda a, v: torch.linalg.vecdot(a.unsqueeze(-2), v.mT.unsqueeze(-3)),
}


def stepwise(score: Step, scale: Step, softmax: Step, after: Step, mix: Step) -> Attention:
    """Return an attention of five steps."""
    return heads(lambda q, k, v: mix(after(softmax(scale(score, q, k))), v))


STEPS = (SCORES, SCALES, SOFTMAXES, AFTERWARDS, CONTRACTIONS)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention without a mask, in matrix products; leading axes are free."""
    return (q @ k.mT / root(q)).softmax(-1) @ v


def loop_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([plain(q[:, i], k[:, i], v[:, i]) for i in range(q.shape[1])], 1)


def loop_and_cat(x: Tensor, p: Projections) -> Branch:
    q, k, v = (t.split(t.shape[-1] // p.heads, -1) for t in p.packed(x))
    return p.merged(torch.cat([plain(*part) for part in zip(q, k, v, strict=True)], -1))


def loop_over_samples(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([plain(*part) for part in zip(q, k, v, strict=True)])


def loop_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([plain(row, k, v) for row in q.split(1, 2)], 2)


def query_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([plain(block, k, v) for block in q.split(4, 2)], 2)


def fused_query_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cat([sdpa(block, k, v) for block in q.chunk(2, 2)], dim=2)


def running_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention over blocks of keys with a running maximum, as FlashAttention computes it."""
    top = q.new_full((*q.shape[:3], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for keys, values in zip(k.split(4, 2), v.split(4, 2), strict=True):
        s = q @ keys.mT / root(q)
        higher = torch.maximum(top, s.amax(-1, keepdim=True))
        e, decay = torch.exp(s - higher), torch.exp(top - higher)
        total, out, top = total * decay + e.sum(-1, keepdim=True), out * decay + e @ values, higher
    return out / total


def unnormalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention whose division by the sum follows the contraction."""
    e = torch.exp(q @ k.mT / root(q))
    return (e @ v) / e.sum(-1, keepdim=True)


def tokens_first(x: Tensor, p: Projections) -> Branch:
    """Compute in the layout ``[tokens, batch, features]``, heads merged with the batch, as fairseq does."""
    n, b = x.shape[1], x.shape[0]
    q, k, v = (t.reshape(n, b * p.heads, -1).transpose(0, 1) for t in p.packed(x.transpose(0, 1)))
    mixed = torch.bmm(torch.softmax(torch.bmm(q / root(q), k.transpose(1, 2)), -1), v)
    return p.merged(mixed.transpose(0, 1).reshape(n, b, -1).transpose(0, 1))


def merged_heads(x: Tensor, p: Projections) -> Branch:
    """Merge heads with the batch: ``[batch * heads, tokens, head width]``."""
    q, k, v = (t.flatten(0, 1) for t in p.parts(x))
    return p.branch(plain(q, k, v).unflatten(0, (x.shape[0], p.heads)))


def merged_baddbmm(x: Tensor, p: Projections) -> Branch:
    q, k, v = (t.flatten(0, 1) for t in p.parts(x))
    empty = torch.empty(len(q), q.shape[1], k.shape[1], dtype=q.dtype)
    a = torch.baddbmm(empty, q, k.mT, beta=0, alpha=1 / root(q)).softmax(-1)
    return p.branch(torch.bmm(a, v).unflatten(0, (x.shape[0], p.heads)))


def tokens_before_heads(x: Tensor, p: Projections) -> Branch:
    """Keep the layout ``[batch, tokens, heads, head width]`` and contract with einsum."""
    q, k, v = (t.unflatten(-1, (p.heads, -1)) for t in p.packed(x))
    a = (torch.einsum("bshd,bthd->bhst", q, k) / root(q)).softmax(-1)
    return p.merged(torch.einsum("bhst,bthd->bshd", a, v).flatten(2))


def maps_with_heads_last(x: Tensor, p: Projections) -> Branch:
    """Compute maps ``[batch, queries, keys, heads]``."""
    q, k, v = (t.unflatten(-1, (p.heads, -1)) for t in p.packed(x))
    a = (torch.einsum("bshd,bthd->bsth", q, k) / root(q)).softmax(2)
    return p.merged(torch.einsum("bsth,bthd->bshd", a, v).flatten(2))


def three_operands(x: Tensor, p: Projections) -> Branch:
    """Contract map, values and output projection in one einsum."""
    q, k, v = p.parts(x)
    a = (q @ k.mT / root(q)).softmax(-1)
    out = torch.einsum("bhst,bhtd,ohd->bso", a, v, p.out_weight.unflatten(1, (p.heads, -1)))
    return p.done(out + p.out_bias)


def three_operand_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = torch.tensor(1 / root(q), dtype=q.dtype)
    return torch.einsum("bhsd,bhtd,->bhst", q, k, scale).softmax(-1) @ v


def output_per_head(x: Tensor, p: Projections) -> Branch:
    """Project the output of each head by itself and sum, as TransformerLens does."""
    q, k, v = p.parts(x)
    mixed = (q @ k.mT / root(q)).softmax(-1) @ v
    out = torch.einsum("bhsd,ohd->bsho", mixed, p.out_weight.unflatten(1, (p.heads, -1))).sum(2)
    return p.done(out + p.out_bias)


def values_projected_first(x: Tensor, p: Projections) -> Branch:
    """Project the values before they are mixed: ``A (v W)`` in place of ``(A v) W``."""
    q, k, v = p.parts(x)
    projected = torch.einsum("bhtd,ohd->bhto", v, p.out_weight.unflatten(1, (p.heads, -1)))
    return p.done(((q @ k.mT / root(q)).softmax(-1) @ projected).sum(1) + p.out_bias)


def functional_module(x: Tensor, p: Projections, **masks: object) -> Branch:
    """Call ``F.multi_head_attention_forward``, whose layout is ``[tokens, batch, features]``."""
    t = x.transpose(0, 1)
    out, _ = F.multi_head_attention_forward(
        t, t, t, x.shape[-1], p.heads, p.weight, p.bias, None, None, False, 0.0, p.out_weight, p.out_bias,
        training=False, **masks,
    )  # fmt: skip
    return p.done(out.transpose(0, 1))


def three_projections(x: Tensor, p: Projections) -> Branch:
    """Project queries, keys and values by three linear layers."""
    weights, biases = p.weight.split(p.sizes), p.bias.split(p.sizes)
    q, k, v = (
        p.linear(x, w, b).unflatten(-1, (p.heads, -1)).transpose(1, 2) for w, b in zip(weights, biases, strict=True)
    )
    return p.branch(sdpa(q, k, v))


def unbound(x: Tensor, p: Projections) -> Branch:
    """Cut the packed projection as timm does."""
    b, n, d = x.shape
    q, k, v = p.linear(x, p.weight, p.bias).reshape(b, n, 3, p.heads, d // p.heads).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return p.merged((mixed.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, d))


def channels_first(x: Tensor, p: Projections) -> Branch:
    """Compute with 1x1 convolutions over ``[batch, features, tokens]`` and values first, as Attention2d of timm."""
    q, k, v = (t.unflatten(1, (p.heads, -1)) for t in F.conv1d(x.mT, p.weight.unsqueeze(-1), p.bias).split(p.sizes, 1))
    a = (q.mT @ k * q.shape[2] ** -0.5).softmax(-1)
    out = F.conv1d((v @ a.mT).flatten(1, 2), p.out_weight.unsqueeze(-1), p.out_bias)
    return p.done(out.mT)


def projected_to_heads(x: Tensor, p: Projections) -> Branch:
    """Project straight to heads with einsum, as JAX code does."""
    weights, biases = p.weight.split(p.sizes), p.bias.split(p.sizes)
    q, k, v = (
        torch.einsum("bnd,hkd->bhnk", x, w.unflatten(0, (p.heads, -1))) + b.view(p.heads, 1, -1)
        for w, b in zip(weights, biases, strict=True)
    )
    return p.branch(plain(q, k, v))


def softmax_over_queries_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keep the map transposed throughout: ``[batch, heads, keys, queries]``, as VQGAN does."""
    a = (k @ q.mT / root(q)).softmax(-2)
    return (v.mT @ a).mT


def ones(q: Tensor) -> Tensor:
    """Return a boolean mask that hides nothing."""
    return torch.ones(q.shape[2], q.shape[2], dtype=torch.bool)


def zeros(q: Tensor) -> Tensor:
    """Return an additive mask that hides nothing."""
    return torch.zeros(q.shape[2], q.shape[2], dtype=q.dtype)


def fused_loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([sdpa(*t) for t in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True)], 1)


@torch.jit.script
def scripted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / float(q.size(-1)) ** 0.5, dim=-1) @ v


def checkpointed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return checkpoint(plain, q, k, v, use_reentrant=False)


def ones_column(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Append a column of ones to the values, which becomes the denominator."""
    mixed = (q @ k.mT / root(q)).exp() @ torch.cat([v, torch.ones_like(v[..., :1])], -1)
    return mixed[..., :-1] / mixed[..., -1:]


def key_blocks(q: Tensor, k: Tensor, v: Tensor, merge: Step) -> Tensor:
    """Return attention over two blocks of keys, merged by the logarithms of their sums."""
    scores = [q @ part.mT / root(q) for part in (k[:, :, :4], k[:, :, 4:])]
    mixed = [s.softmax(-1) @ part for s, part in zip(scores, (v[:, :, :4], v[:, :, 4:]), strict=True)]
    return merge(*mixed, *(s.logsumexp(-1, keepdim=True) for s in scores))


def merged_by_logaddexp(a: Tensor, b: Tensor, la: Tensor, lb: Tensor) -> Tensor:
    total = torch.logaddexp(la, lb)
    return a * (la - total).exp() + b * (lb - total).exp()


def heads_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = torch.empty_like(q)
    for i in range(q.shape[1]):
        out[:, i] = plain(q[:, i], k[:, i], v[:, i])
    return out


def queries_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros_like(q)
    for i in range(0, q.shape[2], 3):
        out[:, :, i : i + 3] = plain(q[:, :, i : i + 3], k, v)
    return out


def null_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Append a key that no query sees."""
    s = F.pad(q @ k.mT / root(q), (0, 1), value=-math.inf)
    return s.softmax(-1) @ F.pad(v, (0, 0, 0, 1))


def static_cache(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Write keys and values into longer tensors, of which the rest is masked, as gpt-fast does."""
    n, places = q.shape[2], torch.arange(q.shape[2])
    keys, values = (t.new_zeros(*t.shape[:2], 16, t.shape[-1]).index_copy(2, places, t) for t in (k, v))
    return (q @ keys.mT / root(q)).masked_fill(torch.arange(16) >= n, -math.inf).softmax(-1) @ values


def about_mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mean = v.mean(2, keepdim=True)
    return mean + (q @ k.mT / root(q)).softmax(-1) @ (v - mean)


def about_identity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v + ((q @ k.mT / root(q)).softmax(-1) - torch.eye(q.shape[2], dtype=q.dtype)) @ v


def distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute scores from squared distances of queries and keys."""
    apart = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    return ((k.square().sum(-1).unsqueeze(-2) - apart) / 2 / root(q)).softmax(-1) @ v


def feature_halves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Add the scores of the first half of features and of the second."""
    half = q.shape[-1] // 2
    s = q[..., :half] @ k[..., :half].mT + q[..., half:] @ k[..., half:].mT
    return (s / root(q)).softmax(-1) @ v


def summed_per_head(x: Tensor, p: Projections) -> Branch:
    """Compute and project heads one by one, and add them up."""
    q, k, v = p.parts(x)
    weights = p.out_weight.chunk(p.heads, 1)
    parts = [plain(q[:, i], k[:, i], v[:, i]) @ weight.t() for i, weight in enumerate(weights)]
    return p.done(sum(parts[1:], parts[0]) + p.out_bias)


WHOLE_PLAIN: dict[str, Attention] = {
    "distances": heads(distances),
    "feature-halves": heads(feature_halves),
    "summed-per-head": summed_per_head,
    "ones-column": heads(ones_column),
    "key-blocks-logaddexp": heads(lambda q, k, v: key_blocks(q, k, v, merged_by_logaddexp)),
    "key-blocks-sigmoid": heads(
        lambda q, k, v: key_blocks(q, k, v, lambda a, b, la, lb: torch.lerp(b, a, (la - lb).sigmoid()))
    ),
    "heads-written": heads(heads_written),
    "queries-written": heads(queries_written),
    "head-groups": heads(lambda q, k, v: torch.cat([plain(*(t[:, i : i + 2] for t in (q, k, v))) for i in (0, 2)], 1)),
    "fused-head-groups": heads(
        lambda q, k, v: torch.cat([sdpa(*(t[:, i : i + 2] for t in (q, k, v))) for i in (0, 2)], 1)
    ),
    "null-key": heads(null_key),
    "static-cache": heads(static_cache),
    "about-mean": heads(about_mean),
    "about-identity": heads(about_identity),
    "doubled-map": heads(lambda q, k, v: (2 * (q @ k.mT / root(q)).softmax(-1)) @ (v / 2)),
    "fused-scale": heads(lambda q, k, v: sdpa(q, k, v, scale=1 / root(q))),
    "fused-keywords": heads(lambda q, k, v: sdpa(query=q, key=k, value=v, attn_mask=None, dropout_p=0.0)),
    "fused-query-scaled": heads(lambda q, k, v: sdpa(q / root(q), k, v, scale=1.0)),
    "fused-zero-mask": heads(lambda q, k, v: sdpa(q, k, v, attn_mask=zeros(q))),
    "fused-ones-mask": heads(lambda q, k, v: sdpa(q, k, v, attn_mask=ones(q))),
    "fused-ones-mask-4d": heads(lambda q, k, v: sdpa(q, k, v, ones(q)[None, None].expand(len(q), 1, -1, -1))),
    "fused-contiguous": heads(lambda q, k, v: sdpa(q.contiguous(), k.contiguous(), v.contiguous())),
    "fused-merged": lambda x, p: p.branch(sdpa(*(t.flatten(0, 1) for t in p.parts(x))).unflatten(0, (-1, p.heads))),
    "fused-loop": heads(fused_loop),
    "fused-query-blocks": heads(fused_query_blocks),
    "loop-over-heads": heads(loop_over_heads),
    "loop-over-heads-cat": loop_and_cat,
    "loop-over-samples": heads(loop_over_samples),
    "loop-over-queries": heads(loop_over_queries),
    "query-blocks": heads(query_blocks),
    "running-softmax": heads(running_softmax),
    "unnormalised": heads(unnormalised),
    "tokens-first": tokens_first,
    "merged-heads": merged_heads,
    "merged-baddbmm": merged_baddbmm,
    "tokens-before-heads": tokens_before_heads,
    "heads-last": maps_with_heads_last,
    "three-operands": three_operands,
    "three-operand-scores": heads(three_operand_scores),
    "output-per-head": output_per_head,
    "values-projected-first": values_projected_first,
    "functional-module": functional_module,
    "three-projections": three_projections,
    "unbound": unbound,
    "channels-first": channels_first,
    "projected-to-heads": projected_to_heads,
    "scripted": heads(scripted),
    "checkpointed": heads(checkpointed),
    "vmapped": heads(torch.vmap(torch.vmap(plain))),
    "map-transposed": heads(softmax_over_queries_axis),
}  # fmt: skip


def past(q: Tensor) -> Tensor:
    """Return True where a query sees a key: itself and what precedes it."""
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()


def future(q: Tensor) -> Tensor:
    """Return the additive causal mask: minus infinity above the diagonal."""
    return torch.full((q.shape[-2], q.shape[-2]), -math.inf, dtype=q.dtype).triu(1)


def masked(softmax: Step) -> Attention:
    """Return causal attention from a softmax of scores and the mask of what is seen."""
    return heads(lambda q, k, v: softmax(q @ k.mT / root(q), past(q)) @ v)


def exp_times_mask(s: Tensor, seen: Tensor) -> Tensor:
    e = s.exp() * seen
    return e / e.sum(-1, keepdim=True)


def over(e: Tensor, eps: float = 0.0) -> Tensor:
    """Return numbers over their sum."""
    return e / (e.sum(-1, keepdim=True) + eps)


def masked_after(s: Tensor, seen: Tensor) -> Tensor:
    a = s.softmax(-1) * seen
    return a / a.sum(-1, keepdim=True)


def where_after(s: Tensor, seen: Tensor) -> Tensor:
    a = torch.where(seen, s.softmax(-1), 0.0)
    return F.normalize(a, p=1, dim=-1)


def triangle_after(s: Tensor, seen: Tensor) -> Tensor:
    a = s.softmax(-1).tril()
    return a / a.sum(-1, keepdim=True)


def in_place_mask(s: Tensor, seen: Tensor) -> Tensor:
    s = s.clone()
    s[..., ~seen] = -math.inf
    return s.softmax(-1)


def prefixes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention, one query after the other over a growing cache of keys."""
    n = q.shape[2]
    return torch.cat([plain(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(n)], 2)


def prefill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of the first five queries, then of the others over all keys."""
    first = sdpa(q[:, :, :5], k[:, :, :5], v[:, :, :5], is_causal=True)
    return torch.cat([first, sdpa(q[:, :, 5:], k, v, attn_mask=past(q)[5:])], 2)


CAUSAL: dict[str, Attention] = {
    "usual": heads(lambda q, k, v: sdpa(q, k, v, is_causal=True)),
    "fused-bool": heads(lambda q, k, v: sdpa(q, k, v, attn_mask=past(q))),
    "fused-prefill": heads(prefill),
    "fused-additive": heads(lambda q, k, v: sdpa(q, k, v, attn_mask=future(q))),
    "fused-lowest": heads(lambda q, k, v: sdpa(q, k, v, future(q).clamp(min=torch.finfo(q.dtype).min))),
    "additive": masked(lambda s, seen: (s + future(s)).softmax(-1)),
    "additive-first": masked(lambda s, seen: (future(s) + s).softmax(-1)),
    "masked-fill": masked(lambda s, seen: s.masked_fill(~seen, -math.inf).softmax(-1)),
    "masked-fill-lowest": masked(lambda s, seen: s.masked_fill(~seen, torch.finfo(s.dtype).min).softmax(-1)),
    "where": masked(lambda s, seen: torch.where(seen, s, -math.inf).softmax(-1)),
    "where-tensor": masked(lambda s, seen: torch.where(seen, s, torch.full_like(s, -1e30)).softmax(-1)),
    "gpt2": masked(
        lambda s, seen: torch.where(seen, s, torch.full([], torch.finfo(s.dtype).min, dtype=s.dtype)).softmax(-1)
    ),
    "one-minus-mask": masked(lambda s, seen: (s + (1.0 - seen.to(s.dtype)) * -1e30).softmax(-1)),
    "product-minus": masked(lambda s, seen: (s * seen - 1e30 * (1 - seen.to(s.dtype))).softmax(-1)),
    "exp-times-mask": masked(exp_times_mask),
    "exp-where": masked(lambda s, seen: over(torch.where(seen, s.exp(), 0.0))),
    "exp-masked-fill": masked(lambda s, seen: over(s.exp().masked_fill(~seen, 0.0))),
    "exp-triangle": masked(lambda s, seen: over(s.exp().tril())),
    "maximum-times-mask": masked(lambda s, seen: over((s - s.amax(-1, keepdim=True)).exp() * seen)),
    "maximum-of-seen": masked(
        lambda s, seen: over(torch.where(seen, (s - s.masked_fill(~seen, -1e9).amax(-1, keepdim=True)).exp(), 0.0))
    ),
    "mask-and-sum-plus-eps": masked(lambda s, seen: over(s.exp() * seen, 1e-12)),
    "softmax-of-shifted": masked(
        lambda s, seen: (s - s.amax(-1, keepdim=True).detach()).masked_fill(~seen, -math.inf).softmax(-1)
    ),
    "mask-after": masked(masked_after),
    "where-after": masked(where_after),
    "triangle-after": masked(triangle_after),
    "fill-after": masked(lambda s, seen: s.masked_fill(~seen, -math.inf).softmax(-1).masked_fill(~seen, 0.0)),
    "nan-to-num-after": masked(lambda s, seen: (s + future(s)).softmax(-1).nan_to_num(0.0)),
    "in-place": masked(in_place_mask),
    "baddbmm": lambda x, p: p.branch(causal_baddbmm(*p.parts(x))),
    "prefixes": heads(prefixes),
    "functional-module": lambda x, p: functional_module(x, p, attn_mask=~past(x)),
    "functional-module-flag": lambda x, p: functional_module(x, p, attn_mask=future(x), is_causal=True),
    "log-softmax": masked(lambda s, seen: F.log_softmax(s.masked_fill(~seen, -1e30), -1).exp()),
}


def causal_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, n, _ = q.shape
    mask = future(q).expand(b * h, n, n)
    s = torch.baddbmm(mask, q.flatten(0, 1), k.flatten(0, 1).mT, beta=1.0, alpha=1 / root(q))
    return torch.bmm(s.softmax(-1), v.flatten(0, 1)).view(b, h, n, -1)


def repeated(repeat: Step, attend: Step = plain) -> Attention:
    """Return an attention whose heads of keys and values are repeated for the queries that share them."""

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        times = q.shape[1] // k.shape[1]
        return attend(q, repeat(k, times), repeat(v, times))

    return heads(core)


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    g = q.unflatten(1, (k.shape[1], -1))
    a = (torch.einsum("bgrsd,bgtd->bgrst", g, k) / root(q)).softmax(-1)
    return torch.einsum("bgrst,bgtd->bgrsd", a, v).flatten(1, 2)


def grouped_broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    g = q.unflatten(1, (k.shape[1], -1))
    return plain(g, k.unsqueeze(2), v.unsqueeze(2)).flatten(1, 2)


def grouped_loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    return torch.stack([plain(q[:, i], k[:, i // times], v[:, i // times]) for i in range(q.shape[1])], 1)


def folded_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fold the heads that share keys into the queries' axis: ``[batch, groups, heads * queries, head width]``."""
    folded = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    return plain(folded, k, v).unflatten(2, (-1, q.shape[2])).flatten(1, 2)


def expanded(t: Tensor, times: int) -> Tensor:
    b, g, n, d = t.shape
    return t[:, :, None].expand(b, g, times, n, d).reshape(b, g * times, n, d)


def gathered(t: Tensor, times: int) -> Tensor:
    index = torch.arange(t.shape[1] * times) // times
    return t.gather(1, index[None, :, None, None].expand(len(t), -1, *t.shape[2:]))


REPEATS: dict[str, Step] = {
    "repeat-interleave": lambda t, n: t.repeat_interleave(n, 1),
    "expand": expanded,
    "repeat": lambda t, n: t.unsqueeze(2).repeat(1, 1, n, 1, 1).flatten(1, 2),
    "index": lambda t, n: t[:, torch.arange(t.shape[1] * n) // n],
    "index-select": lambda t, n: t.index_select(1, torch.arange(t.shape[1]).repeat_interleave(n)),
    "stack": lambda t, n: torch.stack([t] * n, 2).flatten(1, 2),
    "cat": lambda t, n: torch.cat([t[:, i // n : i // n + 1] for i in range(t.shape[1] * n)], 1),
    "gather": gathered,
}

GROUPED: dict[str, Attention] = {
    "usual": repeated(REPEATS["repeat-interleave"], sdpa),
    "fused-flag": heads(lambda q, k, v: sdpa(q, k, v, enable_gqa=True)),
    "fused-expand": repeated(expanded, sdpa),
    **{name: repeated(repeat) for name, repeat in REPEATS.items()},
    "einsum": heads(grouped_einsum),
    "broadcast": heads(grouped_broadcast),
    "loop": heads(grouped_loop),
    "folded-queries": heads(folded_queries),
    "group-loop": heads(
        lambda q, k, v: torch.cat([plain(q[:, 2 * i : 2 * i + 2], k[:, i : i + 1], v[:, i : i + 1]) for i in (0, 1)], 1)
    ),
    "fused-group-loop": heads(
        lambda q, k, v: torch.cat(
            [
                sdpa(q[:, 2 * i : 2 * i + 2], k[:, i, None].expand(-1, 2, -1, -1), v[:, i, None].expand(-1, 2, -1, -1))
                for i in (0, 1)
            ],
            1,
        )
    ),
}


def shared_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = (torch.einsum("bhsd,btd->bhst", q, k[:, 0]) / root(q)).softmax(-1)
    return torch.einsum("bhst,btd->bhsd", a, v[:, 0])


def shared_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a = torch.bmm(q.flatten(1, 2), k[:, 0].mT).div(root(q)).softmax(-1)
    return torch.bmm(a, v[:, 0]).view_as(q)


MULTI_QUERY: dict[str, Attention] = {
    "usual": heads(lambda q, k, v: sdpa(q, k.expand_as(q), v.expand_as(q))),
    "broadcast": heads(plain),
    "fused-broadcast": heads(lambda q, k, v: sdpa(q, k, v, enable_gqa=True)),
    "einsum": heads(shared_einsum),
    "folded-bmm": heads(shared_bmm),
    "repeat": repeated(REPEATS["repeat"]),
    "loop": heads(grouped_loop),
    "stack": repeated(REPEATS["stack"]),
}


def distance(q: Tensor) -> Tensor:
    """Return what a query and a key far apart lose of their score: ALiBi for both directions, ``[heads, n, n]``."""
    n = torch.arange(q.shape[-2], dtype=q.dtype)
    return -(n[:, None] - n).abs() * torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=q.dtype)[:, None, None]


def biased(softmax: Step) -> Attention:
    """Return an attention from a softmax of scores and of what is added to them."""
    return heads(lambda q, k, v: softmax(q @ k.mT / root(q), distance(q)) @ v)


BIASED: dict[str, Attention] = {
    "usual": heads(lambda q, k, v: sdpa(q, k, v, attn_mask=distance(q))),
    "additive": biased(lambda s, b: (s + b).softmax(-1)),
    "bias-first": biased(lambda s, b: (b + s).softmax(-1)),
    "exp-product": biased(lambda s, b: over(s.exp() * b.exp())),
    "decay": biased(lambda s, b: over(b.exp() * (s - s.amax(-1, keepdim=True)).exp())),
    "after-softmax": biased(lambda s, b: over(s.softmax(-1) * b.exp())),
    "exp-of-sum": biased(lambda s, b: over((s + b).exp())),
    "logsumexp": biased(lambda s, b: torch.exp(s + b - torch.logsumexp(s + b, -1, keepdim=True))),
    "shifted": biased(lambda s, b: (s + b - (s + b).amax(-1, keepdim=True).detach()).softmax(-1)),
}


def sink_below_maximum(s: Tensor) -> Tensor:
    m = s.amax(-1, keepdim=True).clamp(min=0)
    e = (s - m).exp()
    return e / (e.sum(-1, keepdim=True) + (-m).exp())


def with_sink(softmax: Step) -> Attention:
    """Return an attention whose rows sum to less than 1: a key with the score 0 and without values."""
    return heads(lambda q, k, v: softmax(q @ k.mT / root(q)) @ v)


SINK: dict[str, Attention] = {
    "usual": with_sink(lambda s: F.pad(s, (0, 1)).softmax(-1)[..., :-1]),
    "cat": with_sink(lambda s: torch.cat([s, torch.zeros_like(s[..., :1])], -1).softmax(-1).narrow(-1, 0, s.shape[-1])),
    "one-plus-sum": with_sink(lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True))),
    "maximum": with_sink(sink_below_maximum),
    "fused": heads(lambda q, k, v: sdpa(q, F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)))),
}


def head_gates(q: Tensor) -> Tensor:
    """Return a factor of each head, ``[heads, 1, 1]``."""
    return torch.linspace(0.5, 1.5, q.shape[1], dtype=q.dtype)[:, None, None]


HEAD_GATED: dict[str, Attention] = {
    "usual": heads(lambda q, k, v: plain(q, k, v) * head_gates(q)),
    "map": heads(lambda q, k, v: ((q @ k.mT / root(q)).softmax(-1) * head_gates(q)) @ v),
    "map-quotient": heads(lambda q, k, v: ((q @ k.mT / root(q)).softmax(-1) / (1 / head_gates(q))) @ v),
    "values": heads(lambda q, k, v: plain(q, k, v * head_gates(q))),
    "einsum": heads(
        lambda q, k, v: torch.einsum("bhst,bhtd,h->bhsd", (q @ k.mT / root(q)).softmax(-1), v, head_gates(q).flatten())
    ),
}


CAP = 2.0


def capped(cap: Step) -> Attention:
    """Return an attention whose scores are bounded, as in Gemma 2."""
    return heads(lambda q, k, v: cap(q @ k.mT / root(q)).softmax(-1) @ v)


CAPPED: dict[str, Attention] = {
    "usual": capped(lambda s: torch.tanh(s / CAP) * CAP),
    "cap-first": capped(lambda s: CAP * torch.tanh(s / CAP)),
    "in-place": capped(lambda s: (s / CAP).tanh_().mul(CAP)),
    "sigmoid": capped(lambda s: CAP * (2 * torch.sigmoid(2 * s / CAP) - 1)),
    "function": capped(lambda s: torch.mul(F.tanh(torch.div(s, CAP)), CAP)),
}


def plain_attentions() -> dict[str, Attention]:
    """Return the usual attention first, then every named spelling without a mask."""
    usual = [next(iter(table.values())) for table in STEPS]
    named: dict[str, Attention] = {"usual": heads(sdpa)}
    for i, (step, table) in enumerate(zip(("scores", "scale", "softmax", "after", "mix"), STEPS, strict=True)):
        for name, function in table.items():
            named[f"{step}-{name}"] = stepwise(*usual[:i], function, *usual[i + 1 :])
    return named | WHOLE_PLAIN


def rotary(rotations: dict[str, Rotation]) -> dict[str, Attention]:
    """Return attentions with rotary positions, fused and in single operations, in each spelling of the rotation."""
    fused = {
        name: heads(lambda q, k, v, rotated=rotated: sdpa(rotated(q), rotated(k), v))
        for name, rotated in rotations.items()
    }
    rotated = rotations["usual"]
    return fused | {"unfused": heads(lambda q, k, v: (rotated(q) @ rotated(k).mT / root(q)).softmax(-1) @ v)}


ATTENTIONS: dict[str, dict[str, Attention]] = {
    "plain": plain_attentions(),
    "causal": CAUSAL,
    "grouped": GROUPED,
    "multi-query": MULTI_QUERY,
    "capped": CAPPED,
    "biased": BIASED,
    "sink": SINK,
    "head-gated": HEAD_GATED,
    "rotary": rotary(HALVES),
    "rotary-pairs": rotary(NEIGHBOURS),
}

#: the spelling of each kind by a matrix product, a softmax and a matrix product
UNFUSED = {
    "plain": "softmax-method",
    "causal": "masked-fill",
    "grouped": "repeat-interleave",
    "multi-query": "broadcast",
    "capped": "usual",
    "biased": "additive",
    "sink": "usual",
    "head-gated": "usual",
    "rotary": "unfused",
    "rotary-pairs": "unfused",
}
