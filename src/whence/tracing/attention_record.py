"""Attention as it happens: the record of each attention.

A record is made where probabilities (something that went through a softmax) are contracted with values along
the softmax's axis, whether the model wrote ``softmax(q @ k.T) @ v``, an ``einsum``, or called
``scaled_dot_product_attention`` (see :mod:`whence.tracing.fused_attention`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..capture.tape import checking
from ..errors import ModelError
from .axes import Axes, Axis, Dim, fresh, order_of, plain, size_of
from .fused_attention import FusedMap
from .node import Node, walk
from .op_call import Call, map_tensors, tensors_in
from .recognition.contraction import free, summed, terms
from .recognition.softmax import is_map_along
from .reductions import arrange, precise, restored
from .tensor_info import node_of

Operands = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass
class AttentionRecord:
    """One attention: which dimension of its probabilities is queries, which is keys, which the batch.

    Attributes:
        probabilities: the tensor that multiplies the values, as it stands in the graph; ``None`` when fused.
        axes: its axes.
        query: the dimension of queries.
        key: the dimension of keys.
        batch: the batch axis.
        values: the tensor that they multiply; ``None`` when fused and not shown.
        output: what they make of it.
        wrote: its value, when it is asked for.
        mix: the product itself, as a function of the probabilities.
        reads: what is known of the tensor that the values are projected from.
        ahead: whether queries look at what follows them; a tensor, so that nothing waits for it.
        shown: of a fused attention, how its map is made when it is wanted.
        choice: of multiple choice, the axis of the answers of a sample, and ``[batch]``, the one whose map is wanted.
        placed: of an attention of some tokens of a stream alone, the axis of these, and which tokens they are; its map
            then has a row for every token, of zeros for the others.
        query_order, key_order: which tokens its rows and columns are, where it has them in another order.
    """

    probabilities: Tensor | None
    axes: Axes
    query: int
    key: int
    batch: Axis
    values: Tensor | None = None
    output: Tensor | None = None
    wrote: Callable[[], Tensor] | None = None
    mix: Callable[[Tensor], Tensor] | None = None
    reads: Node | None = None
    ahead: Tensor | bool = True
    shown: FusedMap | None = None
    choice: tuple[Axis, Tensor] | None = None
    placed: tuple[Dim, Tensor] | None = field(init=False, default=None)
    query_order: Tensor | None = field(init=False, default=None)
    key_order: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        query, key = order_of(self.axes[self.query]), order_of(self.axes[self.key])
        self.query_order = None if query is None else query.places
        self.key_order = None if key is None else key.places
        self.axes = plain(self.axes)
        self._check()
        if self.probabilities is not None:
            first = self.arrange(self.probabilities.detach())[0, 0]
            self.ahead = first.triu(1).any() if first.shape[-1] > 1 else True

    @property
    def causal(self) -> bool:
        """Whether queries look only back."""
        return not bool(self.ahead)

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many heads (of windowed attention: heads of all windows), queries and keys."""
        sizes = [math.prod(atom.size for atom in dim if atom is not self.batch) for dim in self.axes]
        queries, keys = sizes[self.query], sizes[self.key]
        answers = 1 if self.choice is None else self.choice[0].size
        return math.prod(sizes) // (queries * keys * answers), queries, keys

    def own(self) -> list[Axis]:
        """The axes of its map that are neither the batch nor queries nor keys: heads, windows."""
        dims = [dim for i, dim in enumerate(self.axes) if i not in (self.query, self.key)]
        return [atom for dim in dims for atom in dim if atom is not self.batch]

    @staticmethod
    def of(call: Call) -> AttentionRecord | None:
        """The record of a product of probabilities and values; ``None`` if it is not along the softmax."""
        if map_in(call) is None:  # in pieces
            return None
        assert call.probabilities is not None
        which = 0 if call.probabilities is call.tensors[0] else 1
        probabilities, values = call.tensors[which], call.tensors[1 - which]
        node = call.nodes[which]
        found = terms(call)
        assert node is not None
        assert found is not None
        (key,) = summed(found, which)
        queries = free(found, which)
        if not queries:
            return None
        own = [d for d in queries if node.axes[d] == node.axes[key]]
        dims = own[0] if len(own) == 1 else queries[-1], key
        mix = functools.partial(_product, call.func, call.args, call.kwargs, probabilities)
        reads = _origin(call.nodes[1 - which])
        return AttentionRecord(probabilities, node.axes, *dims, call.batch, values, mix=mix, reads=reads)

    @staticmethod
    def fused(call: Call, shown: FusedMap | None = None) -> AttentionRecord:
        """The record of a fused attention, whose probabilities are never made.

        Args:
            call: the attention.
            shown: how its map is recomputed, if a rule has prepared that.
        """
        query, key = call.nodes[:2]
        axes = query.axes if query is not None else tuple(fresh(n) for n in call.tensors[0].shape)
        if key is not None and len(axes) < len(key.axes):  # queries that all samples share
            axes = (*key.axes[: len(key.axes) - len(axes)], *axes)
        keys: Dim = key.axes[-2] if key is not None and len(key.axes) > 1 else ()
        values = call.argument(2, "value") if shown is not None else None
        return AttentionRecord(
            None, (*axes[:-1], keys), len(axes) - 2, len(axes) - 1, call.batch, values, reads=_origin(call.nodes[2]),
            ahead=_ahead(call), shown=shown,
        )  # fmt: skip

    def complete(self, output: Tensor, wrote: Callable[[], Tensor], leaf: FusedMap | Tensor | None) -> None:
        """Set what it made.

        Args:
            output: its place in the graph.
            wrote: returns its value.
            leaf: a leaf in the place of the probabilities, if a rule has cut these off.
        """
        self.output = output
        self.wrote = wrote
        if isinstance(leaf, Tensor):
            self.probabilities = leaf

    def place(self, tokens: Dim, places: Tensor) -> None:
        """Let the map have a row for every token of a stream, if the queries are some of them.

        Args:
            tokens: the axis of the stream.
            places: which token each query is, ``[queries]``.
        """
        queries = self.axes[self.query]
        if queries == tokens or size_of(queries) != len(places) or self.query_order is not None:
            return
        self.placed = queries, places
        self.axes = (*self.axes[: self.query], tokens, *self.axes[self.query + 1 :])

    def release_map(self) -> None:
        """Free the memory of an unfused map, which will not be asked for again."""
        self.probabilities = self.mix = None

    def queried(self, output: Node, constants: Mapping[int, Tensor]) -> frozenset[int]:
        """Return the parameters (by ``id``) that its queries or keys are made of, if they depend on nothing else.

        One query that is a parameter itself, not projected, is a linear layer with one output: it counts as none.

        Args:
            output: the node of what it makes.
            constants: the parameters, by ``id``.
        """
        node = output if self.probabilities is None else node_of(self.probabilities)
        while node.kind not in ("linear", "matmul", "attention") and node.parents:
            node = node.parents[0]
        met = {p: constants[p].untyped_storage().data_ptr() for p in node.made_of if p in constants}
        given = [] if node.recipe is None or self.shape[1] > 1 else tensors_in(node.recipe.args)
        direct = {tensor.untyped_storage().data_ptr() for tensor in given}
        return frozenset(p for p, memory in met.items() if memory not in direct)

    def map(self) -> Tensor:
        """``[batch, heads, queries, keys]``, out of the graph, in float32 or better."""
        if self.shown is not None:
            return self.arrange(self.shown.map())
        assert self.probabilities is not None
        return self.arrange(self.probabilities.detach())

    def gradient(self, output: Tensor) -> Tensor:
        """``[batch, heads, queries, keys]``: the gradient of the map, from that of what the attention made of it."""
        assert self.probabilities is not None
        assert self.mix is not None
        leaf = self.probabilities.detach().requires_grad_()
        with torch.enable_grad():
            made = self.mix(leaf)
        return self.arrange(torch.autograd.grad(made, leaf, output)[0])

    def by_head(self, tensor: Tensor, axes: Axes) -> Tensor | None:
        """``[batch, heads, queries]``: a tensor shaped like the output, summed over its features.

        Args:
            tensor: the tensor.
            axes: of the output.

        Returns:
            ``None`` where heads and queries of the output are not known.
        """
        queries = self.axes[self.query] if self.placed is None else self.placed[0]
        axes = plain(axes)
        if queries not in axes:
            return None
        own = [dim for i, dim in enumerate(self.axes) if i not in (self.query, self.key)]
        features = [i for i, dim in enumerate(axes) if dim != queries and dim not in own]
        left = tuple(dim for i, dim in enumerate(axes) if i not in features)
        summed = precise(tensor).sum(features) if features else precise(tensor)
        found = arrange(summed, left, self.batch, (left.index(queries),))
        found = self._all_rows(restored(found, 2, self.query_order))
        return found if found.shape[1:] == self.shape[:2] else None

    def zeros(self, *sizes: int) -> Tensor:
        """``[batch, *sizes]``, in the precision of the map: of an attention that does not matter."""
        like = self.values if self.probabilities is None else self.probabilities
        assert like is not None
        return precise(torch.zeros(self.batch.size, *sizes, dtype=like.dtype, device=like.device))

    def _check(self) -> None:
        if self.batch.size > 1 and self.batch in self.axes[self.key]:
            raise ModelError(
                f"The model's attention looks across the first axis of the input (size {self.batch.size}), which is "
                "taken to be the batch. If the input is [tokens, batch, ...], pass it as [batch, tokens, ...] or "
                "explain through a small module that transposes; if it is one sample without a batch axis, add one."
            )

    def arrange(self, tensor: Tensor) -> Tensor:
        """Bring a tensor shaped like the probabilities to ``[batch, heads, queries, keys]``, in float32 or better."""
        return self.in_order(self._chosen(arrange(precise(tensor), self.axes, self.batch, (self.query, self.key))))

    def choose(self, axis: Axis | None, index: Tensor | None) -> None:
        """Let maps be those of one of several answers in each sample, ``[batch]``; of none: those of all."""
        self.choice = None if axis is None or index is None else (axis, index)

    def _chosen(self, tensor: Tensor) -> Tensor:
        """Return ``[batch, heads, queries, keys]`` of one answer, from that of all heads of all answers."""
        if self.choice is None:
            return tensor
        axis, index = self.choice
        own = self.own()
        apart = tensor.reshape(len(tensor), *(atom.size for atom in own), *tensor.shape[2:])
        moved = apart.movedim(1 + own.index(axis), 1)
        return moved[torch.arange(len(moved)), index].reshape(len(tensor), -1, *tensor.shape[2:])

    def in_order(self, tensor: Tensor, samples: slice | None = None) -> Tensor:
        """Bring the rows and columns of ``[batch, heads, queries, keys]`` (or some samples of it) into token order."""
        for dim, index in ((2, self.query_order), (3, self.key_order)):
            own = index if index is None or samples is None or index.dim() == 1 else index[samples]
            tensor = restored(tensor, dim, own)
        return self._all_rows(tensor)

    def _all_rows(self, tensor: Tensor) -> Tensor:
        """Return ``[batch, heads, queries, ...]`` with a row for every token of the stream that queries are part of."""
        if self.placed is None:
            return tensor
        places = self.placed[1].to(tensor.device)
        rows = tensor.new_zeros(*tensor.shape[:2], size_of(self.axes[self.query]), *tensor.shape[3:])
        return rows.index_copy(2, places, tensor)


