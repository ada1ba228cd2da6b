"""Spellings of a patch embedding: an image ``[batch, channels, height, width]`` to ``[batch, patches, width]``.

The weight is a convolution's: ``[width, channels, patch, patch]``. Patches are row-major at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

Patches = Callable[[Tensor, Tensor, Tensor], Tensor]


def flat(w: Tensor) -> Tensor:
    """Return the weight as a linear layer's, ``[width, channels * patch * patch]``."""
    return w.flatten(1)


def cut(x: Tensor, p: int) -> Tensor:
    """Return patches ``[batch, rows, columns, channels, patch, patch]``."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)


def convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b, stride=w.shape[-1]).flatten(2).transpose(1, 2)


def by_reshape(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(cut(x, w.shape[-1]).flatten(3).flatten(1, 2), flat(w), b)


def channels_last_patches(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Order the features of a patch as ``(patch patch channels)``, as einops code does."""
    rows = cut(x, w.shape[-1]).permute(0, 1, 2, 4, 5, 3)
    return F.linear(rows.reshape(len(x), -1, flat(w).shape[1]), w.permute(0, 2, 3, 1).flatten(1), b)


def by_tensor_unfold(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    p = w.shape[-1]
    rows = x.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5)
    return F.linear(rows.flatten(3).flatten(1, 2), flat(w), b)


def by_pixel_unshuffle(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    blocks = F.pixel_unshuffle(x, w.shape[-1])
    return F.conv2d(blocks, w.flatten(1)[..., None, None], b).flatten(2).mT


def column_major(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Embed patches column by column, then put them back into rows."""
    y = F.conv2d(x, w, b, stride=w.shape[-1])
    columns = y.transpose(2, 3).flatten(2).mT
    return columns.unflatten(1, (y.shape[3], y.shape[2])).transpose(1, 2).flatten(1, 2)


def column_major_image(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Transpose image and kernel, then put patches back into rows by an index."""
    y = F.conv2d(x.mT, w.mT, b, stride=w.shape[-1])
    index = torch.arange(y.shape[2] * y.shape[3]).view(y.shape[2], y.shape[3]).t().flatten()
    return y.flatten(2).mT[:, index]


def flipped_image(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x.flip(2, 3), w.flip(2, 3), b, stride=w.shape[-1]).flatten(2).flip(2).mT


def loop_over_patches(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    p = w.shape[-1]
    rows = [x[:, :, i : i + p, j : j + p].flatten(1) for i in range(0, x.shape[2], p) for j in range(0, x.shape[3], p)]
    return F.linear(torch.stack(rows, 1), flat(w), b)


def loop_over_rows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    p = w.shape[-1]
    return torch.cat([F.conv2d(strip, w, b, stride=p).flatten(2).mT for strip in x.split(p, 2)], 1)


def by_conv3d(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Embed by a convolution over one frame, as Qwen2-VL does."""
    p = w.shape[-1]
    rows = cut(x, p).reshape(-1, w.shape[1], 1, p, p)
    return F.conv3d(rows, w.unsqueeze(2), b).view(len(x), -1, len(w))


def strided_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Sum over the pixels of a patch: a linear layer for each offset inside it."""
    p = w.shape[-1]
    parts = [torch.einsum("bchw,oc->bohw", x[:, :, i::p, j::p], w[:, :, i, j]) for i in range(p) for j in range(p)]
    return sum(parts).flatten(2).mT + b


PATCHES: dict[str, dict[str, Patches]] = {
    "grid": {
        "usual": convolution,
        "keywords": lambda x, w, b: F.conv2d(input=x, weight=w, bias=b, stride=w.shape[-2:]).flatten(2).mT,
        "channels-last": lambda x, w, b: F.conv2d(x, w, b, w.shape[-1]).permute(0, 2, 3, 1).flatten(1, 2),
        "bias-after": lambda x, w, b: F.conv2d(x, w, stride=w.shape[-1]).flatten(2).mT + b,
        "unfold": lambda x, w, b: F.linear(F.unfold(x, w.shape[-1], stride=w.shape[-1]).mT, flat(w), b),
        "unfold-matmul": lambda x, w, b: (flat(w) @ F.unfold(x, w.shape[-1], stride=w.shape[-1])).mT + b,
        "tensor-unfold": by_tensor_unfold,
        "reshape": by_reshape,
        "channels-last-patches": channels_last_patches,
        "einsum": lambda x, w, b: torch.einsum("bhwcpq,ocpq->bhwo", cut(x, w.shape[-1]), w).flatten(1, 2) + b,
        "tensordot": lambda x, w, b: torch.tensordot(cut(x, w.shape[-1]), w, ([3, 4, 5], [1, 2, 3])).flatten(1, 2) + b,
        "pixel-unshuffle": by_pixel_unshuffle,
        "column-major": column_major,
        "column-major-image": column_major_image,
        "flipped-image": flipped_image,
        "loop-over-patches": loop_over_patches,
        "loop-over-rows": loop_over_rows,
        "conv3d": by_conv3d,
        "strided-sum": strided_sum,
    }
}
