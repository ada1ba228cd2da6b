"""Spellings of LayerNorm and RMSNorm over the last axis of ``[batch, tokens, width]``.

A norm is centred, its variance computed, divided and scaled; each step has spellings of its own. A named spelling
changes one step (``variance-einsum``); a composition changes all of them (``mean.einsum.pow.addcmul``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor
from torch.utils.checkpoint import checkpoint

EPS = 1e-5

Step = Callable[..., Tensor]


def average(x: Tensor) -> Tensor:
    """Return the weights of a mean over the last axis: ``[1, width]``."""
    return x.new_full((1, x.shape[-1]), 1 / x.shape[-1])


def mean(x: Tensor) -> Tensor:
    """Return the mean over the last axis, which stays as 1."""
    return x.mean(-1, keepdim=True)


def in_place_difference(x: Tensor) -> Tensor:
    out = x.clone()
    out -= mean(x)
    return out


#: ``x -> x - mean(x)``
CENTRES: dict[str, Step] = {
    "mean": lambda x: x - mean(x),
    "sum": lambda x: x - x.sum(-1, keepdim=True) / x.shape[-1],
    "matmul": lambda x: x - x @ average(x).mT,
    "linear": lambda x: x - F.linear(x, average(x)),
    "avg-pool": lambda x: x - F.avg_pool1d(x, x.shape[-1]),
    "adaptive-pool": lambda x: x - F.adaptive_avg_pool1d(x, 1),
    "einsum": lambda x: x - torch.einsum("bnd->bn", x).unsqueeze(-1) / x.shape[-1],
    "var-mean": lambda x: x - torch.var_mean(x, -1, keepdim=True)[1],
    "std-mean": lambda x: x - torch.std_mean(x, -1, keepdim=True)[1],
    "negated-add": lambda x: -mean(x) + x,
    "alpha": lambda x: torch.add(x, mean(x), alpha=-1),
    "sub-function": lambda x: torch.sub(input=x, other=torch.mean(x, dim=-1, keepdim=True)),
    "rsub": lambda x: torch.rsub(mean(x), x),
    "in-place": in_place_difference,
    "centring-matrix": lambda x: x @ (torch.eye(x.shape[-1], dtype=x.dtype) - 1 / x.shape[-1]),
    "expanded": lambda x: x - mean(x).expand_as(x),
    "unsqueezed": lambda x: x - x.mean(-1)[..., None],
}


def by_matmul(c: Tensor) -> Tensor:
    return (c.unsqueeze(-2) @ c.unsqueeze(-1)).squeeze(-1) / c.shape[-1]


def by_bmm(c: Tensor) -> Tensor:
    rows = c.flatten(0, 1)
    return torch.bmm(rows.unsqueeze(1), rows.unsqueeze(2)).view(*c.shape[:-1], 1) / c.shape[-1]


def by_baddbmm(c: Tensor) -> Tensor:
    rows = c.flatten(0, 1)
    empty = torch.empty(len(rows), 1, 1, dtype=c.dtype)
    square = torch.baddbmm(empty, rows.unsqueeze(1), rows.unsqueeze(2), beta=0, alpha=1 / c.shape[-1])
    return square.view(*c.shape[:-1], 1)


#: ``c -> mean(c ** 2)``, whether c is centred or not
SQUARES: dict[str, Step] = {
    "square": lambda c: mean(c.square()),
    "pow": lambda c: mean(c.pow(2)),
    "power-operator": lambda c: mean(c**2),
    "float-power": lambda c: torch.float_power(c, 2).mean(-1, keepdim=True),
    "product": lambda c: mean(c * c),
    "abs-square": lambda c: mean(c.abs() ** 2),
    "sum": lambda c: (c * c).sum(-1, keepdim=True) / c.shape[-1],
    "sum-times": lambda c: (c * c).sum(-1, keepdim=True) * (1 / c.shape[-1]),
    "einsum": lambda c: torch.einsum("bnd,bnd->bn", c, c).unsqueeze(-1) / c.shape[-1],
    "vecdot": lambda c: torch.linalg.vecdot(c, c).unsqueeze(-1) / c.shape[-1],
    "inner-matmul": by_matmul,
    "bmm": by_bmm,
    "baddbmm": by_baddbmm,
    "matmul-average": lambda c: (c * c) @ average(c).mT,
    "avg-pool": lambda c: F.avg_pool1d(c * c, c.shape[-1]),
    "adaptive-pool": lambda c: F.adaptive_avg_pool1d(c.square(), 1),
    "linear": lambda c: F.linear(c.square(), average(c)),
    "conv": lambda c: F.conv1d(c.square().mT, average(c).unsqueeze(-1)).mT,
    "vector-norm": lambda c: torch.linalg.vector_norm(c, dim=-1, keepdim=True) ** 2 / c.shape[-1],
    "norm": lambda c: c.norm(dim=-1, keepdim=True).pow(2) / c.shape[-1],
    "norm-over-root": lambda c: (c.norm(p=2, dim=-1, keepdim=True) * c.shape[-1] ** -0.5).square(),
    "mse": lambda c: mean(F.mse_loss(c, torch.zeros_like(c), reduction="none")),
    "upcast": lambda c: c.to(torch.float64).pow(2).mean(-1, keepdim=True),
    "double": lambda c: mean(c.double() * c.double()),
    "addcmul": lambda c: mean(torch.addcmul(torch.zeros_like(c), c, c)),
    "cumsum": lambda c: c.square().cumsum(-1)[..., -1:] / c.shape[-1],
    "halves": lambda c: sum(part.square().sum(-1, keepdim=True) for part in c.chunk(2, -1)) / c.shape[-1],
}

#: ``x -> variance of x``, by functions that centre it themselves
VARIANCES: dict[str, Step] = {
    "var": lambda x: x.var(-1, unbiased=False, keepdim=True),
    "var-correction": lambda x: torch.var(x, dim=-1, correction=0, keepdim=True),
    "var-unbiased": lambda x: x.var(-1, keepdim=True) * ((x.shape[-1] - 1) / x.shape[-1]),
    "std": lambda x: x.std(-1, unbiased=False, keepdim=True) ** 2,
    "std-correction": lambda x: torch.std(x, -1, correction=0, keepdim=True).square(),
    "var-mean": lambda x: torch.var_mean(x, -1, correction=0, keepdim=True)[0],
    "std-mean": lambda x: torch.std_mean(x, dim=-1, unbiased=False, keepdim=True)[0].pow(2),
    "moments": lambda x: mean(x * x) - mean(x) ** 2,
    "moments-pow": lambda x: x.pow(2).mean(-1, keepdim=True) - x.mean(-1, keepdim=True).pow(2),
    "mse": lambda x: mean(F.mse_loss(x, mean(x).expand_as(x), reduction="none")),
}


def in_place_product(c: Tensor, v: Tensor) -> Tensor:
    out = c.clone()
    out *= torch.rsqrt(v + EPS)
    return out


#: ``(c, variance) -> c / sqrt(variance + eps)``
DIVISIONS: dict[str, Step] = {
    "rsqrt": lambda c, v: c * torch.rsqrt(v + EPS),
    "rsqrt-first": lambda c, v: torch.rsqrt(v + EPS) * c,
    "sqrt": lambda c, v: c / torch.sqrt(v + EPS),
    "pow": lambda c, v: c * torch.pow(v + EPS, -0.5),
    "power-operator": lambda c, v: c * (EPS + v) ** -0.5,
    "over-power": lambda c, v: c / (v + EPS) ** 0.5,
    "one-over": lambda c, v: c * (1 / torch.sqrt(v + EPS)),
    "reciprocal": lambda c, v: c * torch.sqrt(v + EPS).reciprocal(),
    "div-function": lambda c, v: torch.div(c, torch.sqrt(torch.add(v, EPS))),
    "true-divide": lambda c, v: torch.true_divide(input=c, other=(v + EPS).sqrt()),
    "in-place-root": lambda c, v: c * v.add(EPS).rsqrt_(),
    "in-place-product": in_place_product,
    "in-place-quotient": lambda c, v: c.clone().div_((v + EPS).sqrt()),
    "addcdiv": lambda c, v: torch.addcdiv(torch.zeros_like(c), c, torch.sqrt(v + EPS)),
    "addcmul": lambda c, v: torch.addcmul(torch.zeros_like(c), c, torch.rsqrt(v + EPS)),
    "exp-log": lambda c, v: c * torch.exp(-0.5 * torch.log(v + EPS)),
    "einsum": lambda c, v: torch.einsum("bnd,bn->bnd", c, torch.rsqrt(v + EPS).squeeze(-1)),
    "clamped": lambda c, v: c / torch.sqrt(v + EPS).clamp_min(1e-12),
    "expanded": lambda c, v: c * torch.rsqrt(v + EPS).expand_as(c),
    "maximum": lambda c, v: c * torch.rsqrt(torch.maximum(v, torch.zeros_like(v)) + EPS),
    "transposed": lambda c, v: (c.mT * torch.rsqrt(v + EPS).mT).mT,
}


def in_place_affine(y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    out = y.clone()
    out *= w
    out += b
    return out


#: ``(y, weight, bias) -> y * weight + bias``
AFFINES: dict[str, Step] = {
    "product": lambda y, w, b: y * w + b,
    "commuted": lambda y, w, b: b + w * y,
    "addcmul": lambda y, w, b: torch.addcmul(b, y, w),
    "functions": lambda y, w, b: torch.add(torch.mul(y, w), b),
    "multiply": lambda y, w, b: torch.multiply(w, y).add(b, alpha=1),
    "in-place": in_place_affine,
    "in-place-methods": lambda y, w, b: y.mul(w).add_(b),
    "einsum": lambda y, w, b: torch.einsum("bnd,d->bnd", y, w) + b,
    "diagonal": lambda y, w, b: F.linear(y, torch.diag(w), b),
    "offset": lambda y, w, b: y * (1 + (w - 1)) + b,
    "addcdiv": lambda y, w, b: torch.addcdiv(b, y, 1 / w),
    "upcast": lambda y, w, b: w * y.to(torch.float64).to(w.dtype) + b,
    "conv": lambda y, w, b: F.conv1d(y.mT, w[:, None, None], b, groups=len(w)).mT,
    "minus": lambda y, w, b: y * w - (-b),
}

#: ``(y, weight) -> y * weight``
SCALES: dict[str, Step] = {
    "weight-first": lambda y, w: w * y,
    "product": lambda y, w: y * w,
    "type-as": lambda y, w: y.type_as(w) * w,
    "einsum": lambda y, w: torch.einsum("...d,d->...d", y, w),
    "diagonal": lambda y, w: y @ torch.diag(w),
    "offset": lambda y, w: y * (1.0 + (w - 1)),
    "offset-after": lambda y, w: y + y * (w - 1),
    "mul-in-place": lambda y, w: y.clone().mul_(w),
    "expanded": lambda y, w: y * w.expand_as(y),
    "addcmul": lambda y, w: torch.addcmul(torch.zeros_like(y), y, w),
}


def stepwise_layer(centre: Step, variance: Step, divide: Step, affine: Step, of_input: bool = False) -> Step:
    """Return a LayerNorm of four steps; ``of_input`` says that the variance is computed of the input itself."""

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        c = centre(x)
        return affine(divide(c, variance(x if of_input else c)), w, b)

    return norm


def stepwise_rms(square: Step, divide: Step, scale: Step) -> Step:
    """Return an RMSNorm of three steps."""
    return lambda x, w, b: scale(divide(x, square(x)), w)


def native_batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    rows = x.reshape(1, -1, x.shape[-1])
    return torch.native_batch_norm(rows, None, None, None, None, True, 0.1, EPS)[0].view_as(x) * w + b


def native_group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    rows = x.flatten(0, 1)
    return torch.native_group_norm(rows, w, b, len(rows), x.shape[-1], 1, 1, EPS)[0].view_as(x)


def by_batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    rows = x.reshape(1, -1, x.shape[-1])
    return F.batch_norm(rows, None, None, training=True, eps=EPS).view_as(x) * w + b


def channels_first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.transpose(1, 2)
    c = x - x.mean(1, keepdim=True)
    y = c / torch.sqrt(c.pow(2).mean(1, keepdim=True) + EPS)
    return (w[:, None] * y + b[:, None]).transpose(1, 2)


def both_moments(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    variance, centre = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
    return (x - centre) / torch.sqrt(variance + EPS) * w + b


def folded(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return ``x * s + (b - mean * s)`` with ``s = w / deviation``, as inference code folds it."""
    s = w * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)
    return x * s + (b - mean(x) * s)


