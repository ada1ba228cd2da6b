"""Attention heads switched off, in any model: what it says without them.

The test of what an explanation says of heads: without those that carried a prediction it changes more than without
others (Michel, Levy, Neubig, NeurIPS 2019; Voita et al., ACL 2019, prune heads in this way).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .arguments import Inputs, prepare
from .attention import AttentionRecord
from .axes import Axes, Axis
from .call import Call, map_tensors
from .errors import InputError, ModelError
from .trace import Trace
from .undisturbed import undisturbed


def without(model: nn.Module, inputs: Inputs, heads: Iterable[tuple[int, int]] = (), layers: Sequence[int] = ()) -> Any:
    """What a model says with some of its attention heads switched off: they write nothing.

    Args:
        model: any ``nn.Module``; it is left as it is.
        inputs: as for :func:`whence.explain`.
        heads: ``(layer, head)``, counted as in ``e.heads``.
        layers: attentions that are switched off as a whole.

    Returns:
        What the model returns, out of the graph.

    Example:
        >>> layer, head = divmod(int(e.heads[0].argmax()), e.heads.shape[2])
        >>> whence.without(model, inputs, heads=[(layer, head)]).logits
    """
    args, kwargs, batch = prepare(model, inputs)
    chosen = [(int(layer), int(head)) for layer, head in heads]
    seen: list[int] = []  # the heads of each attention that was met

    def off(call: Call) -> Any:
        record = AttentionRecord.fused(call) if call.kind == "attention" else AttentionRecord.of(call)
        if record is None:
            raise ModelError("The model's attention is in pieces (a sliding window): its heads cannot be switched off.")
        layer = len(seen)
        seen.append(record.shape[0])
        which = range(record.shape[0]) if layer in layers else [head for at, head in chosen if at == layer]
        dead = [head for head in which if 0 <= head < record.shape[0]]
        return call.run() if not dead else _without(call, record, dead)

    with torch.inference_mode(False), torch.enable_grad(), undisturbed(model):
        trace = Trace({"mix": off, "attention": off}, batch)
        with trace:
            placed = [trace.input(str(i), a) if isinstance(a, Tensor) else a for i, a in enumerate(args)]
            named = {k: trace.input(k, v) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
            outputs = model._call_impl(*placed, **named)
    _check(chosen, layers, seen)
    found = map_tensors(outputs, Tensor.detach)
    return type(outputs)(**found) if isinstance(outputs, Mapping) else found


def _without(call: Call, record: AttentionRecord, dead: list[int]) -> Any:
    """An attention some of whose heads write nothing."""
    alive = torch.ones(record.shape[0], dtype=torch.bool)
    alive[dead] = False
    mask = _over(alive, [dim for i, dim in enumerate(record.axes) if i not in (record.query, record.key)], call.batch)
    if call.kind == "attention":  # [..., heads, queries, features]
        out: Tensor = call.run()
        return out * mask.to(out)[..., None, None]
    probabilities = record.probabilities
    assert probabilities is not None
    shape = iter(mask.shape)
    laid = mask.reshape([1 if i in (record.query, record.key) else next(shape) for i in range(probabilities.dim())])
    return call.run(*(t * laid.to(t) if t is probabilities else t for t in call.traced))


def _over(heads: Tensor, dims: Sequence[Any], batch: Axis) -> Tensor:
    """``[heads]`` values over dimensions of the batch and of heads, however they are split or merged."""
    axes: Axes = tuple(dims)
    atoms = [atom for dim in axes for atom in dim]
    own = heads.reshape([1 if atom is batch else atom.size for atom in atoms])
    return own.expand([atom.size for atom in atoms]).reshape([math.prod(atom.size for atom in dim) for dim in axes])


def _check(heads: list[tuple[int, int]], layers: Sequence[int], seen: list[int]) -> None:
    for layer in [*layers, *(layer for layer, _ in heads)]:
        if not 0 <= layer < len(seen):
            raise InputError(f"There is no layer {layer}: the model has {len(seen)} attentions, 0 to {len(seen) - 1}.")
    for layer, head in heads:
        if not 0 <= head < seen[layer]:
            raise InputError(f"Layer {layer} has no head {head}: its heads are 0 to {seen[layer] - 1}.")
