"""Which parameters are tokens of the model's own (DETR's queries): those that an attention's queries are made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import operations as ops
from .node import Node
from .op_call import tensors_in


def remember(result: Any, name: str, tensors: list[Tensor]) -> Any:
    """Let what is made of parameters alone, but for weights, know them by ``id``."""
    made = [t for t in tensors_in(result) if not any(t is given for given in tensors)]
    found = origins([tensors[ops.WEIGHING[name]]] if name in ops.WEIGHING else tensors) if made else None
    for tensor in made if found else ():
        tensor._whence_made_of = found  # type: ignore[attr-defined]  # as the node of a traced tensor
    return result


def origins(tensors: list[Tensor]) -> frozenset[int]:
    """The parameters that constants are, or are made of."""
    out: set[int] = set()
    for tensor in tensors:
        parameter = getattr(tensor, "_whence_parameter", None)
        out |= getattr(tensor, "_whence_made_of", frozenset() if parameter is None else {id(parameter)})
    return frozenset(out)


def asked(node: Node) -> frozenset[int]:
    """The parameters that the queries (or keys) of an attention are made of, if they depend on nothing else.

    Args:
        node: of the attention's map, or of the output of a fused attention.
    """
    while node.kind not in ("linear", "matmul", "attention") and node.parents:
        node = node.parents[0]
    return node.made_of


def is_weight(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter of the model, or made of parameters."""
    return not tensor.requires_grad and (hasattr(tensor, "_whence_parameter") or hasattr(tensor, "_whence_made_of"))