def operands(call: Call) -> Operands:
    """Queries, keys, values and mask of a fused attention, keys and values as often as there are heads of queries."""
    query, key, value, mask = (call.argument(i, name) for i, name in enumerate(("query", "key", "value", "attn_mask")))
    if call.argument(7, "enable_gqa", False):
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    return query, key, value, mask


def shown_by(call: Call, given: Operands) -> FusedMap:
    """How the map of a fused attention is made, from its operands."""
    mask = given[3]
    leading = torch.broadcast_shapes(*(t.shape[:-2] for t in given[:3]))  # one key for all heads
    query, key, value = (t.detach().expand(*leading, -1, -1) for t in given[:3])
    scale = call.argument(6, "scale")
    axes = next((n.axes for n in call.nodes if n is not None), ())
    return FusedMap(
        query, key, value, None if mask is None else mask.detach(),
        causal=bool(call.argument(5, "is_causal", False)),
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        apart=query.dim() == 4 and axes[:1] == ((call.batch,),),
    )  # fmt: skip


def _product(func: Callable[..., Tensor], args: Any, kwargs: Any, probabilities: Tensor, other: Tensor) -> Tensor:
    """What a product of probabilities and values is with others in their place; nothing else is followed."""
    args, kwargs = map_tensors((args, kwargs), lambda t: other if t is probabilities else t.detach())
    return func(*args, **kwargs)


