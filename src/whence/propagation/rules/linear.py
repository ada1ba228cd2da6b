"""The basic rules of LRP for linear layers, convolutions and every other weighted sum ``z_i = sum_j x_j w_ji + b_i``.

Each takes the layer as a function of input and weight, its input ``x``, its weight ``w`` and the relevance ``R`` of its
output. It returns the relevance of ``x``, ``R_j = sum_i c_ji / (sum_j' c_j'i) R_i``, where the contributions ``c`` are

================== =====================================================================
:func:`epsilon`    ``x_j w_ji``
:func:`gamma`      ``x_j w_ji``, those of the sign of ``z_i`` counting ``1 + gamma`` times
:func:`z_plus`     the positive ones among ``x_j w_ji``
:func:`alpha_beta` ``alpha`` times by the positive ones, less ``alpha - 1`` times by the negative ones
:func:`z_box`      ``x_j w_ji`` less the smallest value that it can have for an input between bounds
:func:`w_square`   ``w_ji^2``
:func:`flat`       1
================== =====================================================================

In the first four, a bias that is given absorbs its share, and without one no relevance is absorbed. The last three
ignore the bias. Where all contributions of an output are exactly 0, its relevance is not propagated.

:meth:`whence.propagation.rules.relevance.RelevanceRules.layer` puts a rule into a rulebook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...errors import MethodError
from ...tracing.sparse_rows import several
from ...tracing.tensor_info import info_of
from ..weight_abs_cache import weight_abs

#: The stabiliser of Chefer et al.'s code.
EPS = 1e-9

Vjp = Callable[[Tensor], Tensor]


class Bilinear(Protocol):
    """A linear layer as a function of input and weight, with a bias added where one is given."""

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None = None, /) -> Tensor:
        """Return the output."""
        ...


# -- the rules -------------------------------------------------------------------------------------------------------


def epsilon(
    apply: Bilinear,
    x: Tensor,
    w: Tensor,
    R: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    signed: bool = True,
) -> Tensor:
    """Apply the epsilon rule, ``R_j = sum_i x_j w_ji / (z_i + eps sign(z_i)) R_i`` (Bach et al. 2015, eq. 58).

    Args:
        apply: the layer: linear, a convolution, a product.
        x: the input.
        w: the weight.
        R: relevance of the output.
        bias: absorbs its share, if given.
        eps: the stabiliser.
        signed: whether it has the sign of ``z``; if not, ``z + eps`` as in Chefer et al.'s code (:func:`safe_divide`).
    """
    z, back = pull(apply, x, w, bias)
    return x * back(stable_divide(R, z, eps) if signed else safe_divide(R, z, eps))


def gamma(
    apply: Bilinear,
    x: Tensor,
    w: Tensor,
    R: Tensor,
    bias: Tensor | None = None,
    gamma: float = 0.25,
    eps: float = 1e-6,
) -> Tensor:
    """Apply the gamma rule: contributions of the output's sign count ``1 + gamma`` times (Montavon et al. 2019).

    The paper's rule, ``R_j = sum_i x_j (w_ji + gamma w_ji^+) / sum_j' x_j' (w_j'i + gamma w_j'i^+) R_i``, is for inputs
    that are not negative. For inputs of either sign (as in zennit) let ``c_ji = x_j w_ji``. Where ``z_i > 0``,
    relevance is distributed by ``c + gamma c^+``; where ``z_i < 0``, by ``c + gamma c^-``; where it is 0, not at all.
    With ``c^+- = (c +- |c|) / 2`` both are ``(1 + gamma / 2) c + sign(z) gamma / 2 |c|``: four products suffice.

    For inputs that are not negative the two agree where ``z_i > 0``. ``gamma = 0`` is the epsilon rule; towards
    infinity only contributions of the sign of the output are left.

    Args:
        apply, x, w, R, bias: as in :func:`epsilon`.
        gamma: the extra weight of contributions of the output's sign.
        eps: the stabiliser, with the sign of the denominator.
    """
    z, back = pull(apply, x, w, bias)
    z_abs, back_abs = pull(apply, x.abs(), absolute(w), None if bias is None else bias.abs())
    sign, half = z.sign(), gamma / 2
    s = stable_divide(R, (1 + half) * z.abs() + half * z_abs, eps)
    return (1 + half) * x * back(sign * s) + half * x.abs() * back_abs(sign.abs() * s)


def z_plus(
    apply: Bilinear,
    x: Tensor,
    w: Tensor,
    R: Tensor,
    bias: Tensor | None = None,
    eps: float = EPS,
    w_abs: Tensor | None = None,
) -> Tensor:
    """Propagate by the positive contributions (Montavon et al. 2017; Chefer et al. 2021a, eq. 3).

    ``R_j = sum_i (x_j w_ji)^+ / sum_j' (x_j' w_j'i)^+ R_i``, for inputs of either sign. With
    ``x+ w+ + x- w- = (x w + |x| |w|) / 2`` four products suffice, and three where the forward pass has computed one of
    them.

    Args:
        apply, x, w, R, bias: as in :func:`epsilon`.
        eps: the stabiliser.
        w_abs: ``|w|``, where it is already computed.
    """
    layer = apply if isinstance(apply, LinearLayer) else LinearLayer(apply, x, w, bias, *pull(apply, x, w, bias))
    magnitude = x.abs()
    w_abs = absolute(w) if w_abs is None else w_abs
    rest = None if layer.bias is None else -layer.bias if bias is None else bias.abs()  # the output has a bias
    z_abs, back_abs = pull(apply, magnitude, w_abs, rest)
    s = safe_divide_(R, z_abs.add_(layer.output), 2 * eps)  # the halves of both equations cancel
    return back_abs(s).mul_(magnitude).addcmul_(layer.vjp(s), x)


def alpha_beta(
    apply: Bilinear,
    x: Tensor,
    w: Tensor,
    R: Tensor,
    bias: Tensor | None = None,
    alpha: float = 2.0,
    eps: float = EPS,
) -> Tensor:
    """Apply the alpha-beta rule with ``beta = alpha - 1`` (Bach et al. 2015, eq. 60).

    ``R_j = sum_i (alpha c_ji^+ / sum_j' c_j'i^+ - (alpha - 1) c_ji^- / sum_j' c_j'i^-) R_i`` for ``c_ji = x_j w_ji``.
    Relevance is not conserved at an output whose contributions are all of one sign.

    Args:
        apply, x, w, R, bias: as in :func:`epsilon`.
        alpha: the weight of the positive ones; 1 is :func:`z_plus`.
        eps: the stabiliser, without a sign.
    """
    z, back = pull(apply, x, w, bias)
    z_abs, back_abs = pull(apply, x.abs(), absolute(w), None if bias is None else bias.abs())
    positive = alpha * safe_divide(R, z + z_abs, 2 * eps)  # c^+- = (c +- |c|) / 2, and the halves cancel
    negative = (alpha - 1) * safe_divide(R, z - z_abs, 2 * eps)
    return x * back(positive - negative) + x.abs() * back_abs(positive + negative)


def z_box(
    apply: Bilinear,
    x: Tensor,
    w: Tensor,
    R: Tensor,
    bias: Tensor | None = None,
    low: float | Tensor | None = None,
    high: float | Tensor | None = None,
    eps: float = EPS,
) -> Tensor:
    """Apply z^B, the rule for a first layer on inputs between bounds ``l`` and ``h`` (Montavon et al. 2017, sec. 4.2).

    Contributions are ``x_j w_ji - l_j w_ji^+ - h_j w_ji^-``, none of them negative; biases cancel.

    Args:
        apply, x, w, R: as in :func:`epsilon`.
        bias: ignored.
        low: a number, or a tensor that broadcasts to the input (one bound per channel: ``[channels, 1, 1]``). Default:
            each sample's own smallest value, over channels and pixels, as in Chefer et al.'s convolution.
        high: likewise; default: each sample's own largest value.
        eps: the stabiliser, without a sign.
    """
    low, high = _bounds(x, low, high)
    z, back = pull(apply, x, w)
    z_low, back_low = pull(apply, low, w.clamp(min=0))
    z_high, back_high = pull(apply, high, w.clamp(max=0))
    s = safe_divide(R, z - z_low - z_high, eps)
    return x * back(s) - low * back_low(s) - high * back_high(s)


def w_square(apply: Bilinear, x: Tensor, w: Tensor, R: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply the w^2 rule, for a first layer on any input (Montavon et al. 2017, sec. 4.1).

    ``R_j = sum_i w_ji^2 / sum_j' w_j'i^2 R_i``.

    Args:
        apply, x, w, R: as in :func:`epsilon`.
        bias: ignored.
    """
    z, back = pull(apply, torch.ones_like(x), w.square())
    return back(stable_divide(R, z, 0.0))


