"""Relevance through fused attention: the rules of each of its steps, by way of its map, which is made again.

No map is kept for that: when relevance passes, it is made from queries and keys, a few heads at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...tracing.attention_record import operands, shown_by
from ...tracing.fused_attention import FusedMap, masked, softened
from ...tracing.op_call import Call, Rule
from ...tracing.reductions import precise
from ..relevance_function import BackwardOp
from .relevance import PartialSum, RelevanceRules


def fused(rules: RelevanceRules) -> Rule:
    """``softmax(q k^T) v`` in one kernel, by the rules of its steps (Chefer et al. 2021a, eq. 1 and 7).

    Half to each factor at both products, :meth:`RelevanceRules.softmax` between them, a mask of numbers by
    :meth:`RelevanceRules.add_constant`. Where not all operands depend on the input, or some are the same, other rules
    may apply: the attention is then decomposed into primitive operations.
    """

    def run(call: Call) -> Tensor:
        given = [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]
        shown = call.shown = shown_by(call, operands(call))
        order = [next(i for i, t in enumerate(given) if t is traced) for traced in call.traced]

        def attention(op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
            found = _through(rules, shown, op, R)
            return tuple(_gathered(found[i], x.shape).to(x.dtype) for i, x in zip(order, op.inputs, strict=True))

        return rules(attention)(call)

    def takes(call: Call) -> bool:
        given = {id(call.argument(i, name)) for i, name in enumerate(("query", "key", "value"))}
        return len(given) == 3 and given == {id(t) for t in call.traced}

    run.takes = takes  # type: ignore[attr-defined]  # read by the trace
    run.__name__ = "attention"
    return run


def _through(rules: RelevanceRules, shown: FusedMap, op: BackwardOp, R: Tensor) -> list[Tensor]:
    """Relevance of queries, keys and values."""
    s = rules.ratio(precise(R), precise(op.output))
    nothing = rules.adds_nothing(op.output) and not shown.numbers
    query, key, value = (s.new_empty(t.shape) for t in (shown.query, shown.key, shown.value))
    for piece in shown.pieces(whole=nothing or shown.numbers):  # what is shared out is of whole samples
        part, arrived = shown.part(piece), s[piece]
        product = part.query @ part.key.mT
        scores = product * part.scale
        hidden = masked(scores, part.mask, part.causal)
        A = softened(hidden, part.mask)
        relevance = (arrived @ part.value.mT).mul_(A).div_(2)
        value[piece] = (A.mT @ arrived).mul_(part.value).div_(2)
        if shown.witness is not None:
            shown.witness(piece, relevance)
        if nothing:
            (relevance,) = rules.add_nothing(PartialSum([hidden], hidden, op.sums), relevance)
        if shown.numbers and shown.mask is not None:
            bias = shown.mask.dim() > 0 and shown.mask.numel() == shown.mask.shape[-1]
            (relevance,) = rules.add_constant(PartialSum([scores], hidden, op.sums, bias), relevance)
        t = rules.ratio(relevance, product)
        query[piece] = (t @ part.key).mul_(part.query).div_(2)
        key[piece] = (t.mT @ part.query).mul_(part.key).div_(2)
    return [query, key, value]


def _gathered(relevance: Tensor, shape: torch.Size) -> Tensor:
    """What came back to keys or values that several heads of queries share, added up."""
    if relevance.shape == shape:
        return relevance
    return torch.sum(relevance.unflatten(-3, (shape[-3], -1)), -3).sum_to_size(shape)
