"""The positions that a model answers at: where the user's own tokens begin among them, and which is the last."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from ..tracing.axes import Axis, Dim
from ..tracing.tensor_info import info_of, node_of
from ..tracing.tracer import Trace
from .padding import over


def first_given(trace: Trace, logits: Tensor | None) -> int:
    """Return how many tokens of its own (of a tuned prompt) a model answers at before the user's first token."""
    tokens = _answered(logits)
    return 0 if tokens is None else _before(tokens, _given(trace)) or 0


def last_given(model: nn.Module, trace: Trace, mask: Tensor | None, batch: int, logits: Tensor | None) -> Tensor | None:
    """Return the last real token of each sample, if the model writes text and answers at every position.

    Args:
        model: the model.
        trace: of its forward pass.
        mask: ``[batch, given tokens]``, true at padding.
        batch: the number of samples.
        logits: what it answers.
    """
    if logits is None or logits.dim() != 3 or not (_writes(model) or any(r.causal for r in trace.attentions)):
        return None
    tokens = _answered(logits)
    if mask is not None and tokens is not None:
        mask = over(mask, tokens, _given(trace))
    if mask is None or mask.shape != logits.shape[:2]:
        return torch.full((batch,), logits.shape[1] - 1, device=logits.device)
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, -1, positions).amax(1)


def _answered(logits: Tensor | None) -> Dim | None:
    """Return the axis of positions of logits ``[batch, positions, classes]``."""
    node = None if logits is None else info_of(logits).node
    return None if node is None or len(node.axes) != 3 else node.axes[1]


def _given(trace: Trace) -> set[Axis]:
    """Return the axes of the user's tokens."""
    named = [source for source in trace.sources if source.name]
    own = [source for source in named if source.name in ("input_ids", "inputs_embeds")]
    return {atom for source in own or named for dim in node_of(source.tensor).axes[1:-1] for atom in dim}


def _before(tokens: Dim, given: Collection[Axis]) -> int | None:
    """Return how many constant tokens precede the user's on an axis; ``None`` if they are not followed."""
    if any(atom in given for atom in tokens):
        return 0
    count = 0
    for part in tokens[0].parts if len(tokens) == 1 else ():
        if part.source is not None:
            inside = _before(part.source, given)
            return None if inside is None else max(0, count + inside - part.start)
        count += part.length
    return None


def _writes(model: nn.Module) -> bool:
    """Return whether a model declares that it generates text: prefixes that it reads in both directions included."""
    can = getattr(model, "can_generate", None)
    return bool(can()) if callable(can) else False
