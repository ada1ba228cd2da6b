"""Attention as it happens: fused attention written out, and the record of each attention.

A record is made where probabilities (something that went through a softmax) are contracted with values along
the softmax's axis, whether the model wrote ``softmax(q @ k.T) @ v``, an ``einsum``, or called
``scaled_dot_product_attention``, which :func:`attend` writes out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .axes import Axes, Axis, Dim, arrange, fresh, precise
from .call import Call
from .einsum import queries_and_keys
from .errors import ModelError
from .node import Node


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
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    probabilities = torch.softmax(scores, -1)
    if attn_mask is not None:  # a query that may look at nothing gets nothing, as in the fused kernel
        blind = (scores == -math.inf).all(-1, keepdim=True)
        if bool(blind.any()):
            probabilities = probabilities.masked_fill(blind, 0.0)
    return torch.matmul(probabilities, value)


@dataclass
class AttentionRecord:
    """One attention: which dimension of its probabilities is queries, which is keys, which the batch.

    Attributes:
        probabilities: the tensor that multiplies the values, as it stands in the graph; ``None`` when fused.
        axes: its axes.
        query: the dimension of queries.
        key: the dimension of keys.
        batch: the batch axis.
        values: the tensor that they multiply; ``None`` when fused.
        output: what they make of it.
        reads: what is known of the tensor that the values are projected from.
        causal: whether queries look only back.
    """

    probabilities: Tensor | None
    axes: Axes
    query: int
    key: int
    batch: Axis
    values: Tensor | None = None
    output: Tensor | None = None
    reads: Node | None = None
    causal: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many heads, queries and keys."""
        sizes = [math.prod(atom.size for atom in dim if atom is not self.batch) for dim in self.axes]
        queries, keys = sizes[self.query], sizes[self.key]
        return math.prod(sizes) // (queries * keys), queries, keys

    @staticmethod
    def of(call: Call) -> AttentionRecord | None:
        """The record of a product of probabilities and values; ``None`` if it is not along the softmax."""
        which = 0 if call.nodes[0] is not None and call.nodes[0].softmax is not None else 1
        probabilities, values = call.tensors[which], call.tensors[1 - which]
        node = call.nodes[which]
        assert node is not None
        assert node.softmax is not None
        if call.name == "einsum":
            dims = queries_and_keys(call.args[0], [t.dim() for t in call.tensors], which)
        elif values.dim() < 2 or probabilities.dim() < 2:
            dims = None
        else:
            dims = probabilities.dim() - 2, probabilities.dim() - 1
        if dims is None or not _same(node.axes[dims[1]], node.softmax):
            return None
        record = AttentionRecord(probabilities, node.axes, *dims, call.batch, values)
        record.reads = _origin(call.nodes[1 - which])
        record._check()
        first = record.arrange(probabilities.detach())[0, 0]
        record.causal = first.shape[-1] > 1 and not bool(first.triu(1).any())
        return record

    @staticmethod
    def fused(call: Call) -> AttentionRecord:
        """The record of a fused attention, whose probabilities are never made."""
        query, key = call.nodes[:2]
        axes = query.axes if query is not None else tuple(fresh(n) for n in call.tensors[0].shape)
        keys: Dim = key.axes[-2] if key is not None and len(key.axes) > 1 else ()
        record = AttentionRecord(None, (*axes[:-1], keys), len(axes) - 2, len(axes) - 1, call.batch)
        record.reads = _origin(call.nodes[2])
        record.causal = _causal(call)
        record._check()
        return record

    def _check(self) -> None:
        if self.batch.size > 1 and self.batch in self.axes[self.key]:
            raise ModelError(
                f"The model's attention looks across the first axis of the input (size {self.batch.size}), which is "
                "taken to be the batch. If the input is [tokens, batch, ...], pass it as [batch, tokens, ...] or "
                "explain through a small module that transposes; if it is one sample without a batch axis, add one."
            )

    def arrange(self, tensor: Tensor) -> Tensor:
        """Bring a tensor shaped like the probabilities to ``[batch, heads, queries, keys]``, in float32 or better."""
        return arrange(precise(tensor), self.axes, self.batch, (self.query, self.key))


def _origin(values: Node | None) -> Node | None:
    """The tensor that values are projected from: what their nearest linear layer reads."""
    node = values
    while node is not None and node.parents and not node.residual:
        if node.kind == "linear":
            return node.parents[0]
        node = node.parents[0]
    return node


def _causal(call: Call) -> bool:
    """Whether a fused attention looks only back: its flag, or a mask that hides all that is above the diagonal."""
    mask, flag = call.argument(3, "attn_mask"), bool(call.argument(5, "is_causal", False))
    if flag or not isinstance(mask, Tensor) or min(mask.shape[-2:]) < 2:
        return flag
    first = mask.reshape(-1, *mask.shape[-2:])[0]
    seen = first if first.dtype == torch.bool else first > -1e4
    return not bool(seen.triu(1).any())


def _same(dim: Dim, softmax: Dim) -> bool:
    """Whether a dimension is the softmax's own, or a stretch of it (an attention sink cut off)."""
    if dim == softmax or (len(softmax) == 1 and any(part.source == dim for part in softmax[0].parts)):
        return True
    return len(dim) == 1 and len(dim[0].parts) == 1 and dim[0].parts[0].source == softmax


def in_pieces(call: Call) -> bool:
    """Whether probabilities reach their values in pieces (a sliding window), without the softmax's axis."""
    node = next(n for n in call.nodes if n is not None and n.softmax is not None)
    assert node.softmax is not None
    return not any(set(node.softmax) & set(dim) or _same(dim, node.softmax) for dim in node.axes)
