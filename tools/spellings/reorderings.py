"""Spellings of token order: tokens ``[batch, tokens, ...]`` are reordered, and a function undoes it.

``blocks``: before the first block and after the last. ``attention``: around each attention. ``inputs``: of ids or of
patches, undone after the embedding. ``tracked``: not undone; the first token is found where it was moved.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Undo = Callable[[Tensor], Tensor]
Reordering = Callable[[Tensor], tuple[Tensor, Undo]]


def order(n: int) -> Tensor:
    """Return a permutation of n tokens that is not its own inverse."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(3))


def orders(x: Tensor) -> Tensor:
    """Return a permutation for each sample: ``[batch, tokens]``."""
    noise = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(4))
    return noise.argsort(1)


def wide(index: Tensor, x: Tensor) -> Tensor:
    """Return an index ``[batch, tokens]`` expanded to the shape of x."""
    return index.view(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:])


def kept(x: Tensor) -> tuple[Tensor, Undo]:
    return x, lambda y: y


def rolled(x: Tensor) -> tuple[Tensor, Undo]:
    return x.roll(2, 1), lambda y: y.roll(-2, 1)


def rolled_keywords(x: Tensor) -> tuple[Tensor, Undo]:
    return torch.roll(x, shifts=-3, dims=1), lambda y: torch.roll(y, shifts=3, dims=1)


def flipped(x: Tensor) -> tuple[Tensor, Undo]:
    return x.flip(1), lambda y: y.flip(1)


def flipped_by_index(x: Tensor) -> tuple[Tensor, Undo]:
    back = torch.arange(x.shape[1] - 1, -1, -1)
    return x[:, back], lambda y: y[:, back]


def indexed(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1])
    return x[:, to], lambda y: y[:, to.argsort()]


def index_selected(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1])
    return x.index_select(1, to), lambda y: torch.index_select(y, 1, torch.argsort(to))


def list_indexed(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1]).tolist()
    return x[:, to], lambda y: y[:, [to.index(i) for i in range(len(to))]]


def gathered(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1]).expand(x.shape[:2])
    return x.gather(1, wide(to, x)), lambda y: y.gather(1, wide(to.argsort(1), y))


def taken(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1]).expand(x.shape[:2])
    return torch.take_along_dim(x, wide(to, x), 1), lambda y: torch.take_along_dim(y, wide(to.argsort(1), y), dim=1)


def gathered_by_sample(x: Tensor) -> tuple[Tensor, Undo]:
    to = orders(x)
    return x.gather(1, wide(to, x)), lambda y: y.gather(1, wide(to.argsort(1), y))


def indexed_by_sample(x: Tensor) -> tuple[Tensor, Undo]:
    to, rows = orders(x), torch.arange(len(x))[:, None]
    return x[rows, to], lambda y: y[rows, to.argsort(1)]


def scattered(x: Tensor) -> tuple[Tensor, Undo]:
    to = orders(x)
    return torch.zeros_like(x).scatter(1, wide(to, x), x), lambda y: y.gather(1, wide(to, y))


def gathered_and_scattered(x: Tensor) -> tuple[Tensor, Undo]:
    to = orders(x)
    return x.gather(1, wide(to, x)), lambda y: torch.zeros_like(y).scatter_(1, wide(to, y), y)


def index_copied(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1])
    return torch.zeros_like(x).index_copy(1, to, x), lambda y: y[:, to]


def index_put(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1])

    def undo(y: Tensor) -> Tensor:
        out = torch.zeros_like(y)
        out[:, to] = y
        return out

    return x[:, to], undo


def sorted_by_key(x: Tensor) -> tuple[Tensor, Undo]:
    to = torch.sort(torch.sin(torch.arange(x.shape[1]) * 2.0)).indices
    return x[:, to], lambda y: y[:, to.sort().indices]


def sorted_by_value(x: Tensor) -> tuple[Tensor, Undo]:
    """Sort by a value of each token, as routers by score and buckets of LSH attention do."""
    key = (x if x.dim() == 2 else x[..., 0]).detach()
    to = key.argsort(dim=1, stable=True)
    return x.gather(1, wide(to, x)), lambda y: y.gather(1, wide(to.argsort(1), y))


def swapped(x: Tensor) -> tuple[Tensor, Undo]:
    n = x.shape[1]
    return torch.cat([x[:, 4:], x[:, :4]], 1), lambda y: torch.cat([y[:, n - 4 :], y[:, : n - 4]], 1)


def split_swapped(x: Tensor) -> tuple[Tensor, Undo]:
    a, b = x.split([3, x.shape[1] - 3], 1)
    return torch.cat([b, a], 1), lambda y: torch.cat(y.split([y.shape[1] - 3, 3], 1)[::-1], 1)


def first_to_end(x: Tensor) -> tuple[Tensor, Undo]:
    return torch.cat([x[:, 1:], x[:, :1]], 1), lambda y: torch.cat([y[:, -1:], y[:, :-1]], 1)


def deinterleaved(x: Tensor) -> tuple[Tensor, Undo]:
    evens = (x.shape[1] + 1) // 2

    def undo(y: Tensor) -> Tensor:
        out = torch.empty_like(y)
        out[:, ::2], out[:, 1::2] = y[:, :evens], y[:, evens:]
        return out

    return torch.cat([x[:, ::2], x[:, 1::2]], 1), undo


