"""Spellings of rotary positions, which rotate pairs of features of queries and keys by an angle for each token.

Queries and keys are ``[batch, heads, tokens, head width]``. The two features of a pair are in different halves
(``HALVES``), or side by side (``NEIGHBOURS``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Rotation = Callable[[Tensor], Tensor]


def angles(x: Tensor) -> Tensor:
    """Return the angle of each token and pair, ``[tokens, head width / 2]``."""
    frequencies = 10000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=x.dtype) / x.shape[-1])
    return torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies


def tables(x: Tensor) -> tuple[Tensor, Tensor]:
    return angles(x).cos(), angles(x).sin()


def doubled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each feature, pairs in halves."""
    cos, sin = tables(x)
    return torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)


def turned_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def turned_neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def usual_halves(x: Tensor) -> Tensor:
    cos, sin = doubled(x)
    return x * cos + turned_halves(x) * sin


def usual_neighbours(x: Tensor) -> Tensor:
    cos, sin = (t.repeat_interleave(2, -1) for t in tables(x))
    return x * cos + turned_neighbours(x) * sin


def matrices(rotation: Rotation, x: Tensor) -> Tensor:
    """Return the matrix of each token, ``[tokens, features, rotated features]``."""
    size = x.shape[-1]
    eye = torch.eye(size, dtype=x.dtype)[:, None].expand(-1, x.shape[-2], -1)
    return rotation(eye[None])[0].transpose(0, 1)


def by_halves(x: Tensor) -> Tensor:
    (cos, sin), (a, b) = tables(x), x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def complex_halves(x: Tensor) -> Tensor:
    z = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles(x)), angles(x))
    return torch.cat([z.real, z.imag], -1)


def rolled(x: Tensor) -> Tensor:
    cos, sin = tables(x)
    return x * torch.cat([cos, cos], -1) + x.roll(x.shape[-1] // 2, -1) * torch.cat([-sin, sin], -1)


def signed_permutation(x: Tensor) -> Tensor:
    cos, sin = doubled(x)
    return x * cos + (x @ turned_halves(torch.eye(x.shape[-1], dtype=x.dtype))) * sin


def written(x: Tensor) -> Tensor:
    (cos, sin), out = tables(x), torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    return out


def complex_neighbours(x: Tensor) -> Tensor:
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles(x)), angles(x))).flatten(-2)


def by_pairs(x: Tensor) -> Tensor:
    (cos, sin), pairs = tables(x), x.unflatten(-1, (-1, 2))
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


HALVES: dict[str, Rotation] = {
    "usual": usual_halves,
    "by-halves": by_halves,
    "complex": complex_halves,
    "rolled": rolled,
    "signed-permutation": signed_permutation,
    "matrix": lambda x: (x.unsqueeze(-2) @ matrices(usual_halves, x)).squeeze(-2),
    "einsum": lambda x: torch.einsum("bhnd,nde->bhne", x, matrices(usual_halves, x)),
}

NEIGHBOURS: dict[str, Rotation] = {
    "usual": usual_neighbours,
    "by-pairs": by_pairs,
    "complex": complex_neighbours,
    "written": written,
    "matrix": lambda x: (x.unsqueeze(-2) @ matrices(usual_neighbours, x)).squeeze(-2),
}