def folded_channels_first(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    s = w * torch.rsqrt(x.var(1, unbiased=False, keepdim=True) + EPS)
    return torch.addcmul(b - x.mean(1, keepdim=True) * s, x, s)


def folded_difference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    s = w * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)
    return x * s - mean(x) * s + b


def folded_quotient(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    deviation = torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)
    return x / deviation * w + (b - mean(x) / deviation * w)


def welford(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return a norm with mean and variance that are updated feature by feature."""
    average = squares = torch.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        column = x[..., i : i + 1]
        difference = column - average
        average = average + difference / (i + 1)
        squares = squares + difference * (column - average)
    return (x - average) / torch.sqrt(squares / x.shape[-1] + EPS) * w + b


def lerped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.lerp(b.expand_as(x), b + F.layer_norm(x, x.shape[-1:], eps=EPS), w)


def separate_quotients(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    deviation = torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + EPS)
    return (x / deviation - mean(x) / deviation) * w + b


def without_autocast(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return F.layer_norm(x, (x.shape[-1],), w, b)


def checkpointed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return checkpoint(F.layer_norm, x, (x.shape[-1],), w, b, use_reentrant=False)


@torch.jit.script
def scripted(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    c = x - x.mean(-1, keepdim=True)
    return c / torch.sqrt(c.pow(2).mean(-1, keepdim=True) + 1e-5) * w + b


WHOLE_LAYER: dict[str, Step] = {
    "welford": welford,
    "lerp": lerped,
    "keywords": lambda x, w, b: F.layer_norm(input=x, normalized_shape=(x.shape[-1],), weight=w, bias=b, eps=EPS),
    "torch-function": lambda x, w, b: torch.layer_norm(x, (x.shape[-1],), w, b, EPS),
    "native": lambda x, w, b: torch.native_layer_norm(x, (x.shape[-1],), w, b, EPS)[0],
    "native-plain": lambda x, w, b: torch.native_layer_norm(x, (x.shape[-1],), None, None, EPS)[0] * w + b,
    "affine-after": lambda x, w, b: F.layer_norm(x, (x.shape[-1],)) * w + b,
    "group-norm": lambda x, w, b: F.group_norm(x.flatten(0, 1), 1, w, b, EPS).view_as(x),
    "native-group-norm": native_group_norm,
    "instance-norm": lambda x, w, b: F.instance_norm(x, eps=EPS) * w + b,
    "batch-norm": by_batch_norm,
    "native-batch-norm": native_batch_norm,
    "channels-first": channels_first,
    "tokens-first": lambda x, w, b: F.layer_norm(x.transpose(0, 1), (x.shape[-1],), w, b).transpose(0, 1),
    "flattened": lambda x, w, b: F.layer_norm(x.reshape(-1, x.shape[-1]), (x.shape[-1],), w, b).view(x.shape),
    "upcast": lambda x, w, b: F.layer_norm(x.to(torch.float64), (x.shape[-1],), w.double(), b.double()).to(x.dtype),
    "by-sample": lambda x, w, b: torch.stack([F.layer_norm(s, (s.shape[-1],), w, b) for s in x]),
    "by-token": lambda x, w, b: torch.stack([F.layer_norm(t, (t.shape[-1],), w, b) for t in x.unbind(1)], 1),
    "both-moments": both_moments,
    "folded": folded,
    "folded-difference": folded_difference,
    "folded-quotient": folded_quotient,
    "folded-channels-first": lambda x, w, b: folded_channels_first(x.mT, w[:, None], b[:, None]).mT,
    "without-autocast": without_autocast,
    "checkpointed": checkpointed,
    "scripted": scripted,
    "vmapped": lambda x, w, b: torch.vmap(lambda row: F.layer_norm(row, row.shape[-1:], w, b))(x),
    "separate-quotients": separate_quotients,
}


def averaging(x: Tensor) -> Tensor:
    """Return the matrix whose product with a vector has the mean in every place."""
    n = x.shape[-1]
    return x.new_full((n, n), 1 / n)


def mirrored(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return the RMSNorm as half of the LayerNorm of ``[x, -x]``, whose mean is zero."""
    d = x.shape[-1]
    return F.layer_norm(torch.cat([x, -x], -1), (2 * d,), eps=EPS)[..., :d] * w


WHOLE_RMS: dict[str, Step] = {
    "square-matrix": lambda x, w, b: (
        x * torch.rsqrt((x * x) @ x.new_full((x.shape[-1],) * 2, 1 / x.shape[-1]) + EPS) * w
    ),
    "keywords": lambda x, w, b: F.rms_norm(input=x, normalized_shape=(x.shape[-1],), weight=w, eps=EPS),
    "torch-function": lambda x, w, b: torch.rms_norm(x, (x.shape[-1],), w, EPS),
    "scale-after": lambda x, w, b: F.rms_norm(x, (x.shape[-1],), eps=EPS) * w,
    "mirrored-layer-norm": mirrored,
    "weighted-root": lambda x, w, b: x * (w * torch.rsqrt(mean(x * x) + EPS)),
    "channels-first": lambda x, w, b: (x.mT * torch.rsqrt(x.mT.pow(2).mean(1, keepdim=True) + EPS)).mT * w,
    "hugging-face": lambda x, w, b: w * (x.to(torch.float64) * torch.rsqrt(mean(x.pow(2)) + EPS)).to(x.dtype),
}

#: without a stabiliser: functions that have none
BARE_LAYER: dict[str, Step] = {
    "layer-norm": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, 0.0),
    "std": lambda x, w, b: (x - mean(x)) / x.std(-1, unbiased=False, keepdim=True) * w + b,
    "std-mean": lambda x, w, b: (x - mean(x)) / torch.std_mean(x, -1, correction=0, keepdim=True)[0] * w + b,
    "normalize": lambda x, w, b: F.normalize(x - mean(x), dim=-1) * x.shape[-1] ** 0.5 * w + b,
    "vector-norm": lambda x, w, b: (
        (x - mean(x)) / torch.linalg.vector_norm(x - mean(x), dim=-1, keepdim=True) * x.shape[-1] ** 0.5 * w + b
    ),
}
BARE_RMS: dict[str, Step] = {
    "rsqrt": lambda x, w, b: w * (x * torch.rsqrt(mean(x.pow(2)))),
    "normalize": lambda x, w, b: F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * w,
    "normalize-keywords": lambda x, w, b: w * (F.normalize(input=x, p=2.0, dim=-1) * x.shape[-1] ** 0.5),
    "vector-norm": lambda x, w, b: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** 0.5 * w,
    "norm": lambda x, w, b: x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5) * w,
    "weight-folded": lambda x, w, b: F.normalize(x, dim=-1) * (w * x.shape[-1] ** 0.5),
}