def restacked(x: Tensor) -> tuple[Tensor, Undo]:
    return torch.stack(x.unbind(1)[::-1], 1), lambda y: torch.stack(y.unbind(1)[::-1], dim=1)


def by_matrix(x: Tensor) -> tuple[Tensor, Undo]:
    """Reorder by a permutation matrix; ids stay integers."""
    n = x.shape[1]
    p = torch.eye(n, dtype=x.dtype)[order(n)]
    if x.dim() == 2:
        return x @ p.t(), lambda y: p.t().to(y.dtype) @ y
    return p @ x, lambda y: p.t() @ y


def by_one_hot(x: Tensor) -> tuple[Tensor, Undo]:
    n = x.shape[1]
    p = torch.nn.functional.one_hot(order(n), n).to(x.dtype)
    undo = lambda y: torch.einsum("ij,bi...->bj...", p.to(y.dtype), y)  # noqa: E731
    return torch.einsum("ij,bj...->bi...", p, x), undo


def tokens_first(x: Tensor) -> tuple[Tensor, Undo]:
    to = order(x.shape[1])
    return x.transpose(0, 1)[to].transpose(0, 1), lambda y: y.transpose(0, 1)[to.argsort()].transpose(0, 1)


def merged_with_batch(x: Tensor) -> tuple[Tensor, Undo]:
    """Reorder tokens of all samples by one flat index, as packed sequences do."""
    b, n = x.shape[:2]
    to = (orders(x) + torch.arange(b)[:, None] * n).flatten()
    undo = to.argsort()
    return x.flatten(0, 1)[to].unflatten(0, (b, n)), lambda y: y.flatten(0, 1)[undo].unflatten(0, (b, n))


def shifted_by_half(x: Tensor) -> tuple[Tensor, Undo]:
    return torch.fft.fftshift(x, dim=1), lambda y: torch.fft.ifftshift(y, dim=1)


def embedded(x: Tensor) -> tuple[Tensor, Undo]:
    """Look tokens up in a table of themselves."""
    to = order(x.shape[1])
    if x.dim() == 2:
        return x[:, to], lambda y: y[:, to.argsort()]
    rows = torch.arange(len(x))[:, None] * x.shape[1] + to
    return torch.nn.functional.embedding(rows, x.flatten(0, 1)), lambda y: y[:, to.argsort()]


def convolved(x: Tensor) -> tuple[Tensor, Undo]:
    """Reorder by a convolution over tokens as channels, with a permutation as its kernel."""
    to = order(x.shape[1])
    if x.dim() == 2:
        return x[:, to], lambda y: y[:, to.argsort()]
    p = torch.eye(x.shape[1], dtype=x.dtype)[to][..., None]
    conv = torch.nn.functional.conv1d
    return conv(x, p), lambda y: conv(y, p.transpose(0, 1))


def taken_flat(x: Tensor) -> tuple[Tensor, Undo]:
    numbers = torch.arange(x.numel()).view(x.shape)
    to = order(x.shape[1])
    return x.take(numbers[:, to]), lambda y: y[:, to.argsort()]


def rest_indexed(x: Tensor) -> tuple[Tensor, Undo]:
    """Reorder all but the first token, as where a class token leads."""
    to = torch.cat([torch.zeros(1, dtype=torch.long), order(x.shape[1] - 1) + 1])
    return x[:, to], lambda y: y[:, to.argsort()]


def rest_shuffled(x: Tensor) -> tuple[Tensor, Undo]:
    """Shuffle all but the first token by sample, as ViTMAE does."""
    to = orders(x[:, 1:])

    def moved(y: Tensor, index: Tensor) -> Tensor:
        return torch.cat([y[:, :1], y[:, 1:].gather(1, wide(index, y))], 1)

    return moved(x, to), lambda y: moved(y, to.argsort(1))


REORDERINGS: dict[str, Reordering] = {
    "usual": kept,
    "flip": flipped,
    "flip-by-index": flipped_by_index,
    "roll": rolled,
    "roll-keywords": rolled_keywords,
    "index": indexed,
    "index-list": list_indexed,
    "index-select": index_selected,
    "index-by-sample": indexed_by_sample,
    "index-copy": index_copied,
    "index-put": index_put,
    "gather": gathered,
    "gather-by-sample": gathered_by_sample,
    "gather-and-scatter": gathered_and_scattered,
    "scatter": scattered,
    "take-along-dim": taken,
    "sort-by-key": sorted_by_key,
    "sort-by-value": sorted_by_value,
    "swap": swapped,
    "swap-split": split_swapped,
    "first-to-end": first_to_end,
    "de-interleave": deinterleaved,
    "restack": restacked,
    "matrix": by_matrix,
    "one-hot": by_one_hot,
    "tokens-first": tokens_first,
    "merged-with-batch": merged_with_batch,
    "half-shift": shifted_by_half,
    "embedding": embedded,
    "conv": convolved,
    "take": taken_flat,
    "rest-by-index": rest_indexed,
    "rest-by-sample": rest_shuffled,
}

ORDERS: dict[str, dict[str, Reordering]] = {
    "blocks": REORDERINGS,
    "attention": REORDERINGS,
    "inputs": REORDERINGS,
    "tracked": REORDERINGS,
}
