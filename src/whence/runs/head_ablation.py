"""Attention heads switched off, in any model: what it says without them.

The test of what an explanation says of heads: without those that carried a prediction it changes more than without
others (Michel, Levy, Neubig, NeurIPS 2019; Voita et al., ACL 2019, prune heads in this way).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError, ModelError
from ..propagation.rule import rule
from ..tracing.attention_record import AttentionRecord
from ..tracing.eval_mode import undisturbed
from ..tracing.op_call import Call, map_tensors, tensors_in
from ..tracing.tensor_info import info_of
from ..tracing.tracer import Trace
from .head_axes import head_axes, nodes_behind
from .model_inputs import Inputs, prepare


class AblatedHeads(NamedTuple):
    """The heads of an attention.

    Attributes:
        number: how many.
        axes: for each of the attention's own axes, whether it is of heads (or else of windows).
    """

    number: int
    axes: list[bool]


def without(model: nn.Module, inputs: Inputs, heads: Iterable[tuple[int, int]] = (), layers: Iterable[int] = ()) -> Any:
    """What a model says with some of its attention heads switched off: they write nothing.

    Args:
        model: any ``nn.Module``; it is left as it is.
        inputs: as for :func:`whence.explain`.
        heads: ``(layer, head)``, counted as in ``e.heads``. Of attention in windows, a head is the same in all of them.
        layers: attentions that are switched off as a whole.

    Returns:
        What the model returns, out of the graph.

    Example:
        >>> layer, head = divmod(int(e.heads[0].argmax()), e.heads.shape[2])
        >>> whence.without(model, inputs, heads=[(layer, head)]).logits
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is {type(model).__name__}; heads are switched off in torch.nn.Module objects.")
    original: nn.Module = getattr(model, "_orig_mod", model)  # torch.compile wraps the module it was given
    single, whole = _pairs(heads), set(_numbers(layers))
    given = prepare(original, inputs)
    known = _look(original, given)
    _check(single, whole, known)

    def off(layer: int, call: Call) -> Any:
        dead = [head for at, head in single if at == layer]
        own = known[layer]
        if layer in whole:
            return call.run() * 0
        return call.run() if own is None or not dead else _without(call, own, dead)

    outputs, _ = _forward(original, given, off)
    found = map_tensors(outputs, Tensor.detach)
    return type(outputs)(**found) if isinstance(outputs, Mapping) else found


def _forward(
    model: nn.Module, given: tuple[list[Any], dict[str, Any], int], attend: Callable[[int, Call], Any]
) -> tuple[Any, Trace]:
    """What a model returns whose attentions (by index) are done by a function, and what happened on the way."""
    args, kwargs, batch = given

    @rule
    def switch(call: Call) -> Any:
        return attend(len(trace.attentions), call)

    with torch.inference_mode(False), torch.enable_grad(), undisturbed(model) as names:
        trace = Trace({"mix": switch, "attention": switch}, batch, names=names, heads=True)
        with trace:
            placed = [trace.input(str(i), a) if isinstance(a, Tensor) else a for i, a in enumerate(args)]
            named = {k: trace.input(k, v) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
            return model._call_impl(*placed, **named), trace


def _look(model: nn.Module, given: tuple[list[Any], dict[str, Any], int]) -> list[AblatedHeads | None]:
    """The heads of each attention of a model as it is; ``None`` where they cannot be told from windows."""
    outputs, trace = _forward(model, given, lambda _, call: call.run())
    if trace.pieces:
        raise ModelError("The model's attention is in pieces (a sliding window): its heads cannot be switched off.")
    ends = (info_of(t).node for t in tensors_in(outputs))
    nodes = nodes_behind(node for node in ends if node is not None)
    each = [(record.own(), head_axes(record, nodes)) for record in trace.attentions]
    return [
        None if heads is None else AblatedHeads(math.prod(atom.size for atom in heads), [atom in heads for atom in own])
        for own, heads in each
    ]


def _without(call: Call, heads: AblatedHeads, dead: list[int]) -> Any:
    """An attention some of whose heads write nothing."""
    record = AttentionRecord.fused(call) if call.kind == "attention" else AttentionRecord.of(call)
    assert record is not None
    alive = torch.ones(heads.number, dtype=torch.bool)
    alive[dead] = False
    mask = _over(alive, record, heads)
    if call.kind == "attention":  # [..., heads, queries, features]
        out: Tensor = call.run()
        return out * mask.to(out)
    probabilities = record.probabilities
    return call.run(*(t * mask.to(t) if t is probabilities else t for t in call.traced))


def _over(alive: Tensor, record: AttentionRecord, heads: AblatedHeads) -> Tensor:
    """``[heads]`` values over the dimensions of a map, however batch, windows and heads are split or merged there."""
    of_heads = iter(heads.axes)
    dims = [() if i in (record.query, record.key) else dim for i, dim in enumerate(record.axes)]
    atoms = [atom for dim in dims for atom in dim]
    own = alive.reshape([atom.size if atom is not record.batch and next(of_heads) else 1 for atom in atoms])
    return own.expand([atom.size for atom in atoms]).reshape([math.prod(atom.size for atom in dim) for dim in dims])


def _pairs(heads: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    try:
        return [(operator.index(layer), operator.index(head)) for layer, head in heads]
    except (TypeError, ValueError):
        raise InputError(f"`heads` takes pairs (layer, head), such as [(0, 3), (1, 2)], not {heads!r}.") from None


def _numbers(layers: Iterable[int]) -> list[int]:
    try:
        return [operator.index(layer) for layer in layers]
    except TypeError:
        raise InputError(f"`layers` takes a list of numbers, such as [0, 1], not {layers!r}.") from None


def _check(heads: list[tuple[int, int]], layers: set[int], known: list[AblatedHeads | None]) -> None:
    for layer in [*sorted(layers), *(layer for layer, _ in heads)]:
        if not known:
            raise ModelError("The model has no attention: it has no heads that could be switched off.")
        if not 0 <= layer < len(known):
            raise InputError(
                f"There is no layer {layer}: the model has {len(known)} attentions, 0 to {len(known) - 1}."
            )
    for layer, head in heads:
        own = known[layer]
        if own is None:
            raise ModelError(
                f"The heads of layer {layer} cannot be told from the windows of tokens that it looks at. Switch it off "
                "as a whole with `layers`."
            )
        if not 0 <= head < own.number:
            raise InputError(f"Layer {layer} has no head {head}: its heads are 0 to {own.number - 1}.")
