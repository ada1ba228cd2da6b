"""Quantised weights: tensors of integers and scales, which a trace reads as the floating-point numbers they stand for.

Packages for quantisation (torchao, optimum-quanto) keep a weight as a subclass of tensor that overrides
``dequantize``. Rules read weights in operations that such a class does not have: an absolute value, a selected row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.tape import depends_on


def is_quantised(tensor: Tensor) -> bool:
    """Return whether a tensor stands for floating-point numbers that it holds in another form."""
    kind = type(tensor)
    return kind is not Tensor and kind is not nn.Parameter and kind.dequantize is not Tensor.dequantize


def dequantised(tensor: Tensor) -> Tensor:
    """Return the floating-point numbers that a quantised tensor stands for; a capture depends on what it holds."""
    for inner in _held(tensor):
        depends_on(inner)
    with torch.no_grad():
        return tensor.detach().dequantize().to(tensor.dtype)


def _held(tensor: Any) -> Iterator[Tensor]:
    """Yield the plain tensors that a tensor subclass holds."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return
    for name in tensor.__tensor_flatten__()[0]:
        inner = getattr(tensor, name)
        if type(inner) in (Tensor, nn.Parameter):
            yield inner
        else:
            yield from _held(inner)
