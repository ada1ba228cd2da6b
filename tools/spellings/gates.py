"""Spellings of gated units: from a packed projection ``[gate, values]`` of ``[batch, tokens, 2 * hidden]``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

Gate = Callable[[Tensor], Tensor]


def halves(product: Callable[[Tensor, Tensor], Tensor]) -> Gate:
    """Return a gated unit from a function of gate and values."""
    return lambda packed: product(*packed.chunk(2, -1))


def sliced(packed: Tensor) -> Tensor:
    h = packed.shape[-1] // 2
    return F.silu(packed[..., :h]) * packed[..., h:]


def narrowed(packed: Tensor) -> Tensor:
    h = packed.shape[-1] // 2
    return F.silu(packed.narrow(-1, 0, h)) * packed.narrow(-1, h, h)


def interleaved(packed: Tensor) -> Tensor:
    pairs = packed.unflatten(-1, (2, -1)).transpose(-1, -2)
    return F.silu(pairs[..., 0]) * pairs[..., 1]


def in_place(g: Tensor, u: Tensor) -> Tensor:
    out = F.silu(g)
    out *= u
    return out


def chained_in_place(g: Tensor, u: Tensor) -> Tensor:
    return u.clone().mul_(g).mul_(torch.sigmoid(g))


def added_in_place(g: Tensor, u: Tensor) -> Tensor:
    out = 0.5 * g * u
    out += 0.5 * g * u * torch.tanh(g / 2)
    return out


def stacked(g: Tensor, u: Tensor) -> Tensor:
    first, second = torch.stack([F.silu(g), u]).unbind(0)
    return first * second


def concatenated(g: Tensor, u: Tensor) -> Tensor:
    return torch.cat([F.silu(g), u], -1).unflatten(-1, (2, -1)).prod(-2)


def written(g: Tensor, u: Tensor) -> Tensor:
    out = torch.empty_like(u)
    out[:] = g * u
    return out * torch.sigmoid(g)


def pair(g: Tensor) -> Tensor:
    """Return the softmax of ``[g, 0]``, whose first entry is the sigmoid."""
    return torch.stack([g, torch.zeros_like(g)], -1).softmax(-1)


def clamped(g: Tensor, u: Tensor) -> Tensor:
    g = g.clamp(max=1e3)
    return g * torch.sigmoid(g) * u.clamp(-1e3, 1e3)


SILU: dict[str, Gate] = {
    "usual": halves(lambda g, u: F.silu(g) * u),
    "commuted": halves(lambda g, u: u * F.silu(g)),
    "mul-function": halves(lambda g, u: torch.mul(u, F.silu(g))),
    "keywords": halves(lambda g, u: torch.mul(input=F.silu(g), other=u)),
    "sigmoid": halves(lambda g, u: g * torch.sigmoid(g) * u),
    "sigmoid-commuted": halves(lambda g, u: torch.sigmoid(g) * g * u),
    "values-first": halves(lambda g, u: (u * g) * torch.sigmoid(g)),
    "values-inside": halves(lambda g, u: torch.sigmoid(g) * (g * u)),
    "values-and-sigmoid": halves(lambda g, u: g * (torch.sigmoid(g) * u)),
    "quotient": halves(lambda g, u: g / (1 + torch.exp(-g)) * u),
    "product-quotient": halves(lambda g, u: u * g / (1 + torch.exp(-g))),
    "values-quotient": halves(lambda g, u: u / (1 + torch.exp(-g)) * g),
    "addcmul": halves(lambda g, u: torch.addcmul(torch.zeros_like(u), F.silu(g), u)),
    "addcdiv": halves(lambda g, u: torch.addcdiv(torch.zeros_like(u), u * g, 1 + torch.exp(-g))),
    "einsum": halves(lambda g, u: torch.einsum("bnh,bnh->bnh", F.silu(g), u)),
    "einsum-ellipsis": halves(lambda g, u: torch.einsum("...h,...h->...h", u, F.silu(g))),
    "three-operand-einsum": halves(lambda g, u: torch.einsum("bnh,bnh,bnh->bnh", g, torch.sigmoid(g), u)),
    "stack-product": halves(lambda g, u: torch.stack([F.silu(g), u]).prod(0)),
    "in-place": halves(in_place),
    "transposed": halves(lambda g, u: (F.silu(g.mT) * u.mT).mT),
    "glu": halves(lambda g, u: g * F.glu(torch.cat([u, g], -1), -1)),
    "slices": sliced,
    "split": lambda packed: (lambda g, u: F.silu(g) * u)(*packed.split(packed.shape[-1] // 2, dim=-1)),
    "tensor-split": lambda packed: (lambda g, u: u * F.silu(g))(*torch.tensor_split(packed, 2, -1)),
    "unbind": lambda packed: (lambda g, u: F.silu(g) * u)(*packed.unflatten(-1, (2, -1)).unbind(-2)),
    "narrow": narrowed,
    "interleaved": interleaved,
    "chained-in-place": halves(chained_in_place),
    "added-in-place": halves(added_in_place),
    "glu-of-product": halves(lambda g, u: F.glu(torch.cat([g * u, g], -1))),
    "stacked": halves(stacked),
    "concatenated": halves(concatenated),
    "written": halves(written),
    "softmax-of-two": halves(lambda g, u: u * g * pair(g)[..., 0]),
    "softmax-of-two-unbound": halves(lambda g, u: u * g * pair(g).unbind(-1)[0]),
    "softmax-of-opposites": halves(lambda g, u: u * (g * torch.stack([g / 2, -g / 2]).softmax(0)[0])),
    "distributed": halves(lambda g, u: 0.5 * (g * u) + 0.5 * (g * u) * torch.tanh(g / 2)),
    "complement": halves(lambda g, u: g * u - g * u * torch.sigmoid(-g)),
    "complement-product": halves(lambda g, u: u * (g * (1 - torch.sigmoid(-g)))),
    "lerp": halves(lambda g, u: torch.lerp(torch.zeros_like(u), g * u, torch.sigmoid(g))),
    "log-sigmoid": halves(lambda g, u: (g * u) * torch.exp(F.logsigmoid(g))),
    "clamped": halves(clamped),
    "shift-undone": halves(lambda g, u: ((u - 1) + 1) * F.silu(g)),
    "signs": halves(lambda g, u: (-u) * (-g) * torch.sigmoid(g)),
    "in-two-slices": halves(lambda g, u: torch.cat([F.silu(g[:1]) * u[:1], F.silu(g[1:]) * u[1:]])),
    "swapped": lambda packed: (lambda u, g: u * F.silu(g))(*packed.roll(packed.shape[-1] // 2, -1).chunk(2, -1)),
}

SIGMOID: dict[str, Gate] = {
    "usual": halves(lambda g, u: u * torch.sigmoid(g)),
    "commuted": halves(lambda g, u: torch.sigmoid(g) * u),
    "glu": halves(lambda g, u: F.glu(torch.cat([u, g], -1), -1)),
    "glu-keywords": halves(lambda g, u: F.glu(input=torch.cat([u, g], 1), dim=1)),
    "quotient": halves(lambda g, u: u / (1 + torch.exp(-g))),
    "expit": halves(lambda g, u: u * torch.special.expit(g)),
    "tanh": halves(lambda g, u: u * (0.5 + 0.5 * torch.tanh(g / 2))),
    "tanh-distributed": halves(lambda g, u: 0.5 * u + 0.5 * u * torch.tanh(g / 2)),
    "complement": halves(lambda g, u: u - u * torch.sigmoid(-g)),
    "softmax-of-two": halves(lambda g, u: u * pair(g)[..., 0]),
    "softmax-einsum": halves(
        lambda g, u: torch.einsum("bnhk,bnhk->bnh", pair(g), torch.stack([u, torch.zeros_like(u)], -1))
    ),
    "einsum": halves(lambda g, u: torch.einsum("bnh,bnh->bnh", u, torch.sigmoid(g))),
}

GELU: dict[str, Gate] = {
    "usual": halves(lambda g, u: F.gelu(g) * u),
    "commuted": halves(lambda g, u: u * F.gelu(g)),
    "ndtr": halves(lambda g, u: g * torch.special.ndtr(g) * u),
    "ndtr-values-first": halves(lambda g, u: u * g * torch.special.ndtr(g)),
    "erf": halves(lambda g, u: 0.5 * g * (1 + torch.erf(g / 2**0.5)) * u),
    "erf-distributed": halves(lambda g, u: 0.5 * g * u + 0.5 * g * u * torch.erf(g / 2**0.5)),
    "erf-values-first": halves(lambda g, u: (0.5 * u * g) * (1 + torch.erf(g / 2**0.5))),
}

RELU: dict[str, Gate] = {
    "usual": halves(lambda g, u: F.relu(g) * u),
    "commuted": halves(lambda g, u: u * F.relu(g)),
    "clamp": halves(lambda g, u: g.clamp(min=0) * u),
    "where": halves(lambda g, u: torch.where(g > 0, g * u, 0.0)),
    "mask": halves(lambda g, u: (u * g) * (g > 0)),
    "absolute": halves(lambda g, u: 0.5 * (g * u) + 0.5 * (g.abs() * u)),
    "masked-fill": halves(lambda g, u: (g * u).masked_fill(g < 0, 0.0)),
    "maximum": halves(lambda g, u: torch.maximum(g, torch.zeros_like(g)) * u),
}

BILINEAR: dict[str, Gate] = {
    "usual": halves(lambda g, u: g * u),
    "commuted": halves(lambda g, u: u * g),
    "einsum": halves(lambda g, u: torch.einsum("bnh,bnh->bnh", u, g)),
    "prod": lambda packed: packed.unflatten(-1, (2, -1)).prod(-2),
    "addcmul": halves(lambda g, u: torch.addcmul(torch.zeros_like(u), u, g)),
}

#: a gate of values to which 1 is added, as in gpt-oss
SHIFTED: dict[str, Gate] = {
    "usual": halves(lambda g, u: (u + 1) * (g * torch.sigmoid(1.702 * g))),
    "commuted": halves(lambda g, u: g * torch.sigmoid(1.702 * g) * (1 + u)),
    "distributed": halves(lambda g, u: (lambda f: u * f + f)(g * torch.sigmoid(1.702 * g))),
    "addcmul": halves(lambda g, u: (lambda f: torch.addcmul(f, u, f))(g * torch.sigmoid(1.702 * g))),
}

#: two activations
TANH: dict[str, Gate] = {
    "usual": halves(lambda g, u: torch.tanh(g) * torch.sigmoid(u)),
    "commuted": halves(lambda g, u: torch.sigmoid(u) * torch.tanh(g)),
    "distributed": halves(lambda g, u: 2 * torch.sigmoid(2 * g) * torch.sigmoid(u) - torch.sigmoid(u)),
}

GATES: dict[str, dict[str, Gate]] = {
    "silu": SILU,
    "sigmoid": SIGMOID,
    "gelu": GELU,
    "relu": RELU,
    "bilinear": BILINEAR,
    "shifted": SHIFTED,
    "tanh": TANH,
}
