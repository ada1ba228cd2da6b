"""Rules that carry relevance from an operation's output to its inputs (LRP, deep Taylor decomposition).

Each takes the operation (:class:`whence.propagate.Local`) and the relevance ``R`` of its output, and returns the
relevance of each traced input. ``eps`` is the stabiliser of the published code: every denominator ``b``
becomes ``b + eps`` (not sign-aware), and 0 / 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..call import Call
from ..magnitudes import magnitudes
from ..node import Node, node_of
from ..propagate import Bypass, Local, Phase, Propagate, RelevanceRule

EPS = 1e-9


def safe_divide(a: Tensor, b: Tensor, eps: float = EPS) -> Tensor:
    """``a / (b + eps)``; 0 where ``b`` is 0, ``a / eps`` where ``b`` is ``-eps`` (Chefer et al.'s ``safe_divide``)."""
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == -eps, eps, b + eps))


def _divide(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """:func:`safe_divide`, in the memory of ``b`` (which is never exactly ``-eps``)."""
    zero = b == 0
    b.add_(eps)
    return torch.div(a, b, out=b).masked_fill_(zero, 0.0)


class Bilinear(Protocol):
    """A linear layer as a function of input and weight, with a bias added where one is given."""

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None = None, /) -> Tensor:
        """The output."""
        ...


Vjp = Callable[[Tensor], Tensor]


def pull(apply: Bilinear, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Vjp]:
    """``apply(x, w, bias)`` and its vector-Jacobian product with respect to ``x``."""
    if apply is torch.nn.functional.linear:
        return apply(x, w, bias), lambda s: torch.matmul(s, w)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z = apply(x, w, bias)
    return z.detach(), lambda s: torch.autograd.grad(z, x, s)[0]


class Forward(NamedTuple):
    """What the forward pass has left of a linear layer: its output, its bias and its vector-Jacobian product."""

    output: Tensor
    bias: Tensor | None
    vjp: Vjp


def z_plus(
    apply: Bilinear,
    x: Tensor,
    w: Tensor,
    R: Tensor,
    eps: float = EPS,
    forward: Forward | None = None,
    w_abs: Tensor | None = None,
) -> Tensor:
    """The positive contributions of a linear layer, of either sign of input (Chefer et al. 2021a, eq. 3).

    ``R_j = sum_i x_j w_ji / sum_j' x_j' w_j'i R_i`` over the pairs with ``x_j w_ji >= 0``. Biases take no part.
    With ``x+ w+ + x- w- = (x w + |x| |w|) / 2`` three products do instead of four, and the forward has
    made one of them.

    Args:
        apply: the layer: linear, a convolution, a product.
        x: the input.
        w: the weight.
        R: relevance of the output.
        eps: the stabiliser.
        forward: what the forward pass has left.
        w_abs: ``|w|``, where it is at hand.
    """
    if forward is None:
        z, vjp = pull(apply, x, w)
        forward = Forward(z, None, vjp)
    output, bias, back = forward
    magnitude = x.abs()
    w_abs = w.abs() if w_abs is None else w_abs
    z_abs, back_abs = pull(apply, magnitude, w_abs, None if bias is None else -bias)
    s = _divide(R, z_abs.add_(output), 2 * eps)  # the halves of both equations cancel
    return back_abs(s).mul_(magnitude).addcmul_(back(s), x)


def alpha_beta(apply: Bilinear, x: Tensor, w: Tensor, R: Tensor, alpha: float = 2.0, eps: float = EPS) -> Tensor:
    """``alpha`` times the positive contributions minus ``alpha - 1`` times the negative ones (Bach et al. 2015)."""
    return alpha * z_plus(apply, x, w, R, eps) - (alpha - 1) * z_plus(apply, x, -w, R, -eps)  # b + eps for b < 0


def z_box(apply: Bilinear, x: Tensor, w: Tensor, R: Tensor, eps: float = EPS) -> Tensor:
    """The rule for a first layer on bounded inputs, z^B (Montavon et al. 2017), as in Chefer et al.'s convolution.

    The bounds are each sample's own smallest and largest value, over channels and pixels.
    """
    dims = tuple(range(1, x.dim()))
    low = x.amin(dims, keepdim=True).expand_as(x)
    high = x.amax(dims, keepdim=True).expand_as(x)
    (z, back), (z_low, back_low), (z_high, back_high) = (
        pull(apply, x, w), pull(apply, low, w.clamp(min=0)), pull(apply, high, w.clamp(max=0))
    )  # fmt: skip
    s = R / (z - z_low - z_high + eps)
    return x * back(s) - low * back_low(s) - high * back_high(s)


def share(contributions: list[Tensor], R: Tensor, sums: Callable[[Tensor], Tensor], eps: float = EPS) -> list[Tensor]:
    """Normalise the two summands of a residual addition (Chefer et al. 2021a, eq. 7), per sample.

    Each gets the share of the total relevance that the size of its own sum deserves, so that opposite signs do
    not blow up while their sum stays. The identity where both sums have the sign of the total.

    Args:
        contributions: relevance of the summands before normalisation.
        R: relevance of the sum.
        sums: sums a tensor over all but the batch.
    """
    totals = [sums(c) for c in contributions]
    size = sum((t.abs() for t in totals), start=torch.zeros_like(totals[0]))
    total = sums(R)
    return [
        c.mul_(safe_divide(safe_divide(t.abs(), size, eps) * total, t, eps))
        for c, t in zip(contributions, totals, strict=True)
    ]


