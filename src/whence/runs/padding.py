"""Padding: a mask laid over an axis that holds more than the tokens it was given for; scores that are 0 there."""

from __future__ import annotations

import warnings
from collections.abc import Collection

import torch
from torch import Tensor

from ..errors import WhenceWarning
from ..tracing.axes import Axis, Dim, size_of


def over(mask: Tensor, tokens: Dim, given: Collection[Axis]) -> Tensor:
    """``[batch, tokens]``, true at padding; what the model has put beside the user's tokens (a class token) is none.

    Args:
        mask: ``[batch, given tokens]``, true at padding.
        tokens: the axis, perhaps a concatenation.
        given: the axes of the user's tokens.

    Returns:
        The mask over the axis; the mask itself, if the axis does not hold the tokens it was given for.
    """
    found = _over(mask, tokens, size_of(tokens), given)
    return mask if found is None else found


def _over(mask: Tensor, tokens: Dim, length: int, given: Collection[Axis]) -> Tensor | None:
    if length == mask.shape[1] and any(atom in given for atom in tokens):
        return mask
    if len(tokens) != 1 or tokens[0].size != length:
        return None
    pieces = [
        (None if part.source is None else _over(mask, part.source, part.length, given), part.length)
        for part in tokens[0].parts
    ]
    if all(piece is None for piece, _ in pieces):
        return None
    return torch.cat([mask.new_zeros(len(mask), n) if piece is None else piece for piece, n in pieces], 1)


def zeroed(scores: Tensor, padding: Tensor | None) -> Tensor:
    """Scores ``[batch, positions]``, exactly 0 at padding; a model that reads its padding all the same is spoken of."""
    if padding is None:
        return scores
    share = scores.abs().masked_fill(~padding, 0.0).sum() / scores.abs().sum().clamp(min=1e-30)
    if bool(share > 1e-3):
        warnings.warn(
            f"The model reads its padding: {float(share):.0%} of the relevance lay there and is left out. Pad on the "
            "side that the model expects, or explain each sample without padding.",
            WhenceWarning,
            stacklevel=3,
        )
    return scores.masked_fill(padding, 0.0)
