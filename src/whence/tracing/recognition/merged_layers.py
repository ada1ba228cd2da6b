"""Sums of linear layers of one tensor as one layer: ``W x + s B (A x)``, a layer and its adapter, is ``(W + s B A) x``.

For a gradient the two are the same as they stand. A rule that reads weights (positive contributions, for instance)
distributes relevance by each layer's own weights, and of a sum by the summands: it needs the layer that they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from ...capture.tape import repeated
from ..node import Node
from ..op_call import Call
from ..replay import restored
from ..tensor_info import node_of

#: how many operations one summand may consist of
REACH = 8


class Layer(NamedTuple):
    """A linear layer, ``x W^T + b``.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``, or ``None``.
    """

    weight: Tensor
    bias: Tensor | None

    def plus(self, other: Layer, sign: float) -> Layer:
        """Return the sum with another layer, or the difference."""
        biases = [b for b in (self.bias, None if other.bias is None else sign * other.bias) if b is not None]
        return Layer(self.weight + sign * other.weight, sum(biases[1:], biases[0]) if biases else None)


def merged_layers(call: Call) -> Callable[[], Tensor] | None:
    """Return a sum of two chains of linear layers of one tensor as a linear layer."""
    if call.inplace or len(call.traced) != 2 or len(call.args) != 2 or call.kwargs:
        return None
    first, second = (_chain(node_of(t)) for t in call.args)
    source = next((node for node in first if node in second), None)
    if source is None:
        return None
    chains = [chain[: chain.index(source)] for chain in (first, second)]
    if not all(chain and chain[-1].name == "linear" for chain in chains):
        return None

    def run() -> Tensor:
        with repeated():
            one, other = (_layer(chain) for chain in chains)
            layer = one.plus(other, -1.0 if call.name == "sub" else 1.0)
        return F.linear(restored(source), layer.weight, layer.bias)

    return run


def _chain(node: Node) -> list[Node]:
    """Return a tensor and those that it is made of, one after the other, by linear layers and multiples."""
    chain = [node]
    while len(chain) <= REACH and _is_step(chain[-1]):
        chain.append(chain[-1].flows[0])
    return chain


def _is_step(node: Node) -> bool:
    """Return whether a tensor is made of one other by a linear layer, a factor or constants for each feature."""
    recipe = node.recipe
    if recipe is None or recipe.inplace or recipe.kwargs or len(node.flows) != 1 or len(recipe.args) < 2:
        return False
    constants = [a for a in recipe.args if a is not node.flows[0]]
    if node.name == "linear":
        return recipe.args[0] is node.flows[0] and constants[0].dim() == 2
    if node.name == "mul":
        return _is_of_features(constants[0])
    return node.name in ("div", "add", "sub") and recipe.args[0] is node.flows[0] and _is_of_features(constants[0])


def _is_of_features(constant: object) -> bool:
    """Return whether a constant is a number, or has one for each feature."""
    if isinstance(constant, Tensor):
        return constant.numel() == (constant.shape[-1] if constant.dim() else 1)
    return isinstance(constant, int | float)


def _layer(chain: list[Node]) -> Layer:
    """Return the linear layer that a chain is; the operation that comes first, at its end, is one."""
    made = Layer(*_constants(chain[-1]))
    for node in reversed(chain[:-1]):
        constant, bias = _constants(node)
        made = _after(made, constant, bias) if node.name == "linear" else _changed(made, node.name, constant)
    return made


def _constants(node: Node) -> tuple[Any, Tensor | None]:
    """Return the weight and the bias of a linear layer; of another operation, its constant."""
    assert node.recipe is not None
    constant, *rest = (a for a in node.recipe.args if a is not node.flows[0])
    return constant, next(iter(rest), None)


def _after(layer: Layer, weight: Tensor, bias: Tensor | None) -> Layer:
    """Return a layer followed by another one."""
    passed = None if layer.bias is None else layer.bias @ weight.T
    total = bias if passed is None else passed if bias is None else passed + bias
    return Layer(weight @ layer.weight, total)


def _changed(layer: Layer, name: str, constant: Tensor | float) -> Layer:
    """Return a layer whose output is multiplied by a constant, divided by it, or has it added or subtracted."""
    value = torch.as_tensor(constant, dtype=layer.weight.dtype, device=layer.weight.device).flatten()
    if name in ("mul", "div"):
        factor = value if name == "mul" else 1 / value
        bias = None if layer.bias is None else layer.bias * factor
        return Layer(layer.weight * factor[:, None], bias)
    shift = value if name == "add" else -value
    shift = shift.expand(len(layer.weight))
    return Layer(layer.weight, shift if layer.bias is None else layer.bias + shift)
