"""Linear layers of which nothing but input and output can be seen (bitsandbytes, torch's dynamic int8), dequantised.

Such a layer keeps its weight as packed integers and multiplies in a kernel of its own. It is linear all the same, up to
rounding, so its response to the unit vectors is its weight. While a model is explained, a linear layer with this
weight takes its place.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor, nn

from ..capture.tape import not_captured
from ..errors import ModelError, WhenceWarning

DEQUANTISED = (
    "The model has quantised linear layers that also round what they read, or whose kernel has no usable gradient. The "
    "explanation is of the same model with dequantised weights and inputs that are not rounded: its outputs, and the "
    "logits of the explanation, differ a little from the model's own."
)

#: relative difference up to which a layer counts as linear: rounding of inputs to 8 bits, a few times
TOLERANCE = 0.1

_LOCK = threading.RLock()


class DequantisedLinear(nn.Module):
    """A linear layer with the weight of a quantised one.

    Args:
        weight: ``[out_features, in_features]``.
        bias: ``[out_features]``.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False) if bool(bias.any()) else None

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W^T + b`` in the precision of ``x``."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


@contextlib.contextmanager
def dequantised_layers(model: nn.Module) -> Iterator[None]:
    """Put dequantised linear layers in the place of opaque quantised ones, until the block ends.

    One thread at a time does so; the layers themselves are not touched.
    """
    if not any(map(_is_opaque, model.modules())):
        yield
        return
    not_captured("quantised layers are replaced while it is explained")
    with _LOCK:
        places = [
            (parent, name, child)
            for parent in model.modules()
            for name, child in parent._modules.items()
            if child is not None and _is_opaque(child)
        ]
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
        made = {layer: _dequantised(layer, name, like) for name, layer in model.named_modules() if _is_opaque(layer)}
        if made:  # none where this thread has replaced them already
            warnings.warn(DEQUANTISED, WhenceWarning, stacklevel=6)
        try:
            for parent, name, child in places:
                parent._modules[name] = made[child]
            yield
        finally:
            for parent, name, child in places:
                parent._modules[name] = child


def _is_opaque(module: nn.Module) -> bool:
    """Return whether a module is a linear layer whose weight is not a tensor of floating-point numbers."""
    features = getattr(module, "in_features", None), getattr(module, "out_features", None)
    inside = (child for child in module.modules() if child is not module)
    if not all(isinstance(n, int) for n in features) or any(hasattr(child, "in_features") for child in inside):
        return False  # an adapter around a linear layer, for instance
    weight = getattr(module, "weight", None)
    return not (isinstance(weight, Tensor) and weight.is_floating_point())


def _dequantised(layer: nn.Module, name: str, like: Tensor) -> DequantisedLinear:
    """Return the linear layer that a quantised one is, up to rounding.

    Args:
        layer: the layer; a copy of it is run.
        name: its name, for messages.
        like: a tensor on its device, of the precision in which it is run.
    """
    layer = copy.deepcopy(layer).eval()
    count = int(layer.in_features)  # type: ignore[arg-type]  # checked by :func:`_is_opaque`
    units = torch.eye(count, dtype=like.dtype, device=like.device)
    probe = torch.linspace(-1, 1, count, dtype=like.dtype, device=like.device)[None]
    bias, answers, expected = (_answer(layer, x) for x in (torch.zeros_like(probe), units, probe))
    found = DequantisedLinear((answers - bias).T.contiguous(), bias[0])
    linear = bool((found(probe) - expected).abs().max() <= TOLERANCE * expected.abs().max())
    if not linear:
        raise ModelError(
            f"The layer '{name}' ({type(layer).__module__}.{type(layer).__qualname__}) keeps its weight as packed "
            "integers and is not linear up to rounding, so its weight cannot be read. Explain the floating-point model "
            "that it was made from."
        )
    return found


def _answer(layer: nn.Module, x: Tensor) -> Tensor:
    """Return what a layer answers where a gradient may be asked for: some have another, coarser kernel if not."""
    with torch.enable_grad():
        answer: Tensor = layer(x.requires_grad_())
    return answer.detach()
