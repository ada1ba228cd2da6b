"""Relevance through fused attention: the rules of each of its steps, by way of its attention map.

The map is not stored: when relevance passes, it is recomputed from queries and keys, in chunks of heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...tracing.attention_record import operands, shown_by
from ...tracing.fused_attention import FusedMap, masked, softened
from ...tracing.op_call import Call, RuleResult
from ...tracing.reductions import precise
from ..relevance_function import BackwardOp
from .relevance import PartialSum, RelevanceRules


@dataclass(frozen=True)
class FusedAttentionRule:
    """The rule of ``softmax(q k^T) v`` in one kernel, by the rules of its steps (Chefer et al. 2021a, eq. 1 and 7).

    Half to each factor at both products, :meth:`RelevanceRules.softmax` between them, an additive mask by
    :meth:`RelevanceRules.add_constant`. Where not all operands depend on the input, or some are the same, other rules
    may apply: the attention is then decomposed into primitive operations.

    Attributes:
        rules: the rules of the steps.
    """

    rules: RelevanceRules
    name: str = "attention"
    conserves: bool = False

    def apply(self, call: Call) -> RuleResult:
        """Run the kernel, with the rules in its backward pass."""
        given = _queries_keys_values(call)
        shown = shown_by(call, operands(call))
        order = [next(i for i, t in enumerate(given) if t is traced) for traced in call.traced]

        def attention(op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
            found = _propagate(self.rules, shown, op, R)
            return tuple(
                _sum_shared_heads(found[i], x.shape).to(x.dtype) for i, x in zip(order, op.inputs, strict=True)
            )

        return replace(self.rules(attention).apply(call), attention_map=shown)

    def accepts(self, call: Call) -> bool:
        """Return whether the rule applies: queries, keys and values are distinct and all depend on the input."""
        given = {id(t) for t in _queries_keys_values(call)}
        return len(given) == 3 and given == {id(t) for t in call.traced}


def _queries_keys_values(call: Call) -> list[Tensor]:
    return [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]


def _propagate(rules: RelevanceRules, shown: FusedMap, op: BackwardOp, R: Tensor) -> list[Tensor]:
    """Return the relevance of queries, keys and values."""
    s = rules.ratio(precise(R), precise(op.output))
    zero_mask = rules.adds_zero_mask(op.output) and not shown.numbers
    query, key, value = (s.new_empty(t.shape) for t in (shown.query, shown.key, shown.value))
    for chunk in shown.pieces(whole=zero_mask or shown.numbers):  # eq. 7 normalises over whole samples
        part = shown.part(chunk)
        arrived = s[chunk]
        product = part.query @ part.key.mT
        scores = product * part.scale
        masked_scores = masked(scores, part.mask, part.causal)
        A = softened(masked_scores, part.mask)
        relevance = (arrived @ part.value.mT).mul_(A).div_(2)
        value[chunk] = (A.mT @ arrived).mul_(part.value).div_(2)
        if shown.witness is not None:
            shown.witness(chunk, relevance)
        if zero_mask:
            (relevance,) = rules.add_zero_mask(PartialSum([masked_scores], masked_scores, op.sums), relevance)
        if shown.numbers and shown.mask is not None:
            bias = shown.mask.dim() > 0 and shown.mask.numel() == shown.mask.shape[-1]
            (relevance,) = rules.add_constant(PartialSum([scores], masked_scores, op.sums, bias), relevance)
        t = rules.ratio(relevance, product)
        query[chunk] = (t @ part.key).mul_(part.query).div_(2)
        key[chunk] = (t.mT @ part.query).mul_(part.key).div_(2)
    return [query, key, value]


def _sum_shared_heads(relevance: Tensor, shape: torch.Size) -> Tensor:
    """Return the relevance of an operand, summed over the heads (grouped queries) or samples that share it."""
    if relevance.shape == shape:
        return relevance
    if len(shape) > 2:
        relevance = torch.sum(relevance.unflatten(-3, (shape[-3], -1)), -3)
    return relevance.sum_to_size(shape)
