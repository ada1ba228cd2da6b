"""Spellings of pooling: ``[batch, tokens, width]`` to ``[batch, width]``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

Pool = Callable[[Tensor], Tensor]


def indicator(x: Tensor, index: int) -> Tensor:
    """Return ``[tokens]``: 1 at one token, 0 elsewhere."""
    return F.one_hot(torch.tensor(index), x.shape[1]).to(x.dtype)


def first_by_gather(x: Tensor) -> Tensor:
    return x.gather(1, torch.zeros(len(x), 1, x.shape[-1], dtype=torch.long)).squeeze(1)


def first_by_mask(x: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[:, 0] = True
    return x[mask]


def masked_mean(x: Tensor) -> Tensor:
    mask = torch.ones(x.shape[:2], dtype=x.dtype).unsqueeze(-1)
    return (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def running_mean(x: Tensor) -> Tensor:
    return (x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None])[:, -1]


def mean_by_bmm(x: Tensor) -> Tensor:
    return torch.bmm(x.new_full((len(x), 1, x.shape[1]), 1 / x.shape[1]), x).squeeze(1)


def mean_by_matmul(x: Tensor) -> Tensor:
    return x.new_ones(x.shape[1]) @ x / x.shape[1]


def mean_by_index_add(x: Tensor) -> Tensor:
    rows = torch.arange(len(x)).repeat_interleave(x.shape[1])
    return torch.zeros_like(x[:, 0]).index_add(0, rows, x.flatten(0, 1)) / x.shape[1]


def mean_by_loop(x: Tensor) -> Tensor:
    return torch.stack([sample.mean(0) for sample in x])


def mean_by_conv(x: Tensor) -> Tensor:
    n, d = x.shape[1:]
    return F.conv1d(x.mT, x.new_full((d, 1, n), 1 / n), groups=d).squeeze(-1)


def weighted(x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return the sum of tokens with weights ``[batch, tokens]``, in several spellings."""
    return {
        "usual": (x * weights[..., None]).sum(1),
        "bmm": torch.bmm(weights[:, None], x).squeeze(1),
        "einsum": torch.einsum("btd,bt->bd", x, weights),
        "matmul": (x.mT @ weights[..., None]).squeeze(-1),
        "softmax": torch.softmax(weights.log(), 1)[:, None].matmul(x)[:, 0],
        "loop": torch.stack([w @ sample for w, sample in zip(weights, x, strict=True)]),
    }


def some(x: Tensor) -> Tensor:
    """Return ``[batch, tokens]``: the weights of a mean over all tokens but the last two."""
    mask = torch.arange(x.shape[1]).expand(x.shape[:2]) < x.shape[1] - 2
    return mask.to(x.dtype) / mask.sum(1, keepdim=True)


def one(x: Tensor) -> Tensor:
    """Return ``[batch, tokens]``: 1 at the token before the last."""
    return F.one_hot(torch.full((len(x),), x.shape[1] - 2), x.shape[1]).to(x.dtype)


def ragged(name: str) -> Pool:
    return lambda x: weighted(x, some(x))[name]


def different(name: str) -> Pool:
    return lambda x: weighted(x, one(x))[name]


def picked(x: Tensor) -> Tensor:
    return x[torch.arange(len(x)), torch.full((len(x),), x.shape[1] - 2)]


