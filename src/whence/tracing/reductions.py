"""Tensors brought into order by their axes: a batch first, sums per sample and per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import SamplesMixedError
from .axes import Axes, Axis, Dim, order_of, plain, size_of


def precise(tensor: Tensor) -> Tensor:
    """At least float32: sums of half-precision numbers are not to be trusted."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def unmerge(tensor: Tensor, axes: Axes, batch: Axis) -> tuple[Tensor, Axes]:
    """Give the batch a dimension of its own where it is merged with others (``[batch * tokens, features]``)."""
    for i, dim in enumerate(axes):
        if batch in dim and len(dim) > 1:
            at = dim.index(batch)
            parts = [p for p in (dim[:at], dim[at : at + 1], dim[at + 1 :]) if p]
            sizes = [size_of(p) for p in parts]
            return tensor.unflatten(i, sizes), (*axes[:i], *parts, *axes[i + 1 :])
    return tensor, axes


def arrange(tensor: Tensor, axes: Axes, batch: Axis, dims: Sequence[int] = ()) -> Tensor:
    """Bring a tensor to ``[batch, everything else, *dims]``.

    Args:
        tensor: any tensor.
        axes: its axes.
        batch: the batch axis.
        dims: the dimensions to keep apart, in order.
    """
    kept = [tensor.shape[d] for d in dims]
    rest = [i for i in range(tensor.dim()) if i not in dims]
    moved = tensor.permute((*rest, *dims))
    if batch.size > 1:
        moved, split = unmerge(moved, tuple(axes[i] for i in rest), batch)
        at = next((i for i, dim in enumerate(split) if dim == (batch,)), None)
        if at is None or moved.shape[at] != batch.size:  # or all samples share it (a learned query)
            raise SamplesMixedError(
                "The samples of the batch cannot be told apart inside the model (an operation mixes the batch with "
                "other axes in a way that is not followed). Explain one sample at a time."
            )
        moved = moved.movedim(at, 0)
    return moved.reshape(batch.size, -1, *kept)


def per_sample(tensor: Tensor, axes: Axes, batch: Axis) -> Tensor:
    """Sum a tensor over everything but the batch: ``[batch]``."""
    if axes[:1] == ((batch,),) and tensor.shape[0] == batch.size:
        return tensor.sum(tuple(range(1, tensor.dim()))) if tensor.dim() > 1 else tensor
    if batch.size == 1:
        return tensor.sum().reshape(1)
    return arrange(tensor, axes, batch).sum(1)


def spread(values: Tensor, axes: Axes, batch: Axis) -> Tensor:
    """The inverse of a per-sample sum: ``[batch]`` values, shaped to multiply a tensor with these axes."""
    shape = [1] * len(axes)
    if batch.size == 1:
        return values.reshape(shape)
    i, dim = next((i, dim) for i, dim in enumerate(axes) if batch in dim)
    sizes = [atom.size if atom is batch else 1 for atom in dim]
    shape[i] = -1
    return values.reshape(sizes).expand([atom.size for atom in dim]).reshape(shape)


def restored(tensor: Tensor, dim: int, index: Tensor | None) -> Tensor:
    """Put entries along a dimension, which are in some order, into the order of the axis that they are entries of.

    Args:
        tensor: ``[batch, ...]``.
        dim: the dimension.
        index: which entry each position holds, ``[entries]`` or ``[batch, entries]``; ``None``: they are in order.
    """
    if index is None:
        return tensor
    places = index.to(tensor.device).argsort(-1)
    if places.dim() == 1:
        return tensor.index_select(dim, places)
    shape = [1] * tensor.dim()
    shape[0], shape[dim] = places.shape
    return tensor.gather(dim, places.reshape(shape).expand_as(tensor))


def token_dims(axes: Axes, tokens: Dim) -> tuple[range, Tensor | None] | None:
    """Return the dimensions that are some tokens, and in which order they hold them; ``None`` if there are none."""
    own = plain(axes)
    ends = [(i, j) for i in range(len(axes)) for j in range(i + 1, len(axes) + 1)]  # rows and columns of a picture
    at = next((range(i, j) for i, j in ends if tokens and sum(own[i:j], ()) == tokens), None)
    if at is None:
        return None
    order = order_of(axes[at[0]]) if len(at) == 1 else None
    if len(at) > 1 and any(order_of(axes[i]) is not None for i in at):  # rows or columns moved by themselves
        index = torch.zeros(1, dtype=torch.long)
        for i in at:
            inner = order_of(axes[i])
            own_index = torch.arange(size_of(axes[i])) if inner is None else inner.places
            if own_index.dim() > 1:
                return None
            index = (index[:, None] * size_of(axes[i]) + own_index).flatten()
        return at, index
    return at, None if order is None else order.places


def per_token(tensor: Tensor, axes: Axes, batch: Axis, tokens: Dim) -> Tensor:
    """Sum a tensor over everything but the batch and the tokens: ``[batch, tokens]``."""
    tensor, axes = unmerge(tensor, axes, batch)
    found = token_dims(axes, tokens)
    if found is None:  # one token, or a model without attention: the dimension behind the batch
        found = range(1, 2 if tensor.dim() > 2 else 1), None
    at, index = found
    if tensor.dim() == 3 and at == range(1, 2) and axes[0] == (batch,) and len(tensor) == batch.size:
        return restored(tensor.sum(2), 1, index)
    return restored(arrange(tensor, axes, batch, at).sum(1).reshape(batch.size, -1), 1, index)