def _origin(values: Node | None) -> Node | None:
    """The tensor that values are projected from: what their nearest linear layer reads."""
    node = values
    while node is not None and node.parents and not node.residual:
        if node.kind == "linear":
            return node.parents[0]
        node = node.parents[0]
    return node


def _ahead(call: Call) -> Tensor | bool:
    """Whether a fused attention looks ahead: not with its flag, nor with a mask that hides all above the diagonal."""
    mask = call.argument(3, "attn_mask")
    flag = bool(call.argument(5, "is_causal", False))
    if flag or not isinstance(mask, Tensor) or min(mask.shape[-2:]) < 2:
        return not flag
    first = mask.reshape(-1, *mask.shape[-2:])[0]
    return (first if first.dtype == torch.bool else first > -1e4).triu(1).any()


def _same(dim: Dim, softmax: Dim) -> bool:
    """Whether a dimension is the softmax's own, or a stretch of it (an attention sink cut off)."""
    parts = softmax[0].parts if len(softmax) == 1 else ()
    if dim == softmax or any(part.source == dim or (not dim and part.length == 1) for part in parts):
        return True
    return len(dim) == 1 and len(dim[0].parts) == 1 and dim[0].parts[0].source == softmax


def map_in(call: Call) -> Tensor | None:
    """Return the operand of a product of two that is an attention map: probabilities, summed over with the other."""
    found = terms(call)
    if found is None or len(call.tensors) != 2 or len(call.traced) != 2:
        return None
    for which, (tensor, node) in enumerate(zip(call.tensors, call.nodes, strict=True)):
        over, queries = summed(found, which), free(found, which)
        if which == 1 and all(tensor.shape[d] == 1 for d in queries):  # one column: a dynamic convolution (ConvBERT)
            continue
        if node is None or len(over) != 1 or not queries or not _is_map(tensor, node, over[0]):
            continue
        values = call.nodes[1 - which]
        if values is None or not _is_made_of(values, node.moved_from()):
            return tensor
    return None


