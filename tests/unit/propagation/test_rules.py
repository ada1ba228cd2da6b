"""RelevanceRules on their own: conservation, and a second way of computing each."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from hypothesis import given
from hypothesis import strategies as st

from whence.errors import MethodError
from whence.methods.transformer_attribution import relevance_rulebook
from whence.propagation.relevance_function import Phase
from whence.propagation.rules.linear import (
    EPS,
    alpha_beta,
    epsilon,
    gamma,
    pull,
    safe_divide,
    safe_divide_,
    stable_divide,
    z_box,
    z_plus,
)
from whence.propagation.rules.relevance import RelevanceRules, normalise_shares
from whence.tracing.sparse_rows import among, few
from whence.tracing.tracer import Trace

pytestmark = pytest.mark.usefixtures("rows_of_small_models_are_left_out")

shapes = {
    "rows": st.integers(1, 5),
    "inputs": st.integers(1, 9),
    "outputs": st.integers(1, 7),
    "seed": st.integers(0, 999),
}


def layer(rows, inputs, outputs, seed):
    g = torch.Generator().manual_seed(seed)
    make = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731  # three tensors
    return make(rows, inputs), make(outputs, inputs), make(rows, outputs)


def positive_contributions(x, w, R, eps):
    """Chefer et al. 2021a, eq. 3, entry by entry."""
    out = torch.zeros_like(x)
    for n in range(x.shape[0]):
        for i in range(w.shape[0]):
            terms = [float(x[n, j] * w[i, j]) for j in range(x.shape[1])]
            z = sum(t for t in terms if t > 0)
            for j, t in enumerate(terms):
                if t > 0:
                    out[n, j] += t / (z + eps) * float(R[n, i])
    return out


@given(**shapes)
def test_z_plus_is_equation_3_entry_by_entry(rows, inputs, outputs, seed):
    x, w, R = layer(rows, inputs, outputs, seed)
    want = positive_contributions(x, w, R, EPS)
    assert torch.allclose(z_plus(F.linear, x, w, R), want, rtol=1e-7, atol=1e-7 * float(R.abs().max()))


@given(**shapes)
def test_z_plus_conserves_where_anything_is_positive(rows, inputs, outputs, seed):
    x, w, R = layer(rows, inputs, outputs, seed)
    alive = ((x[:, None] * w[None]) > 1e-3).any(-1)
    R = R * alive
    assert torch.allclose(z_plus(F.linear, x, w, R, eps=0.0).sum(1), R.sum(1))


@given(**shapes)
def test_alpha_beta_is_two_positive_parts_less_one_negative(rows, inputs, outputs, seed):
    x, w, R = layer(rows, inputs, outputs, seed)
    want = 2 * positive_contributions(x, w, R, EPS) - positive_contributions(x, -w, R, EPS)
    assert torch.allclose(alpha_beta(F.linear, x, w, R), want, rtol=1e-7, atol=1e-6 * float(R.abs().max()))


@given(seed=st.integers(0, 999))
def test_z_box_conserves_and_its_terms_are_of_one_sign(seed):
    g = torch.Generator().manual_seed(seed)
    x, w = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((2, 3, 6, 6), (4, 3, 2, 2)))
    R = torch.rand(2, 4, 3, 3, generator=g, dtype=torch.float64)
    out = z_box(lambda a, b, c=None: F.conv2d(a, b, c, stride=2), x, w, R, eps=0.0)
    assert torch.allclose(out.sum((1, 2, 3)), R.sum((1, 2, 3)))
    assert (out > -1e-12).all()


@given(**shapes)
def test_the_shares_of_a_residual_addition_conserve_and_lie_between_nothing_and_all(rows, inputs, outputs, seed):
    a, _, R = layer(rows, inputs, inputs, seed)
    b, _, _ = layer(rows, inputs, inputs, seed + 1)
    s = R / (a + b)
    sums = lambda t: t.sum(1, keepdim=True)  # noqa: E731  # per sample
    total = R.sum(1)
    one, two = (t.sum(1) for t in normalise_shares([a * s, b * s], R, sums, eps=0.0))
    assert torch.allclose(one + two, total, rtol=1e-6, atol=1e-9)
    for part in (one, two):
        assert (part * total.sign() >= -1e-9).all()
        assert (part.abs() <= total.abs() * (1 + 1e-6) + 1e-9).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_division_by_what_is_not_negative_takes_rounding_below_zero_for_zero(dtype):
    a, b = torch.tensor([1.0, 2.0, 3.0, -4.0], dtype=dtype), torch.tensor([0.0, 0.5, -1e-9, 2.0], dtype=dtype)
    expected = safe_divide(a, b.clamp(min=0), 2 * EPS)
    found = safe_divide_(a, b, 2 * EPS)
    assert torch.equal(found, expected)
    assert found.data_ptr() == b.data_ptr()


def test_safe_divide_is_zero_at_zero_and_not_aware_of_sign():
    b = torch.tensor([0.0, 2.0, -2.0, 1e-9], dtype=torch.float64)
    got = safe_divide(torch.ones_like(b), b)
    assert got[0] == 0
    assert torch.allclose(got[1:], 1 / (b[1:] + 1e-9))
    with pytest.raises(RuntimeError):
        safe_divide(torch.ones(3), torch.ones(2))


@given(**shapes, picked=st.integers(0, 4))
def test_rows_that_carry_nothing_are_left_out_and_get_nothing(rows, inputs, outputs, seed, picked):
    x, w, R = layer(rows, inputs, outputs, seed)
    R[torch.arange(rows) != picked] = 0
    asked = []

    def rule(R, x):
        asked.append(len(R))
        return z_plus(F.linear, x, w, R)

    found = among(few(R[:, None]), rule, R[:, None], x[:, None])
    assert found.shape == (rows, 1, inputs)
    assert torch.allclose(found[:, 0], z_plus(F.linear, x, w, R), atol=1e-13, rtol=1e-12)
    assert sum(asked) == (rows if rows < 2 else int(picked < rows))


def test_constants_are_those_of_the_papers_and_of_the_published_code():
    def defaults(rule):
        return {k: p.default for k, p in inspect.signature(rule).parameters.items() if p.default is not p.empty}

    assert EPS == 1e-9
    assert defaults(epsilon) == {"bias": None, "eps": 1e-6, "signed": True}
    assert defaults(gamma) == {"bias": None, "gamma": 0.25, "eps": 1e-6}
    assert defaults(z_plus) == {"bias": None, "eps": EPS, "w_abs": None}
    assert defaults(alpha_beta) == {"bias": None, "alpha": 2.0, "eps": EPS}
    assert defaults(z_box) == {"bias": None, "low": None, "high": None, "eps": EPS}


def test_a_stabiliser_has_the_sign_of_its_denominator_and_is_positive_at_zero():
    one, b = torch.ones(4, dtype=torch.float64), torch.tensor([-1.0, 0.0, -0.0, 1.0], dtype=torch.float64)
    assert stable_divide(one, b, 0.5).tolist() == [-1 / 1.5, 2.0, 2.0, 1 / 1.5]
    assert stable_divide(one, b, 0.0).tolist() == [-1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("apply", [F.linear, lambda x, w, bias=None: F.linear(x, w, bias)], ids=["linear", "any"])
def test_a_product_is_pulled_back_and_its_input_left_as_it_was(apply):
    x, w, s = layer(2, 3, 4, 0)
    z, back = pull(apply, x, w)
    assert torch.allclose(z, x @ w.T)
    assert torch.allclose(back(s), s @ w)
    assert not x.requires_grad
    assert not z.requires_grad


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-3.0, -1.0), (2.0, 4.0)])
def test_bounds_hold_but_for_a_thousandth_of_their_distance(low, high):
    w = torch.ones(1, 2, dtype=torch.float64)
    R = torch.ones(1, 1, dtype=torch.float64)
    for beyond, allowed in ((0.0018, True), (0.0022, False)):
        for x in ([low - beyond, high], [low, high + beyond]):
            given = torch.tensor([x], dtype=torch.float64)
            if allowed:
                assert torch.isfinite(z_box(F.linear, given, w, R, low=low, high=high)).all()
            else:
                with pytest.raises(MethodError, match="bounds that every input keeps"):
                    z_box(F.linear, given, w, R, low=low, high=high)


def relevance(function, x, R):
    """Relevance of the input of a small model, by the rules of transformer-attribution."""
    book = relevance_rulebook(RelevanceRules(Phase(), EPS))
    with Trace(book.rules, len(x), book.maps, book.fan_out) as trace:
        out = function(trace.input("x", x))
    book.phase.relevance = True
    return torch.autograd.grad(out, trace.sources[0].tensor, R)[0]


def test_values_that_a_rule_needs_survive_a_model_that_overwrites_them():
    x, w, R = layer(2, 5, 4, 1)

    def function(x, overwrites):
        h = torch.tanh(x)
        y = F.linear(h, w)
        if overwrites:
            h.add_(1.0)
            y.add_(1.0)
            return y
        return y + 1.0

    plain, overwritten = (relevance(lambda x, o=o: function(x, o), x, R) for o in (False, True))
    assert torch.allclose(plain, overwritten)
    assert torch.allclose(plain, z_plus(F.linear, torch.tanh(x), w, R), rtol=1e-6)


def test_what_is_normalised_gets_all_relevance_and_its_statistic_none():
    """Whichever stands first, and whether or not it is a linear function of the input."""
    x, _, _ = layer(3, 5, 1, 2)
    R = torch.rand(3, 5, dtype=torch.float64)

    def deviation(h):
        return torch.rsqrt(h.square().mean(-1, keepdim=True) + 0.1)

    for inner in (torch.tanh, lambda x: 2 * x):
        for function in (lambda h: deviation(h) * h, lambda h: h * deviation(h)):
            found = relevance(lambda x, f=function, i=inner: f(i(x)), x, R)
            assert torch.allclose(found, R, rtol=1e-6)


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, torch.exp, lambda x: torch.softmax(x, -1)])
def test_the_gradient_of_what_is_overwritten_is_the_true_one(function):
    """These save their own output for the backward, and the model writes into it."""
    x, _, _ = layer(2, 5, 1, 3)
    book = relevance_rulebook(RelevanceRules(Phase(), EPS))
    with Trace(book.rules, len(x), book.maps, book.fan_out) as trace:
        out = function(trace.input("x", x)).mul_(3.0)
    g = torch.linspace(1, 2, 10, dtype=torch.float64).reshape(2, 5)
    found = torch.autograd.grad(out, trace.sources[0].tensor, g)[0]
    leaf = x.clone().requires_grad_()
    assert torch.allclose(found, torch.autograd.grad(3.0 * function(leaf), leaf, g)[0])


def each_sample(tensor):
    return tensor.flatten(1).sum(1).reshape(-1, *[1] * (tensor.dim() - 1))


def signed(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
def test_a_constant_that_is_added_keeps_its_share(seed):
    """A mask, positions: as a summand of a residual addition, per sample, and what it gets goes no further."""
    x, constant, R = (signed(2, 3, 5, seed=10 * seed + i) for i in range(3))
    s = safe_divide(R, x + constant, EPS)
    expected = normalise_shares([x * s, constant * s], R, each_sample)[0]
    assert torch.allclose(relevance(lambda x: x + constant, x, R), expected, rtol=1e-6)


def test_a_bias_that_is_added_takes_nothing():
    x, bias, R = signed(2, 3, 1, seed=1), signed(5, seed=2), signed(2, 3, 5, seed=3)
    assert torch.allclose(relevance(lambda x: x + bias, x, R), R.sum(-1, keepdim=True))


@pytest.mark.parametrize("seed", range(4))
def test_a_summand_that_is_broadcast_gets_the_share_of_all_its_copies(seed):
    x, R = signed(1, 3, 5, seed=10 * seed), signed(1, 3, 5, seed=10 * seed + 1)
    first = x[0, 0]
    s = safe_divide(R, x + first, EPS)
    whole, once = normalise_shares([x * s, (first * s.sum((0, 1)))[None, None]], R, each_sample)
    whole[0, 0] += once[0, 0]
    assert torch.allclose(relevance(lambda x: x + x[0, 0], x, R), whole, rtol=1e-6)
