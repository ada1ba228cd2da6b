"""Substitutions: operations with the same value and the derivative that a method asks for.

Relevance is then gradient x input, one ordinary backward. Notation as in the papers: ``sg()`` is stop-gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..call import Call
from ..node import node_of


def conserves(rule: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """Mark a rule under which all relevance of the output reaches the inputs, but for a bias."""
    rule.conserves = True  # type: ignore[attr-defined]  # read by the ledger
    return rule


@conserves
def detach_heads(call: Call) -> Any:
    """Attention heads (Ali et al. 2022, sec. 3.1): ``y_j = sum_i x_i sg(p_ij)``. Only the values get relevance.

    A fused kernel stays fused: with ``sg(q)`` and ``sg(k)`` it *is* this rule, in memory linear in the sequence.
    """
    if call.kind == "attention":
        value = call.argument(2, "value")
        call.blocked |= {id(t) for t in call.tensors[:2] if t is not value}
        names = ("query", "key")
        args = [t.detach() if i < 2 else t for i, t in enumerate(call.args)]
        kwargs = {k: v.detach() if k in names else v for k, v in call.kwargs.items()}
        return call.func(*args, **kwargs)
    softmax = {id(t) for t, n in zip(call.tensors, call.nodes, strict=True) if n is not None and n.softmax is not None}
    return call.run(*(t.detach() if id(t) in softmax else t for t in call.traced))


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
        ctx.dims, ctx.center = dims, center and call.name == "layer_norm"
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


@conserves
def detach_deviation(call: Call) -> Any:
    """LayerNorm (Ali et al. 2022, sec. 3.2): ``y = (x - E[x]) / sg(sqrt(eps + Var[x]))``, the mean attached.

    Also RMSNorm, and a normalisation written out: where a tensor is multiplied or divided by a statistic of
    itself, the statistic is a constant.
    """
    if call.kind == "norm":
        return _ConstantDeviation.apply(call, True, call.traced[0])
    return call.run(*_without_statistics(call))


def detach_mean_and_deviation(call: Call) -> Any:
    """As :func:`detach_deviation`, the mean a constant too (the default of Ali et al.'s class; not conservative)."""
    if call.kind == "norm":
        return _ConstantDeviation.apply(call, False, call.traced[0])
    return call.run(*_without_statistics(call))


def _without_statistics(call: Call) -> list[Tensor]:
    """The operands with the normalising one detached: the statistic, or else the denominator."""
    last = call.tensors[-1]
    marked = {id(t) for t in call.traced if node_of(t).statistic and t.shape != _widest(call.traced)}
    marked = marked or {id(last)}
    return [t.detach() if id(t) in marked else t for t in call.traced]


def _widest(tensors: list[Tensor]) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(*(t.shape for t in tensors)))


class _Ratio(torch.autograd.Function):
    """``y = f(x)`` with derivative ``f(x) / x`` (0 where x is 0)."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor) -> Tensor:
        y: Tensor = call.run(x)
        ctx.save_for_backward(torch.where(x == 0, torch.zeros_like(y), y / x))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (ratio,) = ctx.saved_tensors
        return None, grads[0] * ratio


@conserves
def activation_ratio(call: Call) -> Any:
    """``f(x) = x sg(f(x) / x)``: GELU, SiLU and their like pass on all the relevance they get.

    The identity rule of LRP in gradient form (Achtibat et al. 2024, eq. 9; Mehri et al. 2025, sec. 3.4).
    """
    if len(call.traced) != 1 or call.traced[0].shape != getattr(call.args[0], "shape", None):
        return call.run()
    return _Ratio.apply(call, call.traced[0])


@conserves
def detach_own_gate(call: Call) -> Any:
    """``x g(x)`` written out (QuickGELU, GELU-tanh): ``x sg(g(x))``, the same as :func:`activation_ratio`."""
    if len(call.traced) == 1:  # x * x
        return call.traced[0] * call.traced[0].detach()
    a, b = call.traced
    keep = a if node_of(a).linear else b
    return call.run(*(t if t is keep else t.detach() for t in call.traced))


@conserves
def detach_gate(call: Call) -> Any:
    """A gated unit ``act(gate) * up``: ``sg(act(gate)) * up``; two ungated factors share equally."""
    if len(call.traced) < 2:
        return call.run()
    a, b = call.traced
    na, nb = node_of(a), node_of(b)
    if na.activated == nb.activated:
        halves = 0.5 * (call.run(a.detach(), b) + call.run(a, b.detach()))
        call.blocked.clear()  # each half cuts one factor, together they cut none
        return halves
    gate = a if na.activated else b
    return call.run(*(t.detach() if t is gate else t for t in call.traced))