def _is_made_of(values: Node, node: Node) -> bool:
    """Return whether values are a function of the map that would read them, such as its inverse (Nyströmformer).

    What the map has read before (a second hop) is none.
    """
    earlier = walk([values], lambda n: () if n.kind == "mix" else [p for p in n.flows if p.seq >= node.seq])
    return any(step is node for step in earlier)


def _is_map(tensor: Tensor, node: Node, key: int) -> bool:
    """Return whether a tensor is an attention map over a dimension: by its history, or else by its values."""
    value = tensor.detach()
    if node.softmax is not None and _same(node.axes[key], node.softmax):
        alike = [d for d in range(value.dim()) if d != key and node.axes[d] == node.axes[key]]
        return not alike or value.is_meta or is_map_along(value, key) or not any(is_map_along(value, d) for d in alike)
    if node.softmax is not None or node.kind in ("linear", "convolution") or value.is_meta or value.shape[key] < 2:
        return False
    with checking():
        return not bool((value < 0).any()) and is_map_along(value, key)


def in_pieces(call: Call) -> Tensor | None:
    """Return probabilities that reach their values in pieces (a sliding window), without the softmax's axis."""
    for tensor, node in zip(call.tensors, call.nodes, strict=True):
        softmax = None if node is None or len(call.traced) < 2 else node.softmax
        if node is None or softmax is None:
            continue
        if not any(set(softmax) & set(dim) or _same(dim, softmax) for dim in node.axes):
            return tensor
    return None