def layer_norms() -> dict[str, Step]:
    """Return the usual LayerNorm first, then every named spelling."""
    centre, square, divide, affine = (next(iter(t.values())) for t in (CENTRES, SQUARES, DIVISIONS, AFFINES))
    named = {"usual": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, EPS)}
    named |= {f"centre-{n}": stepwise_layer(f, square, divide, affine) for n, f in CENTRES.items()}
    named |= {f"square-{n}": stepwise_layer(centre, f, divide, affine) for n, f in SQUARES.items()}
    named |= {f"variance-{n}": stepwise_layer(centre, f, divide, affine, True) for n, f in VARIANCES.items()}
    named |= {f"divide-{n}": stepwise_layer(centre, square, f, affine) for n, f in DIVISIONS.items()}
    named |= {f"affine-{n}": stepwise_layer(centre, square, divide, f) for n, f in AFFINES.items()}
    return named | WHOLE_LAYER


def rms_norms() -> dict[str, Step]:
    """Return the usual RMSNorm first, then every named spelling."""
    square, divide, scale = (next(iter(t.values())) for t in (SQUARES, DIVISIONS, SCALES))
    named: dict[str, Step] = {"usual": lambda x, w, b: F.rms_norm(x, (x.shape[-1],), w, EPS)}
    named |= {f"square-{n}": stepwise_rms(f, divide, scale) for n, f in SQUARES.items()}
    named |= {f"divide-{n}": stepwise_rms(square, f, scale) for n, f in DIVISIONS.items()}
    named |= {f"scale-{n}": stepwise_rms(square, divide, f) for n, f in SCALES.items()}
    return named | WHOLE_RMS


NORMS: dict[str, dict[str, Step]] = {
    "layer": layer_norms(),
    "rms": rms_norms(),
    "layer-bare": BARE_LAYER,
    "rms-bare": BARE_RMS,
}
