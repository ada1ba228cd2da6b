"""Custom autograd functions (BLOOM's GELU): looked into where their forward is made of operations that are seen.

Such a function runs its forward with gradients switched off and puts itself in the place of the history of what it
returns. A tensor made while gradients are off therefore keeps a second self, with the history of its operations. A
function with an operation inside that has no derivative (rounding) is there for its own backward, and keeps that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from .node import Node, walk
from .tensor_info import attach, info_of, inform, node_of

CHECKPOINT = "CheckpointFunctionBackward"  # is refused: see the trace


def keep(result: Any) -> Any:
    """Let a tensor that was made while gradients were off keep its history."""
    if isinstance(result, Tensor) and result.requires_grad:
        node_of(result).mark(hidden=True)
        inform(result, visible=attach(result.view_as(result), node_of(result)))
    return result


def opened(tensor: Tensor) -> Tensor:
    """A tensor that a custom function made, with the history of the operations inside; any other as it is."""
    known = info_of(tensor)
    if known.visible is None or type(tensor.grad_fn).__name__ in (known.maker, CHECKPOINT):
        return tensor
    return known.visible if _has_derivative(node_of(known.visible)) else tensor


def _has_derivative(node: Node) -> bool:
    """Return whether all operations inside the function have one."""
    inside = walk([node], lambda here: [parent for parent in here.parents if parent.hidden])
    return not any(here.kind in ("discrete", "extreme", "unknown", "foreign") for here in inside)


def refuse_checkpoints(traced: list[Tensor], hooks: Any) -> None:
    """Refuse a model's own gradient checkpointing: its recomputation would run without the rules.

    Args:
        traced: what an operation reads that depends on the input.
        hooks: those on saved tensors when the trace began.
    """
    reentrant = [t for t in traced if info_of(t).maker == CHECKPOINT]
    if reentrant or (traced and hooks_on_saved_tensors() != hooks):
        raise ModelError(
            "The model runs part of itself under gradient checkpointing (or other saved-tensor hooks), which "
            "recomputes it without the rules of the explanation. Switch checkpointing off (HuggingFace: "
            "model.gradient_checkpointing_disable()) and explain again."
        )


def hooks_on_saved_tensors() -> Any:
    """Which hooks on saved tensors are active, such as those of a model's own checkpoints."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return whether_hooked() if top is None else top(True)


def whether_hooked() -> bool:
    """Whether there are any, in a torch that does not tell which: a saved tensor takes one pair of hooks."""
    with torch.enable_grad():
        step: Any = torch.ones(1, requires_grad=True).exp().grad_fn
    try:
        step._raw_saved_result.register_hooks(lambda kept: kept, lambda kept: kept)
    except RuntimeError:
        return True
    return False
