"""Token mixing outside attention: convolutions, recurrences, state spaces.

Roll-ups of attention maps follow tokens through attention alone. Where another operation of the residual stream mixes
tokens, they miss it and must report so.
"""

from __future__ import annotations

from typing import Any

import torch

from ..runs.run import Run
from ..tracing.residuals import Residual
from ..tracing.tensor_info import edge_of, node_of, on_gradient

ACROSS = ("convolution", "extreme", "softmax", "unknown")  # kinds that may mix tokens and keep their number


def mixing_branches(run: Run) -> list[Residual]:
    """Return the residual additions of the main stream whose branch mixes tokens other than by attention.

    This is tested by a gradient: with the outputs of attention held fixed, that of one token of the branch may only
    reach the same token. Branches that the trace shows to process each token by itself are not tested.
    """
    stream = run.boundaries[0]
    tokens = run.tokens
    if tokens not in stream.node.token_axes:
        return []
    at, shape = stream.node.token_axes.index(tokens), stream.tensor.shape
    same = [r for r in run.trace.residuals if r.trunk.shape == r.branch.shape == shape]
    found = [r for r in same if _may_mix(r, at) and _mixes(run, r, at)]
    run.forget()
    return found


def _may_mix(residual: Residual, at: int) -> bool:
    """Return whether some operation of the branch, outside attention, may not process each token by itself."""
    trunk, branch = node_of(residual.trunk), node_of(residual.branch)
    tokens = set(trunk.axes[at])
    outside = [n for n in branch.between(trunk) or () if n is not trunk and n.inside is None and not n.mixed]
    return branch.axes[at] != trunk.axes[at] or any(
        node.kind in ACROSS
        or not tokens <= {atom for dim in node.axes for atom in dim}
        or (node.kind == "reduce" and node.axes == node.parents[0].axes)  # a running sum
        for node in outside
    )


def _mixes(run: Run, residual: Residual, at: int) -> bool:
    branch = residual.branch
    stream = run.boundaries[0].tensor
    if not branch.requires_grad:
        return False
    middle = branch.shape[at] // 2  # a causal operation reads earlier tokens, a convolution also later ones
    seed = torch.zeros(branch.shape, dtype=branch.dtype, device=stream.device)
    seed.narrow(at, middle, 1).fill_(1.0)
    read = [run.trace.attentions[i].output for i in residual.attentions]
    hooks = [on_gradient(t, torch.zeros_like) for t in read if t is not None]
    if run.rulebook.phase is not None:
        run.rulebook.phase.carry(relevance=False)
    ends: Any = [edge_of(branch)], [edge_of(residual.trunk)]
    try:
        (found,) = torch.autograd.grad(ends[0], ends[1], [seed], retain_graph=True, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    if found is None:
        return False
    found.narrow(at, middle, 1).zero_()
    return bool(found.any())
