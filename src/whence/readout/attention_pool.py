"""Pooling by attention: queries that the model has learned read the tokens that leave the last block (SigLIP, CoCa)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import ModelError
from ..runs.run import Run
from ..tracing.attention_record import AttentionRecord
from ..tracing.node import Node
from ..tracing.tensor_info import node_of
from .residual_blocks import require_kept


@dataclass(frozen=True)
class AttentionPool:
    """The attention that a model pools its tokens by.

    Attributes:
        record: the attention, ``[latent queries, tokens]``.
        normed: what it reads, behind the norm that follows the last block; the block's output where there is none.
        ends: the output of each block, first block first.
    """

    record: AttentionRecord
    normed: Node
    ends: list[Tensor]


def attention_pool(run: Run, method: str) -> AttentionPool | None:
    """Return the attention that a model pools its tokens by; ``None`` if it does not end in one.

    It is the last attention; its keys are the tokens, its queries are not, and depend on no input. All others are
    between the tokens, one in each residual block.
    """
    records = run.trace.attentions
    if len(records) < 2 or not _is_pool(run, records[-1]):
        return None
    if any(r.axes[r.query] != run.tokens or r.axes[r.key] != run.tokens for r in records[:-1]):
        return None
    ends = [b.tensor for b in run.boundaries[1:]]
    path = _path(records[-1].reads, run.boundaries[-1].node)
    if len(ends) != len(records) - 1 or path is None:
        raise ModelError(
            f"The model pools its tokens by an attention, before which '{method}' reads the output of each block; but "
            f"{len(ends)} blocks were found of {len(records) - 1} attentions. Use a method that reads attention maps "
            "alone (generic-attention, rollout)."
        )
    require_kept([r for r in run.trace.residuals if r.output.numel() == ends[-1].numel()], method)
    return AttentionPool(records[-1], _after_norm(path), ends)


def _is_pool(run: Run, record: AttentionRecord) -> bool:
    """Return whether an attention is from queries that depend on no input to the tokens."""
    if record.probabilities is None or record.axes[record.key] != run.tokens or record.axes[record.query] == run.tokens:
        return False
    node = node_of(record.probabilities)
    while node.kind not in ("matmul", "linear") and len(node.parents) == 1:
        node = node.parents[0]
    named = {node_of(s.tensor).seq for s in run.trace.sources if s.name}
    return node.kind in ("matmul", "linear") and sum(parent.descends(named) for parent in node.parents) == 1


def _path(end: Node | None, start: Node) -> list[Node] | None:
    """Return the tensors from one to another that is made of it alone; ``None`` if it is not."""
    path: list[Node] = []
    while end is not None and end is not start:
        path.append(end)
        end = end.parents[0] if len(end.parents) == 1 else None
    return None if end is None else [start, *reversed(path)]


def _after_norm(path: list[Node]) -> Node:
    """Return the output of the first norm on a path, its weight and bias included; without a norm, the start."""
    norms = [i for i, node in enumerate(path) if node.kind in ("norm", "normalise")]
    if not norms:
        return path[0]
    at = norms[0]
    for kind in ("scale", "shift-by-constant"):
        if path[at].kind != "norm" and at + 1 < len(path) and path[at + 1].kind == kind:
            at += 1
    return path[at]
