"""Rules that propagate relevance from an operation's output to its inputs (LRP, deep Taylor decomposition).

Each takes the operation (:class:`..relevance_function.BackwardOp`) and the relevance ``R`` of its output, and
returns the relevance of each traced input. ``eps`` is the stabiliser of the published code: every denominator ``b``
becomes ``b + eps`` (not sign-aware), and 0 / 0 is 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...tracing.node import Node
from ...tracing.op_call import Call, Rule, RuleResult
from ...tracing.sparse_rows import among
from ...tracing.tensor_info import node_of
from ..relevance_function import BackwardOp, Bypass, Phase, Propagate, RelevanceRule
from ..rule import FunctionRule
from ..rulebook import Rulebook
from .linear import EPS, LinearLayer, absolute, divide_, epsilon, safe_divide, z_plus


def normalise_shares(
    contributions: list[Tensor], R: Tensor, sums: Callable[[Tensor], Tensor], eps: float = EPS
) -> list[Tensor]:
    """Normalise the two summands of a residual addition (Chefer et al. 2021a, eq. 7), per sample.

    Each gets a share of the total relevance in proportion to the absolute value of its own sum, so that summands of
    opposite sign do not explode while their total is kept. The identity where both sums have the sign of the total.

    Args:
        contributions: relevance of the summands before normalisation.
        R: relevance of the sum.
        sums: sums a tensor over all but the batch.
    """
    factors = share_factors([sums(c) for c in contributions], sums(R), eps)
    return [c.mul_(factor) for c, factor in zip(contributions, factors, strict=True)]


def share_factors(totals: list[Tensor], total: Tensor, eps: float = EPS) -> list[Tensor]:
    """Return the factor of each summand in :func:`normalise_shares`, from their sums and that of the relevance."""
    each = torch.stack(totals)
    sizes = each.abs()
    return list(safe_divide(safe_divide(sizes, sizes.sum(0).expand_as(sizes), eps) * total, each, eps).unbind())


@dataclass
class PartialSum:
    """A sum inside a larger operation, with the attributes of a :class:`BackwardOp` that the rules of sums read."""

    inputs: list[Tensor]
    output: Tensor
    sums: Callable[[Tensor], Tensor]
    is_bias: bool = False


class RelevanceRules:
    """The rules as a trace uses them: bound to a stabiliser and to the phase of the backward pass.

    Args:
        phase: what the current backward pass carries; all rules of a rulebook share it.
        eps: the stabiliser.
    """

    def __init__(self, phase: Phase | None = None, eps: float = EPS) -> None:
        self.phase = Phase() if phase is None else phase
        self.eps = eps
        self._scratch: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}

    def __call__(self, rule: RelevanceRule, name: str | None = None) -> FunctionRule:
        """Return the rule that runs an operation with a rule of relevance in its backward pass.

        Args:
            rule: the relevance of each input, from the operation and the relevance of its output.
            name: for the coverage; by default that of the function.
        """
        return FunctionRule(name or rule.__name__, functools.partial(self._propagate, rule))

    def _propagate(self, rule: RelevanceRule, call: Call) -> RuleResult:
        """Run an operation; an unknown one with several or complex outputs keeps its plain gradient."""
        if call.kind == "unknown" and (not isinstance(made := call.run(), Tensor) or made.is_complex()):
            return RuleResult(made, plain=True)
        op = BackwardOp(call, self.phase.sparse_rows)
        out: Tensor = Propagate.apply(op, rule, self.phase, *call.traced)
        return RuleResult(out, saved=(*call.traced, out), on_output=op.place)

    def layer(self, rule: Callable[..., Tensor], absorb: bool = True, **options: Any) -> FunctionRule:
        """Return the rule that runs a linear layer or a convolution with a rule of :mod:`.linear`.

        A weighted sum whose weight is not available follows :meth:`deep_taylor`.

        Args:
            rule: ``rule(apply, x, w, R, bias, **options)``, the relevance of ``x``.
            absorb: whether biases absorb their share; if not, they are ignored.
            options: keyword arguments of the rule.

        Example:
            >>> rules.layer(gamma, gamma=0.1)
        """

        def follow(op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
            if op.apply is None or op.weight is None:
                return self.deep_taylor(op, R)
            bias = op.bias if absorb else None
            return (_apply_layer_rule(op, R, lambda layer, R: rule(layer, layer.x, layer.w, R, bias, **options)),)

        return self(follow, getattr(rule, "__name__", "layer"))

    @staticmethod
    def first(first: Rule, others: Rule) -> Rule:
        """Return a rule that treats layers on the raw input (at most moved or cut into patches) apart from all others.

        Example:
            >>> rules.first(rules.layer(z_box), rules.layer(gamma))
        """

        def run(call: Call) -> RuleResult:
            node = node_of(call.traced[0])
            while node.kind == "structural" and node.parents:
                node = node.parents[0]
            return (first if node.kind == "input" else others).apply(call)

        return FunctionRule(f"{first.name} or {others.name}", run)

    def composite(self, changes: Mapping[str, Rule] | None = None) -> Rulebook:
        """Return a complete rulebook of plain LRP, in which ``changes`` replace the rules of some kinds of operation.

        Weighted sums follow the epsilon rule, and so does every other sum (:meth:`deep_taylor`); the factors of a
        product get half each; norms, activations and softmax pass relevance on unchanged.

        Args:
            changes: kind of operation -> rule, created by :meth:`layer` or by calling this object with a rule.

        Example:
            >>> rules = RelevanceRules()
            >>> rules.composite({"linear": rules.layer(gamma), "convolution": rules.layer(flat)})
        """
        sums = ("add", "shift-by-constant", "shift", "reduce", "function", "unknown")
        unchanged = ("norm", "center", "normalise", "ratio", "gated", "activation", "scale", "softmax")
        book: dict[str, Rule] = {
            **dict.fromkeys(("linear", "convolution"), self.layer(epsilon)),
            **dict.fromkeys(sums, self(self.deep_taylor)),
            **dict.fromkeys(("matmul", "mix", "gate"), self(self.product)),
            **dict.fromkeys(unchanged, self.identity),
        }
        return Rulebook({**book, **(changes or {})}, maps=True, phase=self.phase)

    @property
    def identity(self) -> Rule:
        """Pass all relevance to the input: norms, activations, scaling by a constant.

        Of several inputs, the one that is normalised or gated gets it; its statistic gets none.
        """
        return FunctionRule("identity", self._bypass)

    def _bypass(self, call: Call) -> RuleResult:
        main = max((t for t in call.traced if t is not call.statistic), key=Tensor.numel)
        out: Tensor = Bypass.apply(self.phase, main, call.run())
        return RuleResult(out, frozenset(id(t) for t in call.traced if t is not main), saved=(out,))

    @property
    def softmax(self) -> Rule:
        """Pass relevance unchanged, but for the stabiliser of an all-zero attention mask that the model left out.

        (The published BERT code always adds the mask, with the stabiliser of every addition. It is below the resolution
        of any type but float64.)
        """
        return FunctionRule("softmax", self._softmax)

    def _softmax(self, call: Call) -> RuleResult:
        scores = call.traced[0]
        if not self.adds_zero_mask(scores) or node_of(scores).kind == "shift-by-constant":
            return self._bypass(call)
        return self._propagate(self.add_zero_mask, call)

    def adds_zero_mask(self, scores: Tensor) -> bool:
        """Return whether the published code would add an all-zero mask, and its stabiliser is above the resolution."""
        return self.phase.masked and scores.dtype == torch.float64

    def add_zero_mask(self, op: BackwardOp | PartialSum, R: Tensor) -> tuple[Tensor, ...]:
        """Apply :meth:`add_constant` with a constant of zeros."""
        x = op.inputs[0].detach()
        part = torch.where(R == 0, R, x * safe_divide(R, x, self.eps))
        own = op.sums(part)
        return (part.mul_(share_factors([own, torch.zeros_like(own)], op.sums(R), self.eps)[0]),)

    def deep_taylor(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Apply ``R_j = sum_i x_j dy_i/dx_j R_i / y_i`` (Chefer et al. 2021a, eq. 1) where there is no other rule."""
        grads = op.vjp(self.ratio(R, op.output))
        return tuple(x.detach() * g for x, g in zip(op.inputs, grads, strict=True))

    def ratio(self, R: Tensor, y: Tensor) -> Tensor:
        """Return ``R / (y + eps)``; 0 where ``y`` is 0."""
        return divide_(R, torch.add(y, self.eps)).masked_fill_(y == 0, 0.0)

    def linear(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Apply :func:`z_plus`, reusing the product of the forward pass."""
        if op.apply is None or op.weight is None:
            return self.deep_taylor(op, R)
        w_abs = absolute(op.weight, self._absolute)
        relevance = _apply_layer_rule(
            op, R, lambda layer, R: z_plus(layer, layer.x, layer.w, R, eps=self.eps, w_abs=w_abs)
        )
        return (self.clone_shared_input(op, relevance),)

    def clone_shared_input(self, op: BackwardOp, relevance: Tensor) -> Tensor:
        """Apply :meth:`clone` where several linear layers and another operation read the input (queries, keys, values).

        Elsewhere relevance stays as it is.
        """
        linear, other = self.phase.readers.get(op.nodes[0].seq, (0, 0))
        return self.clone(op.inputs[0].detach(), relevance) if linear > 1 and other else relevance

    def _absolute(self, w: Tensor) -> Tensor:
        """Return ``|w|``, in a buffer that the next weight of this shape overwrites."""
        key = (w.shape, w.dtype, w.device)
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(w)
        return torch.abs(w, out=self._scratch[key])

    def product(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate through a matrix product: eq. 1, half to each factor (eq. 7; both factors sum to the same)."""
        return tuple(r.div_(len(op.inputs)) for r in self.deep_taylor(op, R))

    def add(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate through a residual addition: eq. 1, normalised by :func:`normalise_shares`."""
        contributions = list(self.deep_taylor(op, R))
        if len(contributions) == 2:
            whole = [c.reshape((1,) * (R.dim() - c.dim()) + c.shape) for c in contributions]  # one may be broadcast
            shared = normalise_shares(whole, R, op.sums, self.eps)
            return tuple(s.reshape(c.shape) for s, c in zip(shared, contributions, strict=True))
        return tuple(contributions)

    def add_constant(self, op: BackwardOp | PartialSum, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate through the addition of a mask or a position: as :meth:`add`; the constant absorbs its share.

        A bias absorbs none.
        """
        x = op.inputs[0].detach()
        constant = op.output - x
        if op.is_bias:
            return (R.sum_to_size(x.shape),)
        s = safe_divide(R, op.output, self.eps)
        parts = [x * s, torch.where(s == 0, torch.zeros_like(s), constant * s)]
        return (normalise_shares(parts, R, op.sums, self.eps)[0].sum_to_size(x.shape),)

    def select(self, op: BackwardOp, R: Tensor) -> tuple[Tensor, ...]:
        """Propagate through the selection of a token: its relevance goes to the selected position, 0 elsewhere.

        A tensor that is taken apart, all entries of which are read, is not selected from.
        """
        whole = sum(self.phase.readers.get(op.nodes[0].seq, (0, 0))) > 0.999
        return op.vjp(R if whole else self.clone(op.output, R))

    def clone(self, x: Tensor, R: Tensor) -> Tensor:
        """Return ``x R / (x + eps)``: the published code where a tensor is read twice (its ``Clone``) or selected from.

        The identity but for the stabiliser, which is below the resolution of any type but float64. Unlike in that code,
        relevance is not lost where ``x`` is exactly 0, and masked scores (infinities) or uninitialised memory that was
        read through a view do not give NaN.
        """
        if x.dtype != torch.float64:
            return R
        factor = x + self.eps
        return torch.div(x, factor, out=factor).masked_fill_((x == 0) | ~x.isfinite(), 1.0) * R

    def fan_out(self, tensor: Tensor, node: Node) -> None:
        """Register :meth:`clone` on a tensor that several operations read."""
        if tensor.dtype != torch.float64:
            return
        value = tensor.detach()

        def hook(R: Tensor | None) -> Tensor | None:
            linear, other = self.phase.readers.get(node.seq, (0, 0))
            if R is None or not self.phase.relevance or not other or linear + other < 1.001:
                return None
            passed = self.clone(value, R)
            if self.phase.ledger is not None:
                self.phase.ledger.stabilised(node, R, passed)
            return passed

        tensor.register_hook(hook)


def _apply_layer_rule(op: BackwardOp, R: Tensor, rule: Callable[[LinearLayer, Tensor], Tensor]) -> Tensor:
    """Apply a rule to a weighted sum, reusing the product of its forward pass; rows of zero relevance are left out."""
    apply, own = op.apply, op.weight
    assert apply is not None
    assert own is not None
    dtype = own.dtype  # the output may be of another one, where the layer ran under autocast
    x, weight, output, R = (t.detach().to(dtype) for t in (op.inputs[0], own, op.output, R))
    bias = None if op.bias is None else op.bias.to(dtype)
    if not op.by_rows:
        return rule(LinearLayer(apply, x, weight, bias, output, lambda s: op.vjp(s)[0]), R).to(op.inputs[0].dtype)

    def run(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return rule(LinearLayer(apply, x, weight, bias, y, lambda s: torch.matmul(s, weight)), R)

    return among(op.sparse_rows.alive(R), run, R, x, output).to(op.inputs[0].dtype)
