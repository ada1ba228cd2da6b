"""Rows that carry nothing are left out of a backward.

Behind the last attention a classifier reads [CLS] alone, a language model its last token: of all other rows, what comes
back is 0, and so is what a linear layer makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..capture.tape import shortcut, values
from .op_call import Call

#: rows that are looked at before all are
SAMPLE = 16
#: layers whose gradient has no rows to leave out, after which no further one is searched: those of values and keys of
#: the last attention; its queries may have such rows again
DENSE = 3
#: number of entries of a gradient from which on looking for rows costs less than it saves
LEAST = 2**14


def several(tensor: Tensor) -> bool:
    """Whether it is of several targets at once (``torch.vmap``)."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def few(tensor: Tensor) -> Tensor | None:
    """Return the indices of the rows of ``[..., features]`` that are not all 0, if at most half are; else ``None``.

    Only on a CPU, where reading them does not wait for a device, and only of one target: others have other rows.
    """
    if tensor.device.type != "cpu" or tensor.dim() < 2 or several(tensor):
        return None
    if tensor.numel() < max(LEAST, 2 * tensor.shape[-1]):
        return None
    with shortcut() as allowed:
        rows = tensor.reshape(-1, tensor.shape[-1])
        some = rows[:: len(rows) // SAMPLE or 1].any(-1)
        if not allowed or bool(2 * some.sum() > len(some)):  # most are alive: not worth a look at all
            return None
        alive = [i for i, nonzero in enumerate(values(rows.any(-1))) if nonzero]
        return torch.tensor(alive, dtype=torch.long) if 2 * len(alive) <= len(rows) else None


def among(alive: Tensor | None, apply: Callable[..., Tensor], first: Tensor, *others: Tensor) -> Tensor:
    """Apply a function of rows to those with the given indices (``None``: all); the others are 0."""
    if alive is None:
        return apply(first, *others)
    found = apply(*(t.reshape(-1, t.shape[-1])[alive] for t in (first, *others)))
    out = found.new_zeros(first.numel() // first.shape[-1], found.shape[-1])
    out[alive] = found
    return out.reshape(*first.shape[:-1], found.shape[-1])


def alias(tensor: Tensor) -> Tensor:
    """A tensor on the same memory that torch takes for a tensor of its own, so that the model may write into it.

    The trace gives it memory of its own before that happens.
    """
    source: Any = tensor  # of the types that it takes, torch names storages alone
    return tensor.new_empty(0).set_(source)


class SparseRows:
    """The linear layers of a backward, which look for rows to leave out until all tokens carry something."""

    def __init__(self) -> None:
        self._dense = 0

    def restart(self) -> None:
        """Look for rows to leave out again: another backward pass begins."""
        self._dense = 0

    def alive(self, tensor: Tensor) -> Tensor | None:
        """Return the indices of the rows of a gradient that are not all 0; ``None``: all are to be treated."""
        found = few(tensor) if self._dense < DENSE else None
        if found is None and tensor.dim() > 2:
            self._dense += 1
        return found

    @staticmethod
    def takes(call: Call) -> bool:
        """Whether an operation is a linear layer with constant weights."""
        if call.name != "linear" or len(call.traced) != 1 or call.argument(0, "input") is not call.traced[0]:
            return False
        weight = call.argument(1, "weight")
        return type(weight) is Tensor and weight.dim() == 2

    def run(self, call: Call, took: Callable[[Tensor], None] | None) -> Tensor:
        """A linear layer, whose backward leaves out rows.

        Args:
            call: the layer.
            took: to be called with the gradient of what it makes, where it has a bias and books are kept.
        """
        x = call.argument(0, "input")
        weight = call.argument(1, "weight")
        bias = call.argument(2, "bias")
        made: Tensor = _Linear.apply(self, took, x, weight, bias)
        return made


class _Linear(torch.autograd.Function):
    """``y = x W^T + b``, whose backward leaves out rows that carry nothing."""

    @staticmethod
    def forward(
        ctx: Any, sparse_rows: SparseRows, took: Callable[[Tensor], None] | None, x: Tensor, weight: Tensor, bias: Any
    ) -> Tensor:
        ctx.sparse_rows = sparse_rows
        ctx.took = took
        ctx.weight = weight
        return alias(torch.nn.functional.linear(x, weight, bias))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (gradient,) = grads
        if ctx.took is not None:
            ctx.took(gradient)
        weight = ctx.weight.to(gradient.dtype)  # another, where the layer ran under autocast
        rows = ctx.sparse_rows.alive(gradient)
        return None, None, among(rows, lambda alive: torch.matmul(alive, weight), gradient), None, None
