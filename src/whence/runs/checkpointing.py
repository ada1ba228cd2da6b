"""Gradient checkpointing without a change to the model: what a backward needs is made again, a piece at a time.

The first forward keeps none of the tensors that autograd would save. When the backward asks for one, the forward is run
again, under the same rules, up to the end of the piece it is in, and the tensors of that piece are kept until the
backward leaves it. With ``k`` pieces of equal size memory falls to about ``1 / k`` and ``(k + 1) / 2`` forwards are
added. (Chen et al. 2016, "Training deep nets with sublinear memory cost", who start again from the piece's beginning;
a model that is taken as it is can only be started from its own.)

What is freed does not leave the process by itself: small objects that stay lie between the large ones that go, and the
next large one finds no place there. The system is therefore given back free pages on the way.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..errors import MethodError, ModelError
from ..tracing.tensor_parallel import local

T = TypeVar("T")

#: bytes that are let go of, or kept for a while, between one return of free pages to the system and the next
UNRETURNED = 2**25


class Checkpoints:
    """The tensors that one forward saves for its backward, of which only a piece is there at a time.

    Args:
        pieces: how many.
        model: whose parameters and buffers are kept as they are, since they take no memory of their own.

    Example:
        >>> output = Checkpoints(4, model).first(lambda: model(x))
    """

    def __init__(self, pieces: int, model: nn.Module) -> None:
        if pieces < 2:
            raise MethodError(f"`checkpoints` must be at least 2 pieces, not {pieces}.")
        self.pieces = pieces
        self.own = {_place(t) for t in [*model.parameters(), *model.buffers()]}
        self.sizes: list[int] = []  # bytes of each tensor that was saved
        self.kept: dict[int, tuple[Tensor, int]] = {}  # of the present piece, with its version
        self.last = 0  # the one that was asked for last
        self.again: Callable[[], Any] = lambda: None
        self._passed = 0  # bytes since free pages were given back

    def first(self, forward: Callable[[], T]) -> T:
        """Run a forward whose backward will run it again."""
        self.again = forward
        with saved_tensors_hooks(self._drop, self._take):
            return forward()

    def _drop(self, tensor: Tensor) -> Tensor | int:
        if _place(tensor) in self.own:
            return tensor
        self.sizes.append(self._pass(tensor))
        return len(self.sizes) - 1

    def _pass(self, tensor: Tensor) -> int:
        """The bytes of a tensor; after so many, free pages go back to the system."""
        size = tensor.numel() * tensor.element_size()
        self._passed += size
        if self._passed > UNRETURNED:
            self._passed = 0
            give_back()
        return size

    def _take(self, saved: Tensor | int) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if saved not in self.kept:
            self._make(*self._piece(saved))
        self.last, (tensor, version) = saved, self.kept[saved]
        if tensor._version != version:
            raise ModelError(
                "A tensor that the backward pass needs was overwritten in place when the forward pass was recomputed. "
                "Explain without `checkpoints`."
            )
        return tensor

    def _piece(self, index: int) -> tuple[int, int]:
        """The first and the last tensor of the piece that one is in."""
        total = sum(self.sizes)
        before = 0
        of = []
        for size in self.sizes:
            of.append(min(self.pieces - 1, before * self.pieces // max(1, total)))
            before += size
        return of.index(of[index]), len(of) - 1 - of[::-1].index(of[index])

    def _make(self, first: int, last: int) -> None:
        """Run the forward again, as far as it has to."""
        count = 0
        self.kept = {i: t for i, t in self.kept.items() if i < self.last}  # of an operation that is in both pieces

        def keep(tensor: Tensor) -> Tensor | None:
            nonlocal count
            if _place(tensor) in self.own:
                return tensor
            index, count = count, count + 1
            self._pass(tensor)
            if index >= first:
                self.kept[index] = (tensor.detach(), tensor._version)
            if index == last:
                raise _Enough
            return None

        with torch.enable_grad(), saved_tensors_hooks(keep, lambda saved: saved):
            try:
                self.again()
            except _Enough:
                return
        raise ModelError(
            "The model did something else when it was run again, so `checkpoints` cannot be used: it may keep a state, "
            "or be random in evaluation mode. Explain it without them."
        )


class _Enough(Exception):  # noqa: N818  # no error: the forward has come as far as it has to
    """The piece is complete."""


class _Held(torch.autograd.Function):
    """A tensor saved as autograd saves tensors, for the sake of another one: a leaf of its own would keep it."""

    @staticmethod
    def forward(ctx: Any, other: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return other.clone()


def held(tensor: Tensor) -> Callable[[], Tensor]:
    """A tensor's value, also under checkpoints: kept as autograd keeps what it saves."""
    with torch.enable_grad():
        node: Any = _Held.apply(torch.ones((), requires_grad=True), tensor.detach()).grad_fn
    return lambda: node.saved_tensors[0].detach()


def _place(tensor: Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim  # of the C library, where it is GNU's
    except (AttributeError, OSError, TypeError):
        return None


def give_back() -> None:
    """Return pages of memory that nothing uses to the system (GNU's C library keeps them otherwise)."""
    trim = _trim()
    if trim is not None:
        trim(0)
