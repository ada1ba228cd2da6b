"""Spellings of a residual sum ``x + branch``; ``[batch, tokens, width]``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor, nn

from tools.spellings.attentions import Branch

Residual = Callable[[Tensor, Branch], Tensor]
ROOT = 0.5**0.5


def total(add: Callable[[Tensor, Tensor], Tensor]) -> Residual:
    """Return a residual sum from a function of the stream and what the branch adds."""
    return lambda x, branch: add(x, branch.value)


def in_place(x: Tensor, f: Tensor) -> Tensor:
    out = x.clone()
    out += f
    return out


def into_branch(x: Tensor, f: Tensor) -> Tensor:
    f += x
    return f


def slice_write(x: Tensor, f: Tensor) -> Tensor:
    out = x.clone()
    out[:] = x + f
    return out


def slice_sum(x: Tensor, f: Tensor) -> Tensor:
    out = x.clone()
    out[:, :] += f
    return out


def cat_matmul(x: Tensor, f: Tensor) -> Tensor:
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return torch.cat([x, f], -1) @ torch.cat([eye, eye])


def index_add(x: Tensor, f: Tensor) -> Tensor:
    return x.index_add(1, torch.arange(x.shape[1]), f)


def scatter_add(x: Tensor, f: Tensor) -> Tensor:
    return x.scatter_add(1, torch.arange(x.shape[1])[None, :, None].expand_as(x), f)


def halves(x: Tensor, f: Tensor) -> Tensor:
    pairs = zip(x.chunk(2, -1), f.chunk(2, -1), strict=True)
    return torch.cat([a + b for a, b in pairs], -1)


def by_token(x: Tensor, f: Tensor) -> Tensor:
    return torch.stack([a + b for a, b in zip(x.unbind(1), f.unbind(1), strict=True)], 1)


def fused_addmm(x: Tensor, branch: Branch) -> Tensor:
    if branch.weight is None:
        return x + branch.inputs
    rows = branch.inputs.flatten(0, 1)
    return torch.addmm(x.flatten(0, 1), rows, branch.weight.t()).view_as(x) + branch.bias


def fused_baddbmm(x: Tensor, branch: Branch) -> Tensor:
    if branch.weight is None:
        return x + branch.inputs
    return torch.baddbmm(x + branch.bias, branch.inputs, branch.weight.t().expand(len(x), -1, -1))


def bias_after(x: Tensor, branch: Branch) -> Tensor:
    if branch.weight is None:
        return x + branch.inputs
    return x + branch.linear(branch.inputs, branch.weight, None) + branch.bias


def bias_with_stream(x: Tensor, branch: Branch) -> Tensor:
    if branch.weight is None:
        return x + branch.inputs
    return branch.linear(branch.inputs, branch.weight, None) + (branch.bias + x)


@torch.jit.script
def scripted(x: Tensor, f: Tensor) -> Tensor:
    return x + f


RESIDUALS: dict[str, dict[str, Residual]] = {
    "sum": {
        "usual": total(lambda x, f: x + f),
        "commuted": total(lambda x, f: f + x),
        "function": total(lambda x, f: torch.add(x, f)),
        "keywords": total(lambda x, f: torch.add(input=x, other=f)),
        "alpha": total(lambda x, f: torch.add(x, f, alpha=1)),
        "method": total(lambda x, f: f.add(x)),
        "clone": total(lambda x, f: x.clone() + f),
        "clone-branch": total(lambda x, f: x + f.clone()),
        "negated": total(lambda x, f: x - (-f)),
        "sub-alpha": total(lambda x, f: torch.sub(x, f, alpha=-1)),
        "rsub": total(lambda x, f: torch.rsub(-x, f)),
        "negated-sum": total(lambda x, f: -((-x) - f)),
        "doubled": total(lambda x, f: (2 * x + 2 * f) / 2),
        "halved": total(lambda x, f: 2 * (0.5 * x + 0.5 * f)),
        "root-scaled": total(lambda x, f: (x + f) * 0.5**0.5 * 2**0.5),
        "lerp": total(lambda x, f: torch.lerp(2 * x, 2 * f, 0.5)),
        "addcmul": total(lambda x, f: torch.addcmul(x, f, torch.ones_like(f))),
        "addcdiv": total(lambda x, f: torch.addcdiv(x, f, torch.ones_like(f))),
        "stack-sum": total(lambda x, f: torch.stack([x, f]).sum(0)),
        "stack-mean": total(lambda x, f: torch.stack([x, f], -1).mean(-1) * 2),
        "stack-einsum": total(lambda x, f: torch.einsum("kbnd->bnd", torch.stack([x, f]))),
        "stack-cumsum": total(lambda x, f: torch.stack([x, f]).cumsum(0)[-1]),
        "cat-sum": total(lambda x, f: torch.cat([x[None], f[None]]).sum(dim=0)),
        "cat-matmul": total(cat_matmul),
        "cat-chunk": total(lambda x, f: sum(torch.cat([x, f], -1).chunk(2, -1))),
        "python-sum": total(lambda x, f: sum([x, f])),
        "reduce": total(lambda x, f: functools.reduce(operator.add, [f, x])),
        "in-place": total(in_place),
        "in-place-method": total(lambda x, f: x.clone().add_(f)),
        "into-branch": total(into_branch),
        "slice-write": total(slice_write),
        "slice-sum": total(slice_sum),
        "view": total(lambda x, f: x.flatten(0, 1).view(x.shape) + f),
        "flattened": total(lambda x, f: (x.flatten(0, 1) + f.flatten(0, 1)).unflatten(0, x.shape[:2])),
        "flat": total(lambda x, f: (x.reshape(-1) + f.reshape(-1)).reshape(x.shape)),
        "transposed": total(lambda x, f: (x.mT + f.mT).mT),
        "tokens-first": total(lambda x, f: (x.transpose(0, 1) + f.transpose(0, 1)).transpose(0, 1)),
        "transpose-round-trip": total(lambda x, f: x.transpose(1, 2).contiguous().transpose(1, 2) + f),
        "image-layout": total(lambda x, f: (x.mT.unsqueeze(-1) + f.mT.unsqueeze(-1)).squeeze(-1).mT),
        "unsqueezed": total(lambda x, f: (x.unsqueeze(1) + f.unsqueeze(1)).squeeze(1)),
        "times-one": total(lambda x, f: x.clone().mul_(1) + f),
        "branch-times-one": total(lambda x, f: x + 1.0 * f),
        "layer-scale": total(lambda x, f: x + f * f.new_ones(f.shape[-1])),
        "stream-scale": total(lambda x, f: x.new_ones(x.shape[-1]) * x + f),
        "mask-product": total(lambda x, f: x + f * torch.ones(f.shape[:2], dtype=f.dtype).unsqueeze(-1)),
        "plus-zero": total(lambda x, f: (x + 0.0) + f),
        "zeros-first": total(lambda x, f: torch.zeros_like(x) + x + f),
        "index-add": total(index_add),
        "scatter-add": total(scatter_add),
        "where": total(lambda x, f: torch.where(torch.ones_like(x, dtype=torch.bool), x + f, x)),
        "where-branch": total(lambda x, f: x + torch.where(torch.ones(x.shape[1], 1) > 0, f, 0.0)),
        "masked-fill": total(lambda x, f: x + f.masked_fill(torch.zeros(x.shape[1], 1) > 0, 0.0)),
        "copies": total(lambda x, f: x.to(torch.float64, copy=True) + f.to(torch.float64, copy=True)),
        "upcast": total(lambda x, f: (x.double() + f.double()).to(x.dtype)),
        "identity-module": total(lambda x, f: nn.Identity()(x) + nn.Identity()(f)),
        "dropout": total(lambda x, f: x + F.dropout(f, 0.0, True)),
        "dropout-off": total(lambda x, f: F.dropout(x + F.dropout(f, 0.1, False), 0.1, False)),
        "contiguous": total(lambda x, f: x.mT.contiguous().mT + f),
        "expand": total(lambda x, f: x.expand(1, *x.shape)[0] + f),
        "scripted": total(scripted),
        "vmapped": total(torch.vmap(torch.add)),
        "halves": total(halves),
        "by-token": total(by_token),
        "by-sample": total(lambda x, f: torch.stack([a + b for a, b in zip(x, f, strict=True)])),
        "roll-round-trip": total(lambda x, f: x.roll(1, 1).roll(-1, 1) + f),
        "flip-both": total(lambda x, f: (x.flip(1) + f.flip(1)).flip(1)),
        "pad": total(lambda x, f: F.pad(x, (0, 0, 0, 1))[:, :-1] + f),
        "linear-identity": total(lambda x, f: F.linear(x, torch.eye(x.shape[-1], dtype=x.dtype)) + f),
        "lerp-to-sum": total(lambda x, f: torch.lerp(x, x + f, torch.ones_like(x))),
        "sum-and-difference": total(lambda x, f: ((x + f) + (x - f)) / 2 + ((x + f) - (x - f)) / 2),
        "by-tokens": total(lambda x, f: torch.cat([x[:, :1] + f[:, :1], x[:, 1:] + f[:, 1:]], 1)),
        "twice": total(lambda x, f: 2 * (x + f) - (x + f)),
        "weighted-stack": total(lambda x, f: (torch.stack([x, f], -1) * torch.ones(2, dtype=x.dtype)).sum(-1)),
        "addmm": fused_addmm,
        "baddbmm": fused_baddbmm,
        "bias-after": bias_after,
        "bias-with-stream": bias_with_stream,
    },
    "scaled": {
        "usual": total(lambda x, f: (x + f) * ROOT),
        "distributed": total(lambda x, f: x * ROOT + f * ROOT),
        "alpha": total(lambda x, f: torch.add(x * ROOT, f, alpha=ROOT)),
        "divided": total(lambda x, f: (x + f) / 2**0.5),
        "stack-matmul": total(lambda x, f: torch.stack([x, f], -1) @ x.new_full((2,), ROOT)),
        "stack-mean": total(lambda x, f: torch.stack([x, f]).mean(0) * 2**0.5),
        "lerp": total(lambda x, f: torch.lerp(x, f, 0.5) * 2**0.5),
        "in-place": total(lambda x, f: x.clone().add_(f).mul_(ROOT)),
        "channels-first": total(lambda x, f: (x.mT * ROOT + f.mT * ROOT).mT),
    },
    "half": {
        "usual": total(lambda x, f: x + 0.5 * f),
        "alpha": total(lambda x, f: torch.add(x, f, alpha=0.5)),
        "doubled": total(lambda x, f: (2 * x + f) / 2),
        "lerp": total(lambda x, f: torch.lerp(x, x + f, 0.5)),
        "mean": total(lambda x, f: torch.stack([x, x + f]).mean(0)),
        "between": total(lambda x, f: 0.5 * x + 0.5 * (x + f)),
    },
    "deep": {
        "usual": total(lambda x, f: x * 1.5 + f),
        "alpha": total(lambda x, f: torch.add(f, x, alpha=1.5)),
        "factored": total(lambda x, f: 1.5 * (x + f / 1.5)),
        "again": total(lambda x, f: x + f + 0.5 * x),
        "in-place": total(lambda x, f: f.clone().add_(x, alpha=1.5)),
        "three": total(lambda x, f: torch.stack([x, f, 0.5 * x]).sum(0)),
    },
}
