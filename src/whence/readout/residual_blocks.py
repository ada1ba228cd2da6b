"""The residual blocks of a Transformer: input, attention branch and output of each, as token vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ModelError
from ..runs.block_structure import around_attentions
from ..runs.run import Run
from ..tracing.reductions import arrange, precise, restored, token_dims, unmerge
from ..tracing.residuals import Residual
from ..tracing.tensor_info import edge_of, node_of


@dataclass
class Block:
    """The residual stream through one block, as tensors of the graph.

    Attributes:
        before: the input of the block.
        branch: the residual branch of its attention.
        between: the stream after the attention; in a post-norm model, after the norm that follows it.
        after: the output of the block; the same as ``between`` where attention and MLP are added at once.
    """

    before: Tensor
    branch: Tensor
    between: Tensor
    after: Tensor


def attention_residuals(run: Run, method: str) -> list[Residual]:
    """Return the residual addition around each attention, first layer first; a model without them raises an error."""
    around = around_attentions(run.trace)
    done = {i for residual in around for i in residual.attentions}
    count = len(run.trace.attentions)
    if len(around) < count or len(done) < count:
        raise ModelError(
            f"'{method}' reads the residual stream before and after each attention, but {len(around)} residual sums "
            f"were found around {count} attentions. Use a method that reads attention maps alone (generic-attention, "
            "rollout)."
        )
    return around


def blocks(run: Run, method: str) -> list[Block]:
    """Return the block of each attention; a model that is not built of such blocks raises an error."""
    around = attention_residuals(run, method)
    if any(residual.selection is not None for residual in run.trace.residuals):
        raise ModelError(
            f"The model computes a residual branch for some of its tokens alone, but '{method}' reads blocks that all "
            "work on the same tokens. Use a method that reads attention maps alone (generic-attention, rollout)."
        )
    stream = [r for r in run.trace.residuals if r.output.numel() == around[0].output.numel()]
    require_kept(stream, method)
    trunks = {node_of(residual.trunk).root.seq for residual in stream}
    out = []
    for residual, end in zip(around, run.boundaries[1:], strict=True):
        normed = residual.normed
        post_norm = normed is not None and (normed is end.tensor or node_of(normed).seq in trunks)
        between = normed if normed is not None and post_norm else residual.output
        out.append(Block(residual.trunk, residual.branch, between, end.tensor))
    return out


def require_kept(stream: Sequence[Residual], method: str) -> None:
    """Raise an error for a residual stream that the model overwrites in place."""
    kept = [t for r in stream for t in (r.trunk, r.output)]
    if any(not isinstance(edge_of(t), Tensor) for t in kept) or not all(node_of(r.output).residual for r in stream):
        raise ModelError(
            f"The model overwrites its residual stream in place, but '{method}' reads it before and after. Write "
            "x = x + f(x) for x += f(x), or use a method that reads attention maps alone (generic-attention, rollout)."
        )


def token_vectors(run: Run, like: Tensor, values: Tensor | None = None) -> Tensor:
    """Return each token's vector, ``[batch, tokens, features]``, in float32 or better, detached from the graph.

    Args:
        run: the run.
        like: a tensor of the stream, in any layout.
        values: values to read instead of its own, of the same shape.
    """
    batch, tokens = run.trace.batch, run.tokens
    tensor, axes = unmerge((like if values is None else values).detach(), node_of(like).axes, batch)
    found = token_dims(axes, tokens)
    at, index = (
        (range(tensor.dim() - 2, tensor.dim() - 1), None) if found is None else found
    )  # none: there is one token
    vectors = arrange(precise(tensor), axes, batch, at).reshape(batch.size, -1, math.prod(tensor.shape[d] for d in at))
    return restored(vectors, 2, index).transpose(1, 2)


def from_token_vectors(run: Run, like: Tensor, values: Tensor) -> Tensor:
    """Invert :func:`token_vectors`: return ``[batch, tokens, features]`` in the layout and precision of a tensor."""
    numbers = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    out = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    out[token_vectors(run, like, numbers).reshape(-1)] = values.to(like.dtype).reshape(-1)
    return out.reshape(like.shape)


def padding(run: Run, like: Tensor) -> Tensor:
    """Return ``[batch, tokens]``, true at padding, for vectors ``[batch, tokens, features]``."""
    none = torch.zeros(like.shape[:2], dtype=torch.bool, device=like.device)
    return none if run.mask is None or run.mask.shape != none.shape else run.mask
