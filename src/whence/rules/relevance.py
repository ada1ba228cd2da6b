"""Rules that carry relevance from an operation's output to its inputs (LRP, deep Taylor decomposition).

Each takes the operation (:class:`whence.propagate.Local`) and the relevance ``R`` of its output, and returns the
relevance of each traced input. ``eps`` is the stabiliser of the published code: every denominator ``b``
becomes ``b + eps`` (not sign-aware), and 0 / 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..propagate import Local, Phase, Propagate, RelevanceRule
from ..trace import Call, Node

EPS = 1e-9


def safe_divide(a: Tensor, b: Tensor, eps: float = EPS) -> Tensor:
    """``a / (b + eps)``, and 0 where ``b`` is 0 (the ``safe_divide`` of Chefer et al.'s code)."""
    return torch.where(b == 0, torch.zeros_like(a), a / (b + eps))


Bilinear = Callable[[Tensor, Tensor], Tensor]
Vjp = Callable[[Tensor], Tensor]


def pull(apply: Bilinear, x: Tensor, w: Tensor) -> tuple[Tensor, Vjp]:
    """``apply(x, w)`` and its vector-Jacobian product with respect to ``x``."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z = apply(x, w)
    return z.detach(), lambda s: torch.autograd.grad(z, x, s)[0]


def z_plus(
    apply: Bilinear, x: Tensor, w: Tensor, R: Tensor, eps: float = EPS, known: tuple[Tensor, Vjp] | None = None
) -> Tensor:
    """The positive contributions of a linear layer, of either sign of input (Chefer et al. 2021a, eq. 3).

    ``R_j = sum_i x_j w_ji / sum_j' x_j' w_j'i R_i`` over the pairs with ``x_j w_ji >= 0``. Biases take no part.
    With ``x+ w+ + x- w- = (x w + |x| |w|) / 2`` three products do instead of four.

    Args:
        apply: the bilinear map ``(x, w) -> output`` (a linear layer, a convolution, a product).
        x: the input.
        w: the weight.
        R: relevance of the output.
        known: the product ``x w`` and its vector-Jacobian product, where the forward has left them.
    """
    z, back = known or pull(apply, x, w)
    magnitude = x.abs()
    z_abs, back_abs = pull(apply, magnitude, w.abs())
    s = safe_divide(R, (z + z_abs) / 2, eps)
    return (x * back(s) + magnitude * back_abs(s)) / 2


def alpha_beta(apply: Bilinear, x: Tensor, w: Tensor, R: Tensor, alpha: float = 2.0, eps: float = EPS) -> Tensor:
    """``alpha`` times the positive contributions minus ``alpha - 1`` times the negative ones (Bach et al. 2015)."""
    return alpha * z_plus(apply, x, w, R, eps) - (alpha - 1) * z_plus(apply, x, -w, R, eps)


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
        c * safe_divide(safe_divide(t.abs(), size, eps) * total, t, eps)
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

    def __call__(self, rule: RelevanceRule) -> Callable[[Call], Tensor]:
        """The substitution that runs an operation with a rule in its backward."""

        def run(call: Call) -> Tensor:
            out: Tensor = Propagate.apply(call, rule, self.phase, *call.traced)
            return out

        run.__name__ = rule.__name__
        return run

    def identity(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """All relevance to the first input: norms, activations, softmax, scaling by a constant."""
        return (R.sum_to_size(op.inputs[0].shape), *(torch.zeros_like(x) for x in op.inputs[1:]))

    def trunk(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """All relevance to the operand that is normalised, none to its statistic or its own gate."""
        main = [i for i, n in enumerate(op.nodes) if not n.statistic and (op.kind != "self-gate" or n.linear)]
        at = main[0] if main else 0
        return tuple(R.sum_to_size(x.shape) if i == at else torch.zeros_like(x) for i, x in enumerate(op.inputs))

    def deep_taylor(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """``R_j = sum_i x_j dy_i/dx_j R_i / y_i`` (Chefer et al. 2021a, eq. 1): any operation without a rule of its own."""
        grads = op.vjp(safe_divide(R, op.output, self.eps))
        return tuple(x.detach() * g for x, g in zip(op.inputs, grads, strict=True))

    def linear(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """:func:`z_plus`, with the forward's product at hand."""
        if op.apply is None or op.weight is None:
            return self.deep_taylor(op, R)
        x = op.inputs[0].detach()
        product = op.output if op.bias is None else op.output - op.bias_like_output
        relevance = z_plus(op.apply, x, op.weight, R, self.eps, (product, lambda s: op.vjp(s)[0]))
        node = op.nodes[0]
        if node.linear_uses > 1 and node.other_uses:
            relevance = self.copied(x, relevance)
        return (relevance,)

    def product(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """A matrix product: eq. 1, half to each factor (eq. 7; both factors sum to the same)."""
        return tuple(r / len(op.inputs) for r in self.deep_taylor(op, R))

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

    def softmax(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """The identity; a mask that hides nothing, and that the model therefore left out, is added as in :meth:`add_constant`.

        (The published BERT code always adds it, with the stabiliser that goes with every addition.)
        """
        if not self.phase.masked or op.nodes[0].kind == "shift-by-constant":
            return (R,)
        x = op.inputs[0].detach()
        return (share([x * safe_divide(R, x, self.eps), torch.zeros_like(x)], R, op.sums, self.eps)[0],)

    def select(self, op: Local, R: Tensor) -> tuple[Tensor, ...]:
        """Picking a token: its relevance goes to where it was picked, nothing elsewhere."""
        return op.vjp(self.copied(op.output, R))

    def copied(self, x: Tensor, R: Tensor) -> Tensor:
        """``x R / (x + eps)``: what the published code does where a tensor is read twice (its ``Clone``) or picked from.

        The identity but for the stabiliser. Unlike there, relevance is not lost where ``x`` is exactly 0.
        """
        return torch.where(x == 0, R, R * (x / (x + self.eps)))

    def fan_out(self, tensor: Tensor, node: Node) -> None:
        """Register :meth:`copied` on a tensor that several operations read."""
        value = tensor.detach()

        def hook(R: Tensor) -> Tensor | None:
            return self.copied(value, R) if self.phase.relevance and node.other_uses else None

        tensor.register_hook(hook)
