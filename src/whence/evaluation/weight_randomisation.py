"""Randomised weights: a model that has learned nothing, with weights of the same distribution."""

from __future__ import annotations

import copy

import torch
from torch import nn


def shuffled(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model with the entries of every parameter shuffled; shared parameters stay shared.

    Example:
        >>> other = shuffled(model, seed=0)
    """
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            order = torch.randperm(p.numel(), generator=generator)
            p.copy_(p.flatten()[order.to(p.device)].reshape(p.shape))
    return other