class Rules:
    """The rules as a trace uses them: bound to a stabiliser and to the phase of the backward.

    Args:
        phase: what the backward carries now.
        eps: the stabiliser.
    """

    def __init__(self, phase: Phase, eps: float = EPS) -> None:
        self.phase = phase
        self.eps = eps
        self._scratch: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}

    def __call__(self, rule: RelevanceRule) -> Callable[[Call], Tensor]:
        """The substitution that runs an operation with a rule in its backward."""

        def run(call: Call) -> Tensor:
            out: Tensor = Propagate.apply(call, rule, self.phase, *call.traced)
            call.kept = True
            for tensor in call.traced:
                node_of(tensor).kept = True
            return out

        run.__name__ = rule.__name__
        return run

    def identity(self, call: Call) -> Tensor:
        """All relevance to the input: norms, activations, scaling by a constant.

        Of several inputs, to the one that is normalised or gated, none to its statistic or to its own gate.
        """
        main = call.traced[0]
        for tensor in call.traced:
            node = node_of(tensor)
            if not node.statistic and (call.kind != "self-gate" or node.linear):
                main = tensor
                break
        out: Tensor = Bypass.apply(self.phase, main, call.run())
        call.kept = True
        return out

    def softmax(self, call: Call) -> Tensor:
        """The identity; a mask that hides nothing, and that the model therefore left out, is added all the same.

        (The published BERT code always adds it, with the stabiliser that goes with every addition. It is below the
        resolution of any type but float64.)
        """
        scores = call.traced[0]
        if not self.phase.masked or scores.dtype != torch.float64 or node_of(scores).kind == "shift-by-constant":
            return self.identity(call)
        return self(self.add_nothing)(call)

    def add_nothing(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """:meth:`add_constant` with a constant of zeros."""
        x = op.inputs[0].detach()
        part = torch.where(R == 0, R, x * safe_divide(R, x, self.eps))
        return (share([part, torch.zeros_like(x)], R, op.sums, self.eps)[0],)

    def deep_taylor(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """``R_j = sum_i x_j dy_i/dx_j R_i / y_i`` (Chefer et al. 2021a, eq. 1): whatever has no other rule."""
        grads = op.vjp(_divide(R, op.output.clone(), self.eps))
        return tuple(x.detach() * g for x, g in zip(op.inputs, grads, strict=True))

    def linear(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """:func:`z_plus`, with the forward's product at hand."""
        if op.apply is None or op.weight is None:
            return self.deep_taylor(op, R)
        x = op.inputs[0].detach()
        forward = Forward(op.output, op.bias, lambda s: op.vjp(s)[0])
        relevance = z_plus(op.apply, x, op.weight, R, self.eps, forward, self._absolute(op.weight))
        return (self.read_by_several(op, relevance),)

    def read_by_several(self, op: Local, relevance: Tensor) -> Tensor:
        """:meth:`copied`, where several linear layers and something else read the input (queries, keys and values)."""
        node = op.nodes[0]
        several = node.linear_uses > 1 and node.other_uses
        return self.copied(op.inputs[0].detach(), relevance) if several else relevance

    def _absolute(self, w: Tensor) -> Tensor:
        """``|w|``: kept from earlier explanations, or in a buffer that the next weight of this shape overwrites."""
        kept = magnitudes.of(w._whence_parameter) if hasattr(w, "_whence_parameter") else None
        if kept is not None:
            return kept
        key = (w.shape, w.dtype, w.device)
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(w)
        return torch.abs(w, out=self._scratch[key])

    def product(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """A matrix product: eq. 1, half to each factor (eq. 7; both factors sum to the same)."""
        return tuple(r.div_(len(op.inputs)) for r in self.deep_taylor(op, R))

    def add(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """A residual addition: eq. 1, normalised by :func:`share`."""
        contributions = list(self.deep_taylor(op, R))
        if len(contributions) == 2:
            contributions = share(contributions, R, op.sums, self.eps)
        return tuple(contributions)

    def add_constant(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """Adding a mask or a position: as :meth:`add`, the constant's share going no further; a bias takes none."""
        x = op.inputs[0].detach()
        constant = op.output - x
        if op.is_bias:
            return (R.sum_to_size(x.shape),)
        s = safe_divide(R, op.output, self.eps)
        parts = [x * s, torch.where(s == 0, torch.zeros_like(s), constant * s)]
        return (share(parts, R, op.sums, self.eps)[0].sum_to_size(x.shape),)

    def select(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """Picking a token: its relevance goes to where it was picked, nothing elsewhere."""
        return op.vjp(self.copied(op.output, R))

    def copied(self, x: Tensor, R: Tensor) -> Tensor:
        """``x R / (x + eps)``: the published code where a tensor is read twice (its ``Clone``) or picked from.

        The identity but for the stabiliser, which is below the resolution of any type but float64. Unlike there,
        relevance is not lost where ``x`` is exactly 0.
        """
        if x.dtype != torch.float64:
            return R
        factor = x + self.eps
        return torch.div(x, factor, out=factor).masked_fill_(x == 0, 1.0).mul_(R)

    def fan_out(self, tensor: Tensor, node: Node) -> None:
        """Register :meth:`copied` on a tensor that several operations read."""
        if tensor.dtype != torch.float64:
            return
        value = tensor.detach()

        def hook(R: Tensor) -> Tensor | None:
            return self.copied(value, R) if self.phase.relevance and node.other_uses else None

        tensor.register_hook(hook)
