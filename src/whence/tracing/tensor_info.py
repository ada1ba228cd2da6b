"""What travels with a tensor during a trace: one record, in one attribute of the tensor.

A tensor that depends on the input has a node. A constant that was made of parameters knows which. Nothing of the user's
is marked: parameters enter as detached copies, and inputs as clones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from . import operations as ops
from .node import Node


class TensorInfo(NamedTuple):
    """What is known of one tensor of a trace.

    Attributes:
        node: its node, if it depends on the input.
        maker: the name of the step of the autograd graph that made it when the node was attached.
        edge: where its gradient arrives, if it stands for a tensor that was overwritten or let go of.
        roots: the tensors of which it is an elementwise function, kept alive until another operation reads it.
        whole: the tensor and the index that it is a slice of, if a rule has made it no view of that.
        visible: the same value with the history of the operations that made it while gradients were off.
        parameter: the parameter that it is a detached copy of.
        name: the parameter's name in the model.
        made_of: the parameters (by ``id``) that it was computed from, if it is a constant.
    """

    node: Node | None = None
    maker: str = ""
    edge: GradientEdge | None = None
    roots: tuple[Tensor, ...] = ()
    whole: tuple[Tensor, Any] | None = None
    visible: Tensor | None = None
    parameter: Tensor | None = None
    name: str = ""
    made_of: frozenset[int] = frozenset()


_NOTHING = TensorInfo()


def info_of(tensor: Tensor) -> TensorInfo:
    """Return what is known of a tensor; of one that is not part of a trace, nothing."""
    found: TensorInfo = getattr(tensor, "_whence", _NOTHING)
    return found


def inform(tensor: Tensor, **facts: Any) -> Tensor:
    """Add to what is known of a tensor."""
    tensor._whence = info_of(tensor)._replace(**facts)  # type: ignore[attr-defined]  # tensors take attributes
    return tensor


def forget(tensor: Tensor) -> None:
    """Free a tensor from the trace."""
    if info_of(tensor) is not _NOTHING:
        del tensor._whence  # type: ignore[attr-defined]  # as above


def attach(tensor: Tensor, node: Node) -> Tensor:
    """Let a node, and the name of what made the tensor, travel with a tensor made during the trace."""
    inform(tensor, node=node, maker=type(tensor.grad_fn).__name__)
    node.refers_to(tensor)
    return tensor


def node_of(tensor: Tensor) -> Node:
    """Return the node of a tensor that is known to have one."""
    node = info_of(tensor).node
    assert node is not None
    return node


def past(tensor: Tensor) -> Tensor:
    """Return a tensor as it is before it is overwritten: its value, its node, and where its gradient arrives."""
    return _standing_for(tensor, tensor.detach().clone().requires_grad_())


def distant(tensor: Tensor) -> Tensor:
    """Return a tensor's place in the graph without its value: its shape, its node, and where its gradient arrives."""
    if not tensor.requires_grad or tensor.is_meta:
        return tensor
    return _standing_for(tensor, torch.empty_like(tensor, device="meta", requires_grad=True))


def _standing_for(tensor: Tensor, other: Tensor) -> Tensor:
    edge = info_of(tensor).edge  # of one that stands for another itself
    return inform(attach(other, node_of(tensor)), edge=get_gradient_edge(tensor) if edge is None else edge)


def edge_of(tensor: Tensor) -> Tensor | GradientEdge:
    """Return what to ask autograd for to have a tensor's gradient, also if it was overwritten since."""
    edge = info_of(tensor).edge
    return tensor if edge is None else edge


def on_gradient(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call a function with a tensor's gradient, and go on with what it returns; also if only its place is known."""
    edge = edge_of(tensor)
    if isinstance(edge, Tensor):
        if not edge.requires_grad:  # a constant, at which none arrives
            return RemovableHandle(OrderedDict())
        handle: RemovableHandle = edge.register_hook(hook)
        return handle
    number = edge.output_nr

    def before(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        found = None if gradients[number] is None else hook(gradients[number])
        return None if found is None else (*gradients[:number], found, *gradients[number + 1 :])

    return edge.node.register_prehook(before)


@dataclass
class Source:
    """Where the user's input becomes a float tensor that can carry relevance.

    Attributes:
        name: the input's name.
        tensor: a leaf: the raw float input, or the rows looked up for an integer input.
        embedded: whether it is the output of an embedding.
    """

    name: str
    tensor: Tensor
    embedded: bool


def derive(tensors: list[Tensor], name: str, operands: list[Tensor]) -> None:
    """Let what is made of parameters alone, but for weights, know them by ``id``.

    Args:
        tensors: what an operation made.
        name: the operation.
        operands: what it was made of.
    """
    made = [t for t in tensors if not any(t is given for given in operands)]
    found = origins([operands[ops.WEIGHING[name]]] if name in ops.WEIGHING else operands) if made else None
    for tensor in made if found else ():
        inform(tensor, made_of=found)


def origins(tensors: list[Tensor]) -> frozenset[int]:
    """Return the parameters (by ``id``) that constants are, or are made of."""
    return frozenset().union(*(info_of(tensor).made_of for tensor in tensors))


def is_weight(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter of the model, or made of parameters."""
    return not tensor.requires_grad and bool(info_of(tensor).made_of)
