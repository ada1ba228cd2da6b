"""Fused attention: written out, or fused as it is with a map that is made when it is wanted.

A fused kernel never makes its map. A method that needs every step of it as an operation has it written out
(:func:`attend`); one that looks at maps, or sends relevance through them, makes them from queries and keys, a layer or
some of its heads at a time (:class:`FusedMap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .reductions import precise

Piece = tuple[slice, ...]  # some samples, some of their heads; of an attention that is not cut, nothing
Visit = Callable[[Piece, Tensor, Tensor], None]

#: entries of the maps that are made at a time where heads can be told apart: few enough to stay near the processor
ENTRIES = 2**20


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` in operations that can be seen one by one (and without dropout).

    Args:
        query: ``[..., heads, queries, head]``.
        key: ``[..., heads, keys, head]``.
        value: ``[..., heads, keys, values]``.
    """
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    return torch.matmul(probabilities(query, key, attn_mask, is_causal, scale), value)


def probabilities(query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    """What a fused attention multiplies its values with, ``[..., heads, queries, keys]``."""
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    return softened(masked(scores, attn_mask, is_causal), attn_mask)


def masked(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """Scores ``[..., queries, keys]`` with what is hidden at minus infinity, and with a mask of numbers added."""
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


def softened(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """The map of masked scores."""
    found = torch.softmax(scores, -1)
    if attn_mask is not None:  # a query that may look at nothing gets nothing, as in the fused kernel
        blind = (scores == -math.inf).all(-1, keepdim=True)
        if not blind.is_cpu or bool(blind.any()):  # elsewhere to look would be to wait
            found = found.masked_fill(blind, 0.0)
    return found


@dataclass
class FusedMap:
    """What a fused attention looks with, and who looks at it.

    Attributes:
        query: ``[..., heads, queries, head]``, out of the graph.
        key: ``[..., heads, keys, head]``, and
        value: ``[..., heads, keys, values]``, likewise.
        mask: what it is given to hide.
        causal: its flag.
        scale: what it multiplies the scores with.
        apart: whether its first two dimensions are samples and heads, so that it can be cut into pieces.
        visit: called in a backward of gradients with the map and its gradient, ``[..., heads, queries, keys]``, and
        witness: called in a backward of relevance with that of the map, a piece at a time.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    apart: bool = False
    visit: Visit | None = None
    witness: Callable[[Piece, Tensor], None] | None = None

    def watch_gradient(self, visit: Visit | None) -> Callable[[], None]:
        """Call a function with the map and its gradient in backward passes; returns what ends that."""
        self.visit = visit
        return lambda: self._end_watch(visit)

    def watch_relevance(self, witness: Callable[[Piece, Tensor], None] | None) -> Callable[[], None]:
        """Call a function with the relevance of the map in backward passes; returns what ends that."""
        self.witness = witness
        return lambda: self._end_watch(witness)

    def _end_watch(self, watcher: Callable[..., None] | None) -> None:
        self.visit = None if self.visit is watcher else self.visit
        self.witness = None if self.witness is watcher else self.witness

    @property
    def numbers(self) -> bool:
        """Whether its mask is of numbers that are added to the scores."""
        return self.mask is not None and self.mask.dtype != torch.bool

    def pieces(self, whole: bool = False) -> Iterator[Piece]:
        """The map in pieces of some samples and heads; ``whole`` if that is asked for, or they are not told apart."""
        if whole or not self.apart:
            yield ()
            return
        samples, heads, queries, _ = self.query.shape
        each = queries * self.key.shape[-2]
        step = max(1, ENTRIES // (heads * each)), min(heads, max(1, ENTRIES // each))
        for first in range(0, samples, step[0]):
            for head in range(0, heads, step[1]):
                yield slice(first, first + step[0]), slice(head, head + step[1])

    def part(self, piece: Piece) -> FusedMap:
        """Some samples and heads of it, in float32 or better."""
        mask = self.mask
        if mask is not None and piece:
            mask = mask[(None,) * (4 - mask.dim())]  # of heads alone, or of none
            mask = mask[tuple(at if n > 1 else slice(None) for at, n in zip(piece, mask.shape, strict=False))]
        query, key, value = (precise(t[piece]) for t in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, mask=mask)

    def map(self) -> Tensor:
        """The map, ``[..., heads, queries, keys]``, in float32 or better."""
        return probabilities(precise(self.query), precise(self.key), self.mask, self.causal, self.scale)

    def gradient(self, output: Tensor) -> Tensor:
        """The gradient of the map, from that of what the attention made, ``[..., heads, queries, values]``."""
        return precise(output) @ precise(self.value).mT
