"""Whether tokens meet outside attention: through convolutions, recurrences, state spaces.

Roll-ups of attention maps follow tokens through attention alone. Where another operation of the stream lets one token
read another, they miss it, and have to say so.
"""

from __future__ import annotations

from typing import Any

import torch

from ..runs.run import Run
from ..tracing.node import edge_of, node_of, on_gradient
from ..tracing.residuals import Residual

ACROSS = ("convolution", "extreme", "softmax", "unknown")  # kinds that may lie across tokens and keep their number


def mixers(run: Run) -> list[Residual]:
    """The residual additions of the main stream whose branch lets tokens read one another, other than by attention.

    Seen from the gradient: of one token of what is added, with what attention has read held fixed, it may only reach
    that token. Branches of which the trace already tells that they keep tokens apart are not asked.
    """
    stream, tokens = run.boundaries[0], run.tokens()
    if tokens not in stream.node.axes:
        return []
    at, shape = stream.node.axes.index(tokens), stream.tensor.shape
    same = [r for r in run.trace.residuals if r.trunk.shape == r.branch.shape == shape]
    found = [r for r in same if _suspect(r, at) and _mixes(run, r, at)]
    run.forget()
    return found


def _suspect(residual: Residual, at: int) -> bool:
    """Whether something in the branch, outside attention, is not plainly an operation on each token by itself."""
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
    branch, stream = residual.branch, run.boundaries[0].tensor
    if not branch.requires_grad:
        return False
    middle = branch.shape[at] // 2  # a causal operation reads what is before it, a convolution also what is behind
    seed = torch.zeros(branch.shape, dtype=branch.dtype, device=stream.device)
    seed.narrow(at, middle, 1).fill_(1.0)
    read = [run.trace.attentions[i].output for i in residual.attentions]
    hooks = [on_gradient(t, torch.zeros_like) for t in read if t is not None]
    if run.rulebook.phase is not None:
        run.rulebook.phase.relevance, run.rulebook.phase.keep = False, True
    ends: Any = [edge_of(branch)], [edge_of(residual.trunk)]
    try:
        (found,) = torch.autograd.grad(ends[0], ends[1], [seed], retain_graph=True, materialize_grads=True)
    finally:
        for hook in hooks:
            hook.remove()
    found.narrow(at, middle, 1).zero_()
    return bool(found.any())