FIRST: dict[str, Pool] = {
    "usual": lambda x: x[:, 0],
    "select": lambda x: x.select(1, 0),
    "narrow": lambda x: x.narrow(1, 0, 1).squeeze(1),
    "slice": lambda x: x[:, :1].flatten(1),
    "slice-mean": lambda x: x[:, 0:1, :].mean(1),
    "ellipsis": lambda x: x[..., 0, :],
    "index-select": lambda x: x.index_select(1, torch.tensor([0])).squeeze(1),
    "list-index": lambda x: x[:, [0]].squeeze(1),
    "tensor-index": lambda x: x[:, torch.tensor(0)],
    "pair-index": lambda x: x[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)],
    "gather": first_by_gather,
    "take-along-dim": lambda x: torch.take_along_dim(x, torch.zeros(len(x), 1, 1, dtype=torch.long), 1).squeeze(1),
    "split": lambda x: x.split([1, x.shape[1] - 1], 1)[0].squeeze(1),
    "unbind": lambda x: x.unbind(1)[0],
    "tensor-split": lambda x: torch.tensor_split(x, [1], dim=1)[0].reshape(len(x), -1),
    "one-hot-einsum": lambda x: torch.einsum("bnd,n->bd", x, indicator(x, 0)),
    "one-hot-matmul": lambda x: indicator(x, 0) @ x,
    "one-hot-sum": lambda x: (x * indicator(x, 0)[:, None]).sum(1),
    "mask-index": first_by_mask,
    "transposed": lambda x: x.transpose(0, 1)[0],
    "features-first": lambda x: x.mT[..., 0],
    "flat": lambda x: x.flatten(1)[:, : x.shape[-1]],
    "max-pool-free": lambda x: x.permute(1, 0, 2)[0].clone(),
    "flipped-last": lambda x: x.flip(1)[:, -1],
}

LAST: dict[str, Pool] = {
    "usual": lambda x: x[:, -1],
    "select": lambda x: x.select(1, x.shape[1] - 1),
    "slice": lambda x: x[:, -1:].squeeze(1),
    "lengths": lambda x: x[torch.arange(len(x)), torch.full((len(x),), x.shape[1] - 1)],
    "flipped-first": lambda x: x.flip(1)[:, 0],
    "argmax": lambda x: x[torch.arange(len(x)), torch.arange(x.shape[1]).argmax()],
}

MEAN: dict[str, Pool] = {
    "usual": lambda x: x.mean(1),
    "keywords": lambda x: torch.mean(input=x, dim=1, keepdim=False),
    "keepdim": lambda x: x.mean(1, keepdim=True).squeeze(1),
    "sum": lambda x: x.sum(1) / x.shape[1],
    "sum-times": lambda x: x.sum(1) * (1 / x.shape[1]),
    "scaled-sum": lambda x: (x / x.shape[1]).sum(dim=1),
    "einsum": lambda x: torch.einsum("bnd->bd", x) / x.shape[1],
    "einsum-weights": lambda x: torch.einsum("bnd,n->bd", x, x.new_full((x.shape[1],), 1 / x.shape[1])),
    "matmul": mean_by_matmul,
    "bmm": mean_by_bmm,
    "avg-pool": lambda x: F.avg_pool1d(x.mT, x.shape[1]).squeeze(-1),
    "adaptive-pool": lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1),
    "adaptive-pool-2d": lambda x: F.adaptive_avg_pool2d(x.mT.unsqueeze(-1), (1, 1)).flatten(1),
    "cumsum": lambda x: x.cumsum(1)[:, -1] / x.shape[1],
    "running-mean": running_mean,
    "masked": masked_mean,
    "two-means": lambda x: (x[:, :1].sum(1) + x[:, 1:].sum(1)) / x.shape[1],
    "tokens-first": lambda x: x.transpose(0, 1).mean(0),
    "features-first": lambda x: x.mT.mean(-1),
    "stack": lambda x: torch.stack(x.unbind(1)).mean(0),
    "python-sum": lambda x: sum(x.unbind(1)) / x.shape[1],
    "index-add": mean_by_index_add,
    "loop": mean_by_loop,
    "conv": mean_by_conv,
    "var-mean": lambda x: torch.var_mean(x, 1)[1],
    "nanmean": lambda x: x.nanmean(1),
}

#: the mean over some tokens, as a padding mask has it
RAGGED: dict[str, Pool] = {name: ragged(name) for name in ("usual", "bmm", "einsum", "matmul", "softmax", "loop")}
RAGGED["divided"] = lambda x: (x * (some(x) > 0)[..., None]).sum(1) / (some(x) > 0).sum(1, keepdim=True)

#: one token of each sample, by its number
DIFFERENT: dict[str, Pool] = {"usual": picked, **{name: different(name) for name in ("bmm", "einsum", "matmul")}}
DIFFERENT["product"] = different("usual")

POOLS: dict[str, dict[str, Pool]] = {
    "first": FIRST,
    "mean": MEAN,
    "last": LAST,
    "ragged": RAGGED,
    "different": DIFFERENT,
}