def flat(apply: Bilinear, x: Tensor, w: Tensor, R: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply the flat rule: ``R_j = sum_i 1 / n_i R_i`` over the ``n_i`` inputs of each output (Lapuschkin et al. 2019).

    Args:
        apply, x, w, R: as in :func:`epsilon`.
        bias: ignored.
    """
    return w_square(apply, x, torch.ones_like(w), R, bias)


# -- building blocks of the rules ------------------------------------------------------------------------------------


def stable_divide(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """Return ``a / (b + eps sign(b))``, with a sign of 1 at 0; 0 where the denominator is 0."""
    b = b + torch.where(b < 0, -eps, eps)
    return torch.where(b == 0, torch.zeros_like(a), a / b).to(
        a.dtype
    )  # eps is float32, so that b is no longer in half precision


def safe_divide(a: Tensor, b: Tensor, eps: float = EPS) -> Tensor:
    """Return ``a / (b + eps)``; 0 where ``b`` is 0, ``a / eps`` where it is ``-eps`` (Chefer et al.'s function)."""
    return torch.where(b == 0, torch.zeros_like(a), a / torch.where(b == -eps, eps, b + eps))


def safe_divide_(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """Apply :func:`safe_divide` for a sum ``b`` of non-negative terms, in place: values below 0 are rounding of 0."""
    return divide_(a, torch.threshold_(b, 0.0, torch.inf).add_(eps))


def divide_(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a / b``, in the memory of ``b`` unless ``a`` has a batch axis of targets (``torch.vmap``)."""
    return a / b if several(a) else torch.div(a, b, out=b)


class LinearLayer(NamedTuple):
    """A layer after its forward pass: callable like ``apply``, with one output and vector-Jacobian product stored."""

    apply: Bilinear
    x: Tensor
    w: Tensor
    bias: Tensor | None
    output: Tensor
    vjp: Vjp

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None = None, /) -> Tensor:
        """Return the output for any input."""
        return self.apply(x, w, bias)


def pull(apply: Bilinear, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Vjp]:
    """Return ``apply(x, w, bias)`` and its pullback: the vector-Jacobian product with respect to ``x``, usable once."""
    if isinstance(apply, LinearLayer):
        if apply.x is x and apply.w is w and apply.bias is bias:
            return apply.output, apply.vjp
        apply = apply.apply
    if apply is torch.nn.functional.linear:
        return apply(x, w, bias), lambda s: torch.matmul(s, w)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        z = apply(x, w, bias)
    return z.detach(), lambda s: torch.autograd.grad(z, x, s)[0]


def absolute(w: Tensor, make: Callable[[Tensor], Tensor] = torch.abs) -> Tensor:
    """Return ``|w|``: from the cache where ``w`` is a parameter of a traced model, else computed."""
    parameter = info_of(w).parameter
    cached = None if parameter is None else weight_abs.of(parameter)
    return make(w) if cached is None or cached.dtype != w.dtype else cached  # a layer may convert its weight


def _bounds(x: Tensor, low: float | Tensor | None, high: float | Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the bounds of each input, shaped like it."""
    own = tuple(range(1, x.dim()))
    below = x.amin(own, keepdim=True) if low is None else torch.as_tensor(low, dtype=x.dtype, device=x.device)
    above = x.amax(own, keepdim=True) if high is None else torch.as_tensor(high, dtype=x.dtype, device=x.device)
    slack = 1e-3 * (above - below)  # tolerates rounding in the preprocessing of the input
    if bool(((x < below - slack) | (x > above + slack)).any()):
        raise MethodError(
            f"The z^B rule needs bounds that every input keeps: the input runs from {float(x.min()):.4g} to "
            f"{float(x.max()):.4g}, the bounds from {float(below.min()):.4g} to {float(above.max()):.4g}. Give the "
            "bounds of the input as the model gets it (after normalisation), or none to take each sample's own."
        )
    return below.expand_as(x), above.expand_as(x)
