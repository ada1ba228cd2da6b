"""Spellings of a linear layer: ``[..., inputs]`` with a weight ``[outputs, inputs]`` and a bias or None."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def plus(y: Tensor, b: Tensor | None) -> Tensor:
    """Return y with the bias added, if there is one."""
    return y if b is None else y + b


def by_addmm(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    b = w.new_zeros(len(w)) if b is None else b
    return torch.addmm(b, x.reshape(-1, x.shape[-1]), w.t()).view(*x.shape[:-1], len(w))


def by_bmm(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    rows = x.reshape(1, -1, x.shape[-1])
    return plus(torch.bmm(rows, w.t()[None]).view(*x.shape[:-1], len(w)), b)


def by_conv(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1], 1)
    return F.conv1d(rows, w.unsqueeze(-1), b).view(*x.shape[:-1], len(w))


def split_inputs(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    parts = zip(x.chunk(2, -1), w.chunk(2, 1), strict=True)
    return plus(sum(F.linear(a, part) for a, part in parts), b)


def split_outputs(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    biases = [None, None] if b is None else b.chunk(2)
    return torch.cat([F.linear(x, part, bias) for part, bias in zip(w.chunk(2), biases, strict=True)], -1)


def in_place_bias(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    y = x @ w.t()
    if b is not None:
        y += b
    return y


def constant_feature(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Append a feature of ones whose weight is the bias."""
    if b is None:
        return F.linear(x, w)
    return F.linear(F.pad(x, (0, 1), value=1.0), torch.cat([w, b[:, None]], 1))


LINEARS: dict[str, dict[str, Linear]] = {
    "affine": {
        "usual": lambda x, w, b: F.linear(x, w, b),
        "keywords": lambda x, w, b: F.linear(input=x, weight=w, bias=b),
        "bias-after": lambda x, w, b: plus(F.linear(x, w), b),
        "matmul": lambda x, w, b: plus(x @ w.t(), b),
        "bias-first": lambda x, w, b: x @ w.mT if b is None else b + x @ w.mT,
        "matmul-function": lambda x, w, b: plus(torch.matmul(x, w.transpose(0, 1)), b),
        "addmm": by_addmm,
        "bmm": by_bmm,
        "einsum": lambda x, w, b: plus(torch.einsum("...i,oi->...o", x, w), b),
        "einsum-weight-first": lambda x, w, b: plus(torch.einsum("oi,...i->...o", w, x), b),
        "tensordot": lambda x, w, b: plus(torch.tensordot(x, w, ([-1], [1])), b),
        "inner": lambda x, w, b: plus(torch.inner(x, w), b),
        "weight-first": lambda x, w, b: plus((w @ x.unsqueeze(-1)).squeeze(-1), b),
        "broadcast": lambda x, w, b: plus((x.unsqueeze(-2) * w).sum(-1), b),
        "conv": by_conv,
        "split-inputs": split_inputs,
        "split-outputs": split_outputs,
        "in-place-bias": in_place_bias,
        "constant-feature": constant_feature,
    }
}
