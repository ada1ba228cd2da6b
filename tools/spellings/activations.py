"""Spellings of activation functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Activation = Callable[[Tensor], Tensor]

ROOT_2, TANH = math.sqrt(2), math.sqrt(2 / math.pi)


def copied(x: Tensor) -> Tensor:
    out = x.clone()
    out[x < 0] = 0.0
    return out


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951))


ACTIVATIONS: dict[str, dict[str, Activation]] = {
    "gelu": {
        "usual": lambda x: F.gelu(x),
        "keywords": lambda x: F.gelu(input=x),
        "approximate-none": lambda x: F.gelu(x, approximate="none"),
        "module": lambda x: nn.GELU()(x),
        "erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / ROOT_2)),
        "erf-commuted": lambda x: 0.5 * (torch.erf(x * 0.5**0.5) + 1) * x,
        "half-first": lambda x: 0.5 * x * (1 + torch.erf(x / ROOT_2)),
        "expanded": lambda x: 0.5 * x + 0.5 * x * torch.erf(x / ROOT_2),
        "special-erf": lambda x: x * (torch.special.erf(x / ROOT_2) + 1) / 2,
        "erfc": lambda x: 0.5 * x * torch.erfc(-x / ROOT_2),
        "ndtr": lambda x: x * torch.special.ndtr(x),
        "log-ndtr": lambda x: x * torch.special.log_ndtr(x).exp(),
        "normal-cdf": lambda x: x * torch.distributions.Normal(0.0, 1.0).cdf(x),
        "in-place": lambda x: torch.erf(x / ROOT_2).add_(1).mul_(0.5) * x,
        "einsum": lambda x: torch.einsum("bnd,bnd->bnd", x, torch.special.ndtr(x)),
        "transposed": lambda x: F.gelu(x.mT).mT,
        "flattened": lambda x: F.gelu(x.flatten(0, 1)).view_as(x),
        "scripted": scripted,
        "checkpointed": lambda x: checkpoint(F.gelu, x, use_reentrant=False),
        "vmapped": lambda x: torch.vmap(F.gelu)(x),
        "chunked": lambda x: torch.cat([F.gelu(part) for part in x.chunk(2, -1)], -1),
    },
    "gelu-tanh": {
        "usual": lambda x: F.gelu(x, approximate="tanh"),
        "keywords": lambda x: F.gelu(input=x, approximate="tanh"),
        "module": lambda x: nn.GELU("tanh")(x),
        "written": lambda x: 0.5 * x * (1.0 + torch.tanh(TANH * (x + 0.044715 * torch.pow(x, 3.0)))),
        "cube-product": lambda x: x * 0.5 * (1 + torch.tanh(TANH * (x + 0.044715 * x * x * x))),
        "factored": lambda x: 0.5 * x * (1 + torch.tanh(x * TANH * (1 + 0.044715 * x * x))),
        "sigmoid": lambda x: x * torch.sigmoid(2 * TANH * (x + 0.044715 * x**3)),
        "commuted": lambda x: (1 + torch.tanh((0.044715 * x**3 + x) * TANH)) * (x * 0.5),
        "softmax": lambda x: x * torch.stack([2 * TANH * (x + 0.044715 * x**3), torch.zeros_like(x)]).softmax(0)[0],
    },
    "quick-gelu": {
        "usual": lambda x: x * torch.sigmoid(1.702 * x),
        "commuted": lambda x: torch.sigmoid(1.702 * x) * x,
        "silu": lambda x: F.silu(1.702 * x) / 1.702,
        "quotient": lambda x: x / (1 + torch.exp(-1.702 * x)),
        "method": lambda x: x.mul((x * 1.702).sigmoid()),
    },
    "silu": {
        "usual": lambda x: F.silu(x),
        "keywords": lambda x: F.silu(input=x, inplace=False),
        "module": lambda x: nn.SiLU()(x),
        "sigmoid": lambda x: x * torch.sigmoid(x),
        "sigmoid-first": lambda x: torch.sigmoid(x) * x,
        "functional-sigmoid": lambda x: x * F.sigmoid(x),
        "expit": lambda x: x * torch.special.expit(x),
        "quotient": lambda x: x / (1 + torch.exp(-x)),
        "reciprocal": lambda x: x * (1 + torch.exp(-x)).reciprocal(),
        "power": lambda x: x * (1 + (-x).exp()) ** -1,
        "tanh": lambda x: x * 0.5 * (1 + torch.tanh(x / 2)),
        "log-sigmoid": lambda x: x * F.logsigmoid(x).exp(),
        "exp-ratio": lambda x: x * torch.exp(x) / (1 + torch.exp(x)),
        "in-place-sigmoid": lambda x: x * x.clone().sigmoid_(),
        "in-place": lambda x: F.silu(x.clone(), inplace=True),
        "addcmul": lambda x: torch.addcmul(torch.zeros_like(x), x, torch.sigmoid(x)),
        "addcdiv": lambda x: torch.addcdiv(torch.zeros_like(x), x, 1 + torch.exp(-x)),
        "glu": lambda x: F.glu(torch.cat([x, x], -1), -1),
        "softmax": lambda x: x * torch.stack([x, torch.zeros_like(x)], -1).softmax(-1)[..., 0],
        "softmax-of-zero": lambda x: x * torch.stack([0 * x, x]).softmax(0)[1],
        "softmax-unbound": lambda x: x * torch.stack([x / 2, -x / 2], -1).softmax(-1).unbind(-1)[0],
    },
    "relu": {
        "usual": lambda x: F.relu(x),
        "keywords": lambda x: F.relu(input=x),
        "method": lambda x: x.relu(),
        "in-place": lambda x: x.clone().relu_(),
        "clamp": lambda x: x.clamp(min=0),
        "clamp-min": lambda x: torch.clamp_min(x, 0.0),
        "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
        "max": lambda x: torch.max(x, torch.tensor(0.0, dtype=x.dtype)),
        "fmax": lambda x: torch.fmax(x, torch.zeros_like(x)),
        "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
        "where-scalar": lambda x: torch.where(x > 0, x, 0.0),
        "mask-product": lambda x: x * (x > 0),
        "float-mask": lambda x: (x > 0).to(x.dtype) * x,
        "heaviside": lambda x: x * torch.heaviside(x.detach(), torch.zeros(1, dtype=x.dtype)),
        "absolute": lambda x: (x + x.abs()) / 2,
        "threshold": lambda x: F.threshold(x, 0.0, 0.0),
        "masked-fill": lambda x: x.masked_fill(x < 0, 0.0),
        "indexed": copied,
        "hardtanh": lambda x: F.hardtanh(x, 0.0, 1e30),
        "negated-minimum": lambda x: -torch.minimum(-x, torch.zeros_like(x)),
        "prelu": lambda x: F.prelu(x, torch.zeros(1, dtype=x.dtype)),
        "leaky": lambda x: F.leaky_relu(x, 0.0),
    },
    "squared-relu": {
        "usual": lambda x: F.relu(x) ** 2,
        "square": lambda x: torch.square(F.relu(x)),
        "product": lambda x: F.relu(x) * F.relu(x),
        "with-input": lambda x: x * F.relu(x),
        "pow": lambda x: torch.pow(x.clamp(min=0), 2),
    },
    "leaky-relu": {
        "usual": lambda x: F.leaky_relu(x, 0.1),
        "keywords": lambda x: F.leaky_relu(input=x, negative_slope=0.1),
        "where": lambda x: torch.where(x > 0, x, 0.1 * x),
        "maximum": lambda x: torch.maximum(x, 0.1 * x),
        "difference": lambda x: F.relu(x) - 0.1 * F.relu(-x),
        "prelu": lambda x: F.prelu(x, torch.full((1,), 0.1, dtype=x.dtype)),
        "sum": lambda x: 0.9 * F.relu(x) + 0.1 * x,
        "rrelu": lambda x: F.rrelu(x, 0.1, 0.1, training=False),
    },
    "mish": {
        "usual": lambda x: F.mish(x),
        "softplus": lambda x: x * torch.tanh(F.softplus(x)),
        "log-exp": lambda x: torch.tanh(torch.log(1 + torch.exp(x))) * x,
        "log1p": lambda x: x * torch.tanh(torch.log1p(x.exp())),
    },
    "softplus": {
        "usual": lambda x: F.softplus(x),
        "log1p": lambda x: torch.log1p(torch.exp(x)),
        "log-exp": lambda x: torch.log(1 + torch.exp(x)),
        "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        "log-sigmoid": lambda x: -F.logsigmoid(-x),
        "logsumexp": lambda x: torch.logsumexp(torch.stack([x, torch.zeros_like(x)]), 0),
        "stable": lambda x: F.relu(x) + torch.log1p(torch.exp(-x.abs())),
    },
    "hardswish": {
        "usual": lambda x: F.hardswish(x),
        "relu6": lambda x: x * F.relu6(x + 3) / 6,
        "clamp": lambda x: x * (x + 3).clamp(0, 6) / 6,
        "hardsigmoid": lambda x: x * F.hardsigmoid(x),
        "hardtanh": lambda x: x * F.hardtanh(x + 3, 0.0, 6.0) / 6.0,
        "commuted": lambda x: (x / 6 + 0.5).clamp(0, 1) * x,
    },
    "tanh": {
        "usual": lambda x: torch.tanh(x),
        "functional": lambda x: F.tanh(x),
        "sigmoid": lambda x: 2 * torch.sigmoid(2 * x) - 1,
        "ratio": lambda x: torch.sinh(x) / torch.cosh(x),
        "exponentials": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    },
    "elu": {
        "usual": lambda x: F.elu(x),
        "where": lambda x: torch.where(x > 0, x, torch.expm1(x)),
        "sum": lambda x: F.relu(x) + torch.clamp(torch.exp(x) - 1, max=0),
        "celu": lambda x: F.celu(x, 1.0),
    },
}
