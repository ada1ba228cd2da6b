"""Rewrites of every sum, product, difference or quotient that a model computes, whatever wrote it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

SUMS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)
DIFFERENCES = (torch.sub, Tensor.sub, Tensor.__sub__)
QUOTIENTS = (torch.div, torch.true_divide, Tensor.div, Tensor.__truediv__)

Rewrite = Callable[[Any, Any, Any], Any]


def tensors(args: tuple[Any, ...]) -> bool:
    """Return whether a call has two tensors of floating point and nothing else."""
    return len(args) == 2 and all(isinstance(a, Tensor) and a.is_floating_point() for a in args)


class Rewritten(TorchFunctionMode):
    """Call another function in place of some: ``rewrites`` maps each to what is called with the same operands."""

    def __init__(self, rewrites: dict[Any, Rewrite], every: int = 1) -> None:
        super().__init__()
        self.rewrites, self.every, self.calls = rewrites, every, itertools.count()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Rewrite every call, or one in ``every``, that has two tensors and no options."""
        rewrite = self.rewrites.get(func)
        if rewrite is None or kwargs or not tensors(args) or next(self.calls) % self.every:
            return func(*args, **(kwargs or {}))
        return rewrite(func, *args)


def swapped(func: Any, a: Tensor, b: Tensor) -> Tensor:
    return func(b, a)


COMMUTED = dict.fromkeys(SUMS + PRODUCTS, swapped)

#: a context for the forward pass
REWRITES: dict[str, dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "operands": {
        "usual": contextlib.nullcontext,
        "commuted": lambda: Rewritten(COMMUTED),
        "commuted-sums": lambda: Rewritten(dict.fromkeys(SUMS, swapped)),
        "commuted-products": lambda: Rewritten(dict.fromkeys(PRODUCTS, swapped)),
        "commuted-every-second": lambda: Rewritten(COMMUTED, every=2),
        "commuted-every-third": lambda: Rewritten(COMMUTED, every=3),
        "negated-differences": lambda: Rewritten(dict.fromkeys(DIFFERENCES, lambda f, a, b: a + (-b))),
        "reciprocal-quotients": lambda: Rewritten(dict.fromkeys(QUOTIENTS, lambda f, a, b: b.reciprocal() * a)),
        "differences-for-sums": lambda: Rewritten(dict.fromkeys(SUMS, lambda f, a, b: a - (-b))),
    }
}
