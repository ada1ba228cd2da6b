"""Parts of unusual architectures."""

from __future__ import annotations

import math

import torch
from torch import nn

WIDTH, HEADS, SIZE = 16, 2, 8


def split(x, heads=HEADS):
    """``[batch, heads, tokens, size]``."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def probabilities(q, k):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)


class Attention(nn.Module):
    """The usual one: queries, keys and values in one projection, cut with ``chunk``."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(joined(self.mix(*map(split, self.qkv(x).chunk(3, -1)))))

    def mix(self, q, k, v):
        return probabilities(q, k) @ v
