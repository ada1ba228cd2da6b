"""Substitutions one by one: the value stays, and the derivative is the rule's equation written with ``detach``.

Each operation runs under a trace with one rule; its gradients are compared with those of the same function by hand.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whence.propagation.rules import gradient as rules
from whence.propagation.rules.linear import epsilon, gamma, z_plus
from whence.tracing import operations as ops
from whence.tracing.tensor_info import node_of
from whence.tracing.tracer import Trace


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def traced(function, inputs, book):
    """The output under a rulebook, and the trace."""
    with Trace(book, len(inputs[0])) as trace:
        out = function(*(trace.input(str(i), x) for i, x in enumerate(inputs)))
    return out, trace


def gradients_of(function, inputs, book, by_hand):
    """The value of ``function``, the gradients of ``by_hand``."""
    out, trace = traced(function, inputs, book)
    assert torch.allclose(out, function(*inputs), atol=1e-12)
    g = drawn(*out.shape, seed=99)
    found = torch.autograd.grad(out, [s.tensor for s in trace.sources], g, allow_unused=True)
    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(by_hand(*leaves), leaves, g, allow_unused=True)
    for x, a, b in zip(inputs, found, expected, strict=True):
        a, b = (torch.zeros_like(x) if t is None else t for t in (a, b))
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12), (a - b).abs().max()


# -- attention -------------------------------------------------------------------------------------------------------

QKV = [drawn(2, 3, 4, 6, seed=i) for i in range(3)]  # [batch, heads, tokens, head]
MASK = drawn(2, 1, 4, 4, seed=3)


def written(q, k, v, mask=None, scale=None, causal=False):
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores if mask is None else scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return torch.softmax(scores, -1), v


def attended(*args, **options):
    A, v = written(*args, **options)
    return A @ v


FUSED = {
    "by position": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    "by name": lambda q, k, v, m: F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m),
}


@pytest.mark.parametrize("how", FUSED)
def test_only_values_get_relevance_of_fused_attention(how):
    constant = lambda q, k, v, m: attended(q.detach(), k.detach(), v, m.detach())  # noqa: E731  # the equation
    gradients_of(FUSED[how], [*QKV, MASK], {"attention": rules.detach_heads}, constant)


def test_only_values_get_relevance_of_attention_written_out():
    constant = lambda q, k, v: attended(q.detach(), k.detach(), v)  # noqa: E731  # the equation
    gradients_of(attended, QKV, {"mix": rules.detach_heads}, constant)
    gradients_of(attended, QKV, {"mix": rules.expose_heads}, constant)


def test_exposed_probabilities_have_a_gradient_that_can_be_read():
    out, trace = traced(attended, QKV, {"mix": rules.expose_heads})
    g = drawn(*out.shape, seed=9)
    (record,) = trace.attentions
    found = torch.autograd.grad(out, record.probabilities, g)[0]
    assert torch.allclose(found, g @ QKV[2].mT)


def test_half_of_what_the_values_would_get():
    half = lambda q, k, v: 0.5 * attended(q.detach(), k.detach(), v)  # noqa: E731  # the equation's derivative
    gradients_of(attended, QKV, {"mix": rules.halve_heads}, half)


def split(live):
    """Each product halves its gradient if both factors live: written out, with constants where nothing lives."""

    def function(q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if live[0] and live[1]:
            scores = scores / 2 + scores.detach() / 2
        out = torch.softmax(scores, -1) @ v
        return out / 2 + out.detach() / 2 if live[2] and (live[0] or live[1]) else out

    return function


@pytest.mark.parametrize("live", [(1, 1, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 0, 1), (1, 0, 0)])
def test_factors_of_fused_attention_share_equally(live):
    constants = [t if not alive else None for t, alive in zip(QKV, live, strict=True)]

    def with_constants(function):
        def run(*given):
            rest = iter(given)
            return function(*(next(rest) if c is None else c for c in constants))

        return run

    inputs = [t for t, alive in zip(QKV, live, strict=True) if alive]
    fused = with_constants(F.scaled_dot_product_attention)
    book = {
        "attention": rules.share_attention,
        "matmul": rules.share_product,
    }  # constant values: in primitive operations
    gradients_of(fused, inputs, book, with_constants(split(live)))


def test_a_mask_that_lives_is_a_factor_of_the_probabilities():
    def halves(q, k, v, m):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        out = torch.softmax(scores / 2 + scores.detach() / 2 + m, -1) @ v
        return out / 2 + out.detach() / 2

    for fused in FUSED.values():
        gradients_of(fused, [*QKV, MASK], {"attention": rules.share_attention}, halves)


POSITIONS = {
    "by name": functools.partial(F.scaled_dot_product_attention, is_causal=True, scale=0.3),
    "by position": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, True, scale=0.3),
}


@pytest.mark.parametrize("how", POSITIONS)
def test_options_of_fused_attention_are_kept_when_factors_share(how):

    def halves(q, k, v):
        scores = q @ k.mT * 0.3
        scores = (scores / 2 + scores.detach() / 2).masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
        out = torch.softmax(scores, -1) @ v
        return out / 2 + out.detach() / 2

    gradients_of(POSITIONS[how], QKV, {"attention": rules.share_attention}, halves)


SHOWN = {
    "plain": (F.scaled_dot_product_attention, attended),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, None, 0.0, True),
        functools.partial(attended, causal=True),
    ),
    "scaled": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7),
        functools.partial(attended, scale=0.7),
    ),
    "groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
        lambda q, k, v: attended(q, k[:, :1].expand_as(q), v[:, :1].expand_as(q)),
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_map_that_is_shown_changes_no_derivative(name):
    fused, by_hand = SHOWN[name]
    gradients_of(fused, QKV, {"attention": rules.show_map}, by_hand)


def test_a_mask_gets_its_gradient_where_its_map_is_shown():
    gradients_of(FUSED["by position"], [*QKV, MASK], {"attention": rules.show_map}, attended)
    _, trace = traced(FUSED["by position"], [*QKV, MASK], {"attention": rules.show_map})
    assert not trace.attentions[0].shown.mask.requires_grad
    hidden = torch.tensor([[True, False, True, True]] * 4)
    by_hand = lambda q, k, v: attended(q, k, v, torch.zeros(4, 4).masked_fill(~hidden, -math.inf))  # noqa: E731
    gradients_of(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, hidden), QKV, {"attention": rules.show_map}, by_hand
    )


def test_the_map_and_its_gradient_are_shown_in_the_backward():
    out, trace = traced(F.scaled_dot_product_attention, QKV, {"attention": rules.show_map})
    shown = trace.attentions[0].shown
    assert not any(t.requires_grad for t in (shown.query, shown.key, shown.value))
    seen = []
    trace.attentions[0].shown.visit = lambda _, A, gradient: seen.append((A.clone(), gradient.clone()))
    g = drawn(*out.shape, seed=9)
    out.backward(g)
    ((A, gradient),) = seen
    assert torch.allclose(A, written(*QKV)[0])
    assert torch.allclose(gradient, g @ QKV[2].mT)


# -- norms -----------------------------------------------------------------------------------------------------------

X, WEIGHT, BIAS = drawn(2, 3, 5, seed=5), 1 + drawn(5, seed=6), drawn(5, seed=7)


def deviation(x, eps, dims=(-1,), center=True):
    x = x - x.mean(dims, keepdim=True) if center else x
    return (x.square().mean(dims, keepdim=True) + eps).sqrt().detach()


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5, dims=(-1,), constant_mean=False):
    mean = x.mean(dims, keepdim=True)
    return (x - (mean.detach() if constant_mean else mean)) / deviation(x, eps, dims) * weight + bias


NORMS = {
    "weight and bias": (
        lambda x: F.layer_norm(x, (5,), WEIGHT, BIAS, 0.1), {"weight": WEIGHT, "bias": BIAS, "eps": 0.1},
    ),
    "by name": (
        lambda x: F.layer_norm(x, normalized_shape=(5,), weight=WEIGHT, eps=0.3), {"weight": WEIGHT, "eps": 0.3},
    ),
    "by position": (
        lambda x: torch.layer_norm(x, (5,), WEIGHT, BIAS, 0.1), {"weight": WEIGHT, "bias": BIAS, "eps": 0.1},
    ),
    "nothing": (lambda x: F.layer_norm(x, (5,)), {}),
    "two dimensions": (lambda x: F.layer_norm(x, (3, 5), eps=0.2), {"eps": 0.2, "dims": (-2, -1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("constant_mean", [False, True])
def test_the_deviation_of_a_layer_norm_is_a_constant(name, constant_mean):
    function, options = NORMS[name]
    rule = rules.detach_mean_and_deviation if constant_mean else rules.detach_deviation
    by_hand = functools.partial(layer_norm, constant_mean=constant_mean, **options)
    gradients_of(function, [X], {"norm": rule}, by_hand)


@pytest.mark.parametrize("rule", [rules.detach_deviation, rules.detach_mean_and_deviation])
@pytest.mark.parametrize("eps", [0.1, None])
def test_the_deviation_of_an_rms_norm_is_a_constant(rule, eps):
    used = torch.finfo(torch.float64).eps if eps is None else eps
    by_hand = lambda x: x / deviation(x, used, center=False) * WEIGHT  # noqa: E731  # the equation
    gradients_of(lambda x: F.rms_norm(x, (5,), WEIGHT, eps), [X], {"norm": rule}, by_hand)
    gradients_of(lambda x: torch.rms_norm(x, (5,), WEIGHT, eps), [X], {"norm": rule}, by_hand)


def test_an_rms_norm_of_small_values_has_the_right_epsilon():
    small = 1e-8 * X
    eps = torch.finfo(torch.float64).eps
    by_hand = lambda x: x / deviation(x, eps, center=False)  # noqa: E731  # the equation
    for function in (F.rms_norm, torch.rms_norm):
        gradients_of(lambda x, f=function: f(x, (5,)), [small], {"norm": rules.detach_deviation}, by_hand)


def test_a_layer_norm_of_small_values_has_the_right_epsilon():
    for function in (F.layer_norm, torch.layer_norm):
        gradients_of(lambda x, f=function: f(x, (5,)), [1e-3 * X], {"norm": rules.detach_deviation}, layer_norm)


@pytest.mark.parametrize("rule", [rules.detach_deviation, rules.detach_mean_and_deviation])
def test_a_statistic_that_a_tensor_is_divided_by_is_a_constant(rule):
    def function(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1)

    def other_way_round(x):
        return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1) * x

    def divided(x):
        return x / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt()

    for f in (function, other_way_round, divided):
        gradients_of(f, [X], {"normalise": rule}, lambda x: x / deviation(x, 0.1, center=False))


def test_a_denominator_that_is_no_deviation_is_part_of_a_ratio():
    """It keeps its plain gradient, unless a rulebook has a rule for ratios."""
    narrow = lambda b: 2 + b.abs().sum(-1, keepdim=True)  # noqa: E731
    given = [X, X + 1]
    gradients_of(lambda a, b: a / narrow(b), given, {"normalise": rules.detach_deviation}, lambda a, b: a / narrow(b))
    book = {"ratio": rules.detach_deviation}
    gradients_of(lambda a, b: a / narrow(b), given, book, lambda a, b: a / narrow(b).detach())


def test_a_denominator_of_the_same_size_is_a_gate():
    """``u / (1 + exp(-a))`` is ``u * sigmoid(a)``."""
    book = {"gate": rules.detach_gate}
    gradients_of(lambda u, a: u / (1 + torch.exp(-a)), [X, X + 1], book, lambda u, a: u * torch.sigmoid(a).detach())


# -- activations and gates -------------------------------------------------------------------------------------------

POINTS = torch.tensor([[-2.0, -0.5, -0.0, 0.0, 0.3, 4.0]], dtype=torch.float64)


def ratio(f, eps=0.0):
    """``x sg(f(x) / (x + eps))``, nothing at 0."""

    def by_hand(x):
        factor = f(x).detach() / (x.detach() + eps)
        return x * factor.nan_to_num(0.0, 0.0, 0.0) + f(x).detach() - (x * factor.nan_to_num(0.0, 0.0, 0.0)).detach()

    return by_hand


@pytest.mark.parametrize("f", [F.gelu, F.silu, F.relu, torch.tanh, torch.sigmoid], ids=lambda f: f.__name__)
def test_an_activation_hands_on_all_it_gets(f):
    book = dict.fromkeys(("gated", "activation"), rules.activation_ratio)
    gradients_of(f, [POINTS], book, ratio(f))


@pytest.mark.parametrize("name", sorted(ops.of_kind("gated") | ops.of_kind("activation")))
def test_an_activation_is_known_by_the_name_that_torch_calls_it(name):
    places = (F, torch, torch.Tensor, torch.special)
    found = next(f for place in places if (f := getattr(place, name, None)) is not None)
    assert ops.operation(found).name == name


def test_an_activation_hands_on_nothing_at_zero():
    """Where ``f(x) / x`` is infinite, of either sign, or not a number."""
    zeros = torch.tensor([[0.0, -0.0, 1.0]], dtype=torch.float64)
    book = dict.fromkeys(("gated", "activation"), rules.activation_ratio)
    for f in (torch.sigmoid, F.logsigmoid, F.gelu):
        gradients_of(f, [zeros], book, ratio(f))


def test_functions_of_more_than_the_input_keep_their_derivative():
    """An exponent that is the input, or two operands that are: there is no one input to hand all of it to."""
    book = dict.fromkeys(("gated", "activation"), rules.activation_ratio)
    power = lambda x: torch.pow(2.0, x)  # noqa: E731
    gradients_of(power, [X], book, power)
    both = lambda a, b: torch.pow(a.abs() + 1, b)  # noqa: E731
    gradients_of(both, [X, X + 1], {**book, "unknown": rules.activation_ratio}, both)


def test_the_stabiliser_of_the_published_code_is_added_to_the_input():
    near = torch.tensor([[-3e-10, 2e-10, 1.0]], dtype=torch.float64)
    book = dict.fromkeys(("gated", "activation"), rules.stabilised_ratio)
    gradients_of(torch.tanh, [near], book, ratio(torch.tanh, 1e-10))
    gradients_of(F.gelu, [near], book, ratio(F.gelu, 1e-10))


def test_a_gate_made_of_the_tensor_itself_is_a_constant():
    quick = lambda x: x * torch.sigmoid(1.702 * x)  # noqa: E731  # QuickGELU
    gradients_of(quick, [X], {"gated": rules.activation_ratio}, lambda x: x * torch.sigmoid(1.702 * x).detach())
    swapped = lambda x: torch.sigmoid(1.702 * x) * x  # noqa: E731
    gradients_of(swapped, [X], {"gated": rules.activation_ratio}, lambda x: x * torch.sigmoid(1.702 * x).detach())
    gradients_of(lambda x: x * x, [X], {"gated": rules.activation_ratio}, lambda x: x * x.detach())


def test_the_gate_of_a_gated_unit_is_a_constant():
    for f in (lambda a, b: F.silu(a) * b, lambda a, b: b * F.silu(a)):
        gradients_of(f, [X, X + 1], {"gate": rules.detach_gate}, lambda a, b: F.silu(a).detach() * b)


def test_two_factors_that_are_no_gates_share_equally():
    by_hand = lambda a, b: (a * b.detach() + a.detach() * b) / 2 + (a * b).detach() * 0  # noqa: E731
    gradients_of(lambda a, b: a * b, [X, X + 1], {"gate": rules.detach_gate}, by_hand)


def reached(function, inputs, book):
    """How many of the inputs of the last operation relevance still goes to, as the trace knows it."""
    return len(node_of(traced(function, inputs, book)[0]).live)


def test_what_a_rule_cuts_off_is_known_to_the_trace():
    """Two equal factors: each half cuts one, together they cut none."""
    product = lambda a, b: a * b  # noqa: E731
    gated = lambda a, b: F.silu(a) * b  # noqa: E731
    assert reached(product, [X, X + 1], {"gate": rules.detach_gate}) == 2
    assert reached(gated, [X, X + 1], {"gate": rules.detach_gate}) == 1
    assert reached(F.scaled_dot_product_attention, QKV, {"attention": rules.detach_heads}) == 1
    assert reached(attended, QKV, {"mix": rules.detach_heads}) == 1
    assert reached(attended, QKV, {"mix": rules.expose_heads}) == 1


@pytest.mark.parametrize("kind", ["matmul", "gate"])
def test_factors_of_a_product_share_equally(kind):
    f = (lambda a, b: a @ b.mT) if kind == "matmul" else (lambda a, b: a * b)
    gradients_of(f, [X, X + 1], {kind: rules.share_product}, lambda a, b: f(a, b) / 2 + f(a, b).detach() / 2)


def test_each_of_three_factors_gets_a_third():
    f = lambda a, b, c: torch.einsum("bij,bkj,bkl->bil", a, b, c)  # noqa: E731
    gradients_of(f, [X, X + 1, X - 1], {"matmul": rules.share_product, "unknown": rules.share_product},
         lambda *factors: f(*factors) / 3 + f(*factors).detach() * 2 / 3)  # fmt: skip


# -- linear layers and sums ------------------------------------------------------------------------------------------

W, B = drawn(4, 5, seed=8), drawn(4, seed=9)


@pytest.mark.parametrize("rule", [epsilon, functools.partial(gamma, gamma=0.7), z_plus], ids=["epsilon", "gamma", "z+"])
@pytest.mark.parametrize("bias", [None, B], ids=["plain", "biased"])
def test_a_rule_of_a_linear_layer_as_a_derivative(rule, bias):
    """Gradient times input is the relevance that the rule gives, and nothing where the input is 0."""
    x = X.clone()
    x[0, 0, :2] = 0.0
    out, trace = traced(lambda x: F.linear(x, W, bias), [x], {"linear": rules.substitute(rule)})
    assert torch.allclose(out, F.linear(x, W, bias))
    g = drawn(*out.shape, seed=9)
    found = torch.autograd.grad(out, trace.sources[0].tensor, g)[0]
    expected = rule(F.linear, x, W, g * F.linear(x, W, bias), bias)
    assert torch.allclose(found * x, expected, atol=1e-8)
    assert not found[x == 0].any()
    assert torch.isfinite(found).all()


def test_projections_of_an_attention_keep_their_derivative():
    """With queries, keys and values projected, gamma changes the layer before them and none of the projections."""
    torch.manual_seed(0)
    inner, first = nn.MultiheadAttention(4, 2, batch_first=True).double().eval(), nn.Linear(5, 4).double()
    function = lambda x: inner(*[first(x)] * 3, need_weights=False)[0]  # noqa: E731
    rule = rules.substitute(functools.partial(gamma, gamma=100.0))
    out, trace = traced(function, [X], {"linear": rule})
    g = drawn(*out.shape, seed=9)
    found = torch.autograd.grad(out, trace.sources[0].tensor, g)[0]
    h = first(X).detach().requires_grad_()
    behind = torch.autograd.grad(inner(h, h, h, need_weights=False)[0], h, g)[0]
    expected = gamma(F.linear, X, first.weight, behind * h, first.bias, gamma=100.0).detach()
    assert torch.allclose(found * X, expected, atol=1e-7)


def weighed(a, b, constant):
    """Berend et al. 2026, eq. 3 and 4, entry by entry: the share of each summand of ``y = a + b``."""
    y = a + b
    w = [1 + constant * float(z * y > 0) for z in (a, b)]
    below = w[0] * a + w[1] * b
    return [1.0 if y == 0 else wi * y / below for wi in w]


@pytest.mark.parametrize("constant", [0.0, 0.25, 10.0])
def test_a_summand_against_the_sum_counts_for_less(constant):
    branch = drawn(5, 5, seed=4)
    x = X.clone()
    x[1] = 0.0  # the sum is 0, too
    x[0, 0, 0] = 0.0  # it is not

    def block(x):
        return x + x @ branch

    out, trace = traced(block, [x], {"add": rules.residual_gamma(constant)})
    assert torch.allclose(out, block(x))
    g = drawn(*out.shape, seed=9)
    found = torch.autograd.grad(out, trace.sources[0].tensor, g)[0]
    shares = torch.tensor(
        [weighed(a, b, constant) for a, b in zip(x.flatten().tolist(), (x @ branch).flatten().tolist(), strict=True)]
    ).double()
    trunk, side = (shares[:, i].reshape(x.shape) for i in range(2))
    assert torch.allclose(found, g * trunk + (g * side) @ branch.T, atol=1e-10)


def test_sums_that_are_not_residual_keep_their_derivative():
    gradients_of(lambda a, b: a + b, [X, X + 1], {"add": rules.residual_gamma(5.0)}, lambda a, b: a + b)
    gradients_of(lambda a, b: a + b[:, :1], [X, X + 1], {"add": rules.residual_gamma(5.0)}, lambda a, b: a + b[:, :1])


def test_a_residual_sum_in_half_precision_is_computed_in_more():
    """Where both cancel to the last digit of bfloat16, the share is still finite."""
    x = X.bfloat16()
    out, trace = traced(lambda x: x + (-x * 0.996), [x], {"add": rules.residual_gamma(1.0)})
    found = torch.autograd.grad(out.float().sum(), trace.sources[0].tensor)[0]
    assert found.dtype == torch.bfloat16
    assert torch.isfinite(found).all()


def test_rules_say_whether_they_conserve():
    """Read by the ledger: what passes such a rule is lost to nothing but a bias."""
    conserving = {
        rules.detach_heads, rules.detach_deviation, rules.activation_ratio, rules.stabilised_ratio,
        rules.detach_gate, rules.share_product,
    }  # fmt: skip
    assert all(rule.conserves is True for rule in conserving)
    assert rules.residual_gamma(1.0).conserves is True
    for rule in (rules.detach_mean_and_deviation, rules.expose_heads, rules.halve_heads, rules.show_map):
        assert not getattr(rule, "conserves", False)
