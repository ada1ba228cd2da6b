"""The blocks of a Transformer: what enters each, what its attention adds, what leaves it, as vectors of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ModelError
from ..runs.run import Run
from ..tracing.node import edge_of, node_of
from ..tracing.reductions import arrange, precise, unmerge
from ..tracing.residuals import Residual


@dataclass
class Block:
    """The residual stream through one block, as it stands in the graph.

    Attributes:
        before: what enters the block.
        branch: what its attention adds to that.
        between: the stream behind the attention; in a post-norm model, behind the norm that follows it.
        after: what leaves the block; the same as ``between`` where attention and MLP are added at once.
    """

    before: Tensor
    branch: Tensor
    between: Tensor
    after: Tensor


def surrounding(run: Run, method: str) -> list[Residual]:
    """The residual addition around each attention, first layer first; a model without them is refused."""
    done: set[int] = set()
    around = []
    for residual in run.trace.residuals:
        if set(residual.attentions) - done:
            done |= set(residual.attentions)
            around.append(residual)
    count = len(run.trace.attentions)
    if len(around) < count or len(done) < count:
        raise ModelError(
            f"'{method}' reads the residual stream before and after each attention, but {len(around)} residual sums "
            f"were found around {count} attentions. Use a method that reads attention maps alone (generic-attention, "
            "rollout)."
        )
    return around


def blocks(run: Run, method: str) -> list[Block]:
    """The block of each attention; a model that is not built of such blocks is refused."""
    around = surrounding(run, method)
    stream = [r for r in run.trace.residuals if r.output.shape == around[0].output.shape]
    kept = [t for r in stream for t in (r.trunk, r.output)]
    if any(not isinstance(edge_of(t), Tensor) for t in kept) or not all(node_of(r.output).residual for r in stream):
        raise ModelError(
            f"The model overwrites its residual stream in place, but '{method}' reads it before and after. Write "
            "x = x + f(x) for x += f(x), or use a method that reads attention maps alone (generic-attention, rollout)."
        )
    trunks = {node_of(residual.trunk).root.seq for residual in stream}
    out = []
    for residual, end in zip(around, run.boundaries[1:], strict=True):
        normed = residual.normed
        post_norm = normed is not None and (normed is end.tensor or node_of(normed).seq in trunks)
        between = normed if normed is not None and post_norm else residual.output
        out.append(Block(residual.trunk, residual.branch, between, end.tensor))
    return out


def vectors(run: Run, like: Tensor, values: Tensor | None = None) -> Tensor:
    """Each token's vector, ``[batch, tokens, features]``, in float32 or better, out of the graph.

    Args:
        run: the run.
        like: a tensor of the stream, in whatever layout the model has it.
        values: what to read in its place, of the same shape.
    """
    batch, tokens = run.trace.batch, run.tokens()
    tensor, axes = unmerge((like if values is None else values).detach(), node_of(like).axes, batch)
    at = next((i for i, dim in enumerate(axes) if dim == tokens and tokens), tensor.dim() - 2)  # or there is one token
    return arrange(precise(tensor), axes, batch, (at,)).transpose(1, 2)


def laid_out(run: Run, like: Tensor, values: Tensor) -> Tensor:
    """The inverse of :func:`vectors`: ``[batch, tokens, features]`` in the layout and the precision of a tensor."""
    numbers = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    out = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    out[vectors(run, like, numbers).reshape(-1)] = values.to(like.dtype).reshape(-1)
    return out.reshape(like.shape)


def padding(run: Run, like: Tensor) -> Tensor:
    """``[batch, tokens]``, true at padding, for vectors ``[batch, tokens, features]``."""
    none = torch.zeros(like.shape[:2], dtype=torch.bool, device=like.device)
    return none if run.mask is None or run.mask.shape != none.shape else run.mask
