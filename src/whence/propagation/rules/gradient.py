"""Substitutions: operations with the same value and the derivative that a method prescribes.

Relevance is then gradient x input, one ordinary backward pass. Notation as in the papers: ``sg()`` is stop-gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...tracing.attention_record import operands, shown_by
from ...tracing.fused_attention import FusedMap
from ...tracing.op_call import Call, OutputNode, Rule, RuleResult
from ...tracing.reductions import precise
from ...tracing.sparse_rows import alias
from ...tracing.tensor_info import node_of
from ..relevance_function import LinearParts, linear_parts
from ..rule import FunctionRule, conserving, rule
from .linear import pull


@conserving
def detach_heads(call: Call) -> RuleResult:
    """Apply the attention-head rule ``y_j = sum_i x_i sg(p_ij)`` (Ali et al. 2022, sec. 3.1): values get all relevance.

    A fused kernel stays fused: with ``sg(q)`` and ``sg(k)`` it *is* this rule, in memory linear in the sequence. The
    mask is detached too, ``sg(mask)``: an additive mask may depend on the input.
    """
    if call.kind == "attention":
        value = call.argument(2, "value")
        args = [t.detach() if isinstance(t, Tensor) and i != 2 else t for i, t in enumerate(call.args)]
        kwargs = {k: t.detach() if isinstance(t, Tensor) and k != "value" else t for k, t in call.kwargs.items()}
        return RuleResult(call.func(*args, **kwargs), frozenset(id(t) for t in call.traced if t is not value))
    probabilities = call.probabilities
    return call.run_with(*(t.detach() if t is probabilities else t for t in call.traced))


@rule
def expose_heads(call: Call) -> RuleResult:
    """Apply :func:`detach_heads` to unfused attention: the probabilities are constants whose gradient can be read."""
    operands = [t.detach().requires_grad_() if t is call.probabilities else t for t in call.traced]
    leaf = next((new for old, new in zip(call.traced, operands, strict=True) if new is not old), None)
    return RuleResult(call.run(*operands), frozenset({id(call.probabilities)}), attention_map=leaf)


@rule
def halve_heads(call: Call) -> RuleResult:
    """Apply :func:`detach_heads` with half of the values' relevance: the half of the probabilities is dropped.

    As in the published vision code of PA-LRP (Bakish et al. 2025).
    """
    found = detach_heads.apply(call)
    return replace(found, output=_ScaleGradient.apply((0.5,), found.output)[0])


class _ConstantDeviation(torch.autograd.Function):
    """A normalisation whose deviation is a constant: ``y = w (x - mean) / sg(std) + b``."""

    @staticmethod
    def forward(ctx: Any, call: Call, center: bool, x: Tensor) -> Tensor:
        shape, weight, bias, eps = _norm_arguments(call)
        dims = tuple(range(-len(shape), 0))
        if call.name == "layer_norm":
            output, _, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        else:
            output = call.run(x)
            eps = torch.finfo(x.dtype).eps if eps is None else eps
            rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
        ctx.save_for_backward(rstd.to(x.dtype), weight)
        ctx.dims = dims
        ctx.center = center and call.name == "layer_norm"
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rstd, weight = ctx.saved_tensors
        g = grads[0] if weight is None else grads[0] * weight
        if ctx.center:
            g = g - g.mean(ctx.dims, keepdim=True)
        return None, None, g * rstd


def _norm_arguments(call: Call) -> tuple[list[int], Tensor | None, Tensor | None, Any]:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    if call.name == "rms_norm":
        names = ("input", "normalized_shape", "weight", "eps", "bias")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    eps = given.get("eps", 1e-5 if call.name == "layer_norm" else None)
    return list(given["normalized_shape"]), given.get("weight"), given.get("bias"), eps


@conserving
def detach_deviation(call: Call) -> Any:
    """Apply the LayerNorm rule ``y = (x - E[x]) / sg(sqrt(eps + Var[x]))``, mean attached (Ali et al. 2022, sec. 3.2).

    Also RMSNorm, and a normalisation in primitive operations: where a tensor is multiplied or divided by a statistic of
    itself, the statistic is a constant.
    """
    if call.kind == "norm":
        return _ConstantDeviation.apply(call, True, call.traced[0])
    return call.run_with(*_without_statistics(call))


@rule
def detach_mean_and_deviation(call: Call) -> Any:
    """Apply :func:`detach_deviation` with a constant mean (the default of Ali et al.'s class; not conservative)."""
    if call.kind == "norm":
        return _ConstantDeviation.apply(call, False, call.traced[0])
    return call.run_with(*_without_statistics(call))


def _without_statistics(call: Call) -> list[Tensor]:
    """Return the operands with the normalising one detached."""
    return [t.detach() if t is call.statistic else t for t in call.traced]


@rule
def detach_mean(call: Call) -> RuleResult:
    """Apply ``x - sg(E[x])``, where a norm is computed by primitive operations (see the rule above)."""
    return call.run_with(*_without_statistics(call))


class _Ratio(torch.autograd.Function):
    """``y = f(x)`` with derivative ``f(x) / (x + eps)`` (0 where that is not finite)."""

    @staticmethod
    def forward(ctx: Any, call: Call, eps: float, x: Tensor) -> Tensor:
        y: Tensor = call.run(x)
        ratio = torch.add(x, eps)
        torch.div(y, ratio, out=ratio).nan_to_num_(0.0, 0.0, 0.0)
        ctx.save_for_backward(ratio)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (ratio,) = ctx.saved_tensors
        return None, None, grads[0] * ratio


@conserving
def activation_ratio(call: Call) -> Any:
    """Apply ``f(x) = x sg(f(x) / x)``: GELU, SiLU and similar activations pass on all relevance.

    The identity rule of LRP in gradient form (Achtibat et al. 2024, eq. 9; Mehri et al. 2025, sec. 3.4).
    """
    return _ratio(call, 0.0)


@conserving
def stabilised_ratio(call: Call) -> Any:
    """Apply :func:`activation_ratio` with the stabiliser of Achtibat et al.'s code: ``f(x) / (x + 1e-10)``."""
    return _ratio(call, 1e-10)


def _ratio(call: Call, eps: float) -> Any:
    if len(call.traced) != 1 or call.traced[0].shape != getattr(call.args[0], "shape", None):
        return call.run()
    return _Ratio.apply(call, eps, call.traced[0])


@conserving
def detach_gate(call: Call) -> Any:
    """Detach the gate of a gated unit ``act(gate) * up``: ``sg(act(gate)) * up``; two ungated factors share equally."""
    a, b = call.traced
    na, nb = node_of(a), node_of(b)
    if na.activated == nb.activated:
        return 0.5 * (call.run(a.detach(), b) + call.run(a, b.detach()))  # together they block neither factor
    gate = a if na.activated else b
    return call.run_with(*(t.detach() if t is gate else t for t in call.traced))


class _ScaleGradient(torch.autograd.Function):
    """The identity of several tensors, with the gradient of each times a constant."""

    @staticmethod
    def forward(ctx: Any, factors: tuple[float, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.factors = factors
        return tuple([alias(x) for x in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, *[gradient * factor for gradient, factor in zip(grads, ctx.factors, strict=True)]


@conserving
def share_product(call: Call) -> Any:
    """Give each factor of a product that depends on the input the same share (Achtibat et al. 2024, eq. 15).

    In gradient form the gradient of the product is halved. In unfused attention, values get a half of the plain
    gradient and queries and keys a quarter.
    """
    factors = sum(t.requires_grad for t in call.tensors)
    return call.run() if factors < 2 else _ScaleGradient.apply((1 / factors,), call.run())[0]


@rule
def share_attention(call: Call) -> Any:
    """Apply :func:`share_product` to both products of fused attention; the softmax keeps its derivative."""
    names = ("query", "key", "value", "attn_mask")
    operands = [call.argument(i, name) for i, name in enumerate(names)]
    live = [isinstance(t, Tensor) and t.requires_grad for t in operands]
    outer = 1 / max(1, live[2] + any((live[0], live[1], live[3])))  # of probabilities and values
    inner = 1 / max(1, live[0] + live[1])  # of queries and keys, which get that share of what the probabilities get
    lifted = [i for i in (2, 3) if live[i] and inner != 1]  # values and mask do not: the output's gradient is scaled
    if lifted:
        scaled = _ScaleGradient.apply((1 / inner,) * len(lifted), *(operands[i] for i in lifted))
        operands = [scaled[lifted.index(i)] if i in lifted else t for i, t in enumerate(operands)]
    others = {k: v for k, v in call.kwargs.items() if k not in names}
    output = call.func(*operands, *call.args[4:], **others)
    return output if outer * inner == 1 else _ScaleGradient.apply((outer * inner,), output)[0]


@rule
def show_map(call: Call) -> RuleResult:
    """Keep the kernel of fused attention; its backward pass recomputes the attention map and passes it to a visitor."""
    given = operands(call)
    shown = shown_by(call, given)
    made = _AttentionWithMap.apply(shown, call.func, *given)
    return RuleResult(made, saved=tuple(call.traced), attention_map=shown)


class _AttentionWithMap(torch.autograd.Function):
    """``softmax(q k^T) v`` by the model's kernel; its backward pass visits map and gradient, in chunks of heads."""

    @staticmethod
    def forward(
        ctx: Any, shown: FusedMap, func: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, m: Any
    ) -> Tensor:
        ctx.shown = shown
        return func(q, k, v, m, is_causal=shown.causal, scale=shown.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (G,) = grads
        shown = ctx.shown
        query, key, value = (G.new_empty(t.shape) for t in (shown.query, shown.key, shown.value))
        to_mask = None
        for chunk in shown.pieces(whole=ctx.needs_input_grad[5]):
            part = shown.part(chunk)
            arrived = G[chunk]
            A = part.map()
            gradient = part.gradient(arrived)
            if shown.visit is not None:
                shown.visit(chunk, A, gradient)
            value[chunk] = A.mT @ precise(arrived)
            scores = gradient.sub_((A * gradient).sum(-1, keepdim=True)).mul_(A)  # the derivative of the softmax
            query[chunk] = (scores @ part.key) * part.scale
            key[chunk] = (scores.mT @ part.query) * part.scale
            if ctx.needs_input_grad[5]:
                to_mask = scores.to(G.dtype).sum_to_size(shown.mask.shape)
        return None, None, query, key, value, to_mask


LayerRule = Callable[..., Tensor]  # (apply, x, weight, R, bias) -> relevance of x, see rules.linear


def substitute(layer_rule: LayerRule) -> Rule:
    """Turn a rule for a linear layer's relevance into a substitution: ``dy/dx`` becomes ``R_x / x``.

    Inside an attention (projections of queries, keys, values and the output projection) linear layers keep their
    derivative.
    """

    def run(call: Call) -> RuleResult:
        parts = linear_parts(call)
        if parts[0] is None:
            return RuleResult(call.run())
        (x,) = call.traced
        placed = OutputNode()
        output = _LinearWithRule.apply(call, parts, layer_rule, placed, x)
        return RuleResult(output, saved=(x, output), on_output=placed.set)

    return FunctionRule(getattr(layer_rule, "__name__", "layer"), run)


class _LinearWithRule(torch.autograd.Function):
    """A linear layer whose backward pass turns the gradient into relevance, applies a rule, and turns it back."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, parts: LinearParts, layer_rule: LayerRule, placed: OutputNode, x: Tensor
    ) -> Tensor:
        output: Tensor = call.run(x)
        ctx.save_for_backward(x, output)
        ctx.parts = parts
        ctx.rule = layer_rule
        ctx.placed = placed
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (gradient,) = grads
        x, output = ctx.saved_tensors
        weight, bias, apply = ctx.parts
        if ctx.placed.node.projection:
            return None, None, None, None, pull(apply, x, weight)[1](gradient)
        relevance = ctx.rule(apply, x, weight, gradient * output, bias)
        return None, None, None, None, torch.where(x == 0, torch.zeros_like(x), relevance / (x + x.sign() * 1e-10))


def residual_gamma(gamma: float) -> Rule:
    """Return the gamma rule for residual additions ``y = a + b`` (Berend et al. 2026, eq. 3 and 4).

    ``R_a = w(a) a / (w(a) a + w(b) b) R_y`` with ``w(z) = 1 + gamma [z y > 0]``: a summand against the sum's sign
    counts for less. In gradient form ``y w(a) / (w(a) a + w(b) b)``, which is 1 wherever both have the same sign.
    Other sums keep their derivative.
    """

    def run(call: Call) -> RuleResult:
        if len(call.traced) != 2 or call.name != "add" or "alpha" in call.kwargs:
            return RuleResult(call.run())
        placed = OutputNode()
        operands = call.tensors[0], call.tensors[1]
        return RuleResult(_ResidualGamma.apply(gamma, placed, *operands), saved=operands, on_output=placed.set)

    return FunctionRule("residual_gamma", run, conserves=True)


class _ResidualGamma(torch.autograd.Function):
    """A sum whose backward pass is the gamma rule, if the sum turns out to be a residual addition."""

    @staticmethod
    def forward(ctx: Any, gamma: float, placed: OutputNode, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.gamma = gamma
        ctx.placed = placed
        return a + b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (gradient,) = grads
        a, b = ctx.saved_tensors
        if not ctx.placed.node.residual:
            return None, None, gradient.sum_to_size(a.shape), gradient.sum_to_size(b.shape)
        a, b, y = precise(a), precise(b), precise(a + b)
        wa, wb = (torch.where(z * y > 0, 1 + ctx.gamma, 1.0) for z in (a, b))
        scale = torch.where(y == 0, 1.0, y / torch.addcmul(wa * a, wb, b))  # where y is 0, both weights are 1
        scaled = gradient * scale
        return None, None, (scaled * wa).to(gradient.dtype), (scaled * wb).to(gradient.dtype)
