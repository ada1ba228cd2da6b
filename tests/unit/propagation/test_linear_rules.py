"""The plain rules of LRP: each against its equation entry by entry, what it conserves, its limits, in a model.

A layer is a matrix here: the output of a linear map at each unit vector gives its column, so that a convolution is
checked by the same loops as a linear layer.
"""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT
from whence.errors import MethodError
from whence.methods.registry import REGISTRY
from whence.propagation.relevance_function import Phase
from whence.propagation.rules.linear import alpha_beta, epsilon, flat, gamma, pull, w_square, z_box, z_plus
from whence.propagation.rules.relevance import RelevanceRules
from whence.tracing.tracer import Trace


def strided(x, w, bias=None):
    return F.conv2d(x, w, bias, stride=2, padding=1)


LAYERS = {"linear": F.linear, "convolution": strided}
SHAPES = {"linear": ((2, 5), (3, 5)), "convolution": ((2, 2, 4, 4), (3, 2, 3, 3))}
seeds = st.integers(0, 9999)
quick = settings(max_examples=8, deadline=None)


def any_shapes(kind, g):
    """Shapes of input and weight; a convolution with a kernel of 1 has outputs that see nothing but padding."""
    rows, inputs, outputs, side, kernel = (int(torch.randint(1, high, (), generator=g)) for high in (4, 6, 4, 5, 4))
    if kind == "linear":
        return (rows, inputs), (outputs, inputs)
    return (rows, inputs, side + 1, side + 2), (outputs, inputs, kernel, kernel)


def drawn(kind, seed, nothing=0.2, shapes=None):
    """A layer with its input, weight, bias and relevance; some entries of each are exactly 0."""
    apply, g = LAYERS[kind], torch.Generator().manual_seed(seed)

    def draw(shape):
        values = torch.randn(shape, generator=g, dtype=torch.float64)
        return values * (torch.rand(shape, generator=g) >= nothing)

    x, w = (draw(shape) for shape in shapes or any_shapes(kind, g))
    return apply, x, w, draw(w.shape[:1]), draw(apply(x, w).shape)


def fixed(kind, nothing=0.2):
    """One layer of each kind."""
    return drawn(kind, 3, nothing, SHAPES[kind])


def dense(apply, x, w):
    """``[outputs, inputs]``: the weights of the layer as a matrix, by the output at each unit vector."""
    sample = x[:1]
    units = torch.eye(sample.numel(), dtype=x.dtype).reshape(-1, *sample.shape[1:])
    return apply(units, w).flatten(1).T


def entry_by_entry(apply, x, w, R, bias, shares):
    """``R_j = sum_i shares_j R_i`` in loops: ``shares`` sees the inputs, weights and bias of one output."""
    matrix, out = dense(apply, x, w), torch.zeros_like(x).flatten(1)
    per_output = torch.zeros(len(matrix), dtype=x.dtype)
    if bias is not None:
        per_output = apply(torch.zeros_like(x[:1]), w, bias).flatten()
    there = dense(apply, x, torch.ones_like(w)) != 0  # which inputs an output sees at all
    for n, inputs in enumerate(x.flatten(1).tolist()):
        for i, weights in enumerate(matrix.tolist()):
            seen = [j for j in range(len(inputs)) if bool(there[i, j])]
            part = shares([inputs[j] for j in seen], [weights[j] for j in seen], float(per_output[i]))
            for j, share in zip(seen, part, strict=True):
                out[n, j] += share * float(R.flatten(1)[n, i])
    return out.reshape(x.shape)


def by(contributions, absorbed=0.0, eps=0.0):
    """Shares in proportion to contributions; a bias absorbs; nothing where there is nothing to share by."""
    total = sum(contributions) + absorbed
    total += eps if total >= 0 else -eps
    return [c / total if total else 0.0 for c in contributions]


def products(xs, ws):
    return [x * w for x, w in zip(xs, ws, strict=True)]


def by_epsilon(xs, ws, b, eps=1e-6):
    return by(products(xs, ws), b, eps)


def by_gamma(xs, ws, b, gamma=0.25, eps=1e-6):
    terms = products(xs, ws)
    sign = (sum(terms) + b > 0) - (sum(terms) + b < 0)
    if not sign:
        return [0.0] * len(xs)
    more = lambda c: c * (1 + gamma) if c * sign > 0 else c  # noqa: E731  # one line
    return by([more(c) for c in terms], more(b), eps)


def of_sign(sign, eps):
    """Shares by the contributions of one sign, with the stabiliser of the published code (``+ eps``, no sign)."""

    def shares(xs, ws, b):
        terms = [c if c * sign > 0 else 0.0 for c in products(xs, ws)]
        total = sum(terms) + (b if b * sign > 0 else 0.0)
        return [c / (total + eps) if total else 0.0 for c in terms]

    return shares


def by_alpha_beta(xs, ws, b, alpha=2.0, eps=1e-9):
    pairs = zip(of_sign(1, eps)(xs, ws, b), of_sign(-1, eps)(xs, ws, b), strict=True)
    return [alpha * p - (alpha - 1) * n for p, n in pairs]


def by_box(xs, ws, b, low=-9.0, high=9.0):
    return by([x * w - (low if w > 0 else high) * w for x, w in zip(xs, ws, strict=True)], eps=1e-9)


RULES = {
    "epsilon": (epsilon, by_epsilon),
    "epsilon, large": (functools.partial(epsilon, eps=0.5), functools.partial(by_epsilon, eps=0.5)),
    "gamma": (gamma, by_gamma),
    "gamma, large": (functools.partial(gamma, gamma=100.0), functools.partial(by_gamma, gamma=100.0)),
    "z_plus": (z_plus, of_sign(1, 1e-9)),
    "alpha_beta": (alpha_beta, by_alpha_beta),
    "alpha_beta, 1.5": (functools.partial(alpha_beta, alpha=1.5), functools.partial(by_alpha_beta, alpha=1.5)),
    "z_box": (functools.partial(z_box, low=-9.0, high=9.0), by_box),
    "w_square": (w_square, lambda xs, ws, b: by([w * w for w in ws])),
    "flat": (flat, lambda xs, ws, b: by([1.0] * len(xs))),
}
#: rules that pass on everything: without a bias, a stabiliser, or outputs that have nothing to share by
CONSERVING = {
    "epsilon": functools.partial(epsilon, eps=0.0),
    "gamma": functools.partial(gamma, eps=0.0),
    "z_plus": functools.partial(z_plus, eps=0.0),
    "alpha_beta": functools.partial(alpha_beta, eps=0.0),
    "z_box, bounds": functools.partial(z_box, low=-9.0, high=9.0, eps=0.0),
    "w_square": w_square,
    "flat": flat,
}


# -- the rules alone -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", RULES)
@given(seed=seeds)
@quick
def test_a_rule_is_its_equation_entry_by_entry(name, kind, biased, seed):
    rule, shares = RULES[name]
    apply, x, w, bias, R = drawn(kind, seed)
    found = rule(apply, x, w, R, bias if biased else None)
    want = entry_by_entry(apply, x, w, R, bias if biased else None, shares)
    assert torch.isfinite(found).all()
    assert float((found - want).abs().max()) <= EXACT * float(max(want.abs().max(), R.abs().max()))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", CONSERVING)
@given(seed=seeds)
@quick
def test_a_rule_passes_on_all_it_is_given(name, kind, seed):
    apply, x, w, _, R = drawn(kind, seed, nothing=0.0)
    z, size = apply(x, w), apply(x.abs(), w.abs())
    R = R * (size - z.abs() > 1e-3) * (z.abs() > 1e-3)  # outputs with contributions of both signs
    found = CONSERVING[name](apply, x, w, R)
    assert torch.allclose(found.flatten(1).sum(1), R.flatten(1).sum(1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", LAYERS)
@given(seed=seeds)
@quick
def test_gamma_has_the_epsilon_rule_and_the_contributions_of_the_outputs_sign_as_its_limits(kind, seed):
    apply, x, w, bias, R = drawn(kind, seed, nothing=0.0)
    z = apply(x, w, bias)
    close = functools.partial(torch.allclose, rtol=1e-5, atol=1e-5 * float(R.abs().max()))
    R = R * (z.abs() > 1e-2)
    assert close(gamma(apply, x, w, R, bias, gamma=0.0), epsilon(apply, x, w, R, bias))
    for sign in (1, -1):
        of = R * (z * sign > 0)
        assert close(gamma(apply, x, w, of, bias, gamma=1e7), z_plus(apply, x, sign * w, of, sign * bias))


@given(seed=seeds)
@quick
def test_gamma_is_the_papers_rule_for_inputs_that_are_not_negative(seed):
    _, x, w, bias, R = drawn("linear", seed)
    x = x.abs()
    R = R * (F.linear(x, w, bias) > 0)  # behind a rectifier nothing else has relevance
    stronger, b = w + 0.3 * w.clamp(min=0), bias + 0.3 * bias.clamp(min=0)
    z = F.linear(x, stronger, b)
    want = x * ((R / (z + torch.where(z < 0, -1e-6, 1e-6))) @ stronger)
    assert torch.allclose(gamma(F.linear, x, w, R, bias, gamma=0.3), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", LAYERS)
@given(seed=seeds)
@quick
def test_alpha_1_is_z_plus(kind, seed):
    apply, x, w, bias, R = drawn(kind, seed)
    for b in (None, bias):
        assert torch.allclose(alpha_beta(apply, x, w, R, b, alpha=1.0), z_plus(apply, x, w, R, b), atol=1e-7)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", {**RULES, **CONSERVING})
def test_nothing_comes_of_nothing(name, kind):
    rule = CONSERVING.get(name) or RULES[name][0]
    apply, x, w, bias, R = fixed(kind)
    for a, b in ((0 * x, w), (x, 0 * w), (0 * x, 0 * w)):
        for given_bias in (None, 0 * bias):
            assert torch.isfinite(rule(apply, a, b, R, given_bias)).all()
    assert not rule(apply, x, w, 0 * R).any()


def test_relevance_that_cannot_be_shared_is_not_invented():
    nothing, w, R = torch.zeros(1, 4), torch.randn(3, 4), torch.ones(1, 3)
    for rule in (epsilon, gamma, z_plus, alpha_beta):
        assert not rule(F.linear, nothing, w, R).any()
    assert not w_square(F.linear, nothing, 0 * w, R).any()
    assert torch.equal(flat(F.linear, nothing, 0 * w, R), torch.full((1, 4), 0.75))  # it asks neither input nor weight


def test_gamma_passes_nothing_on_where_contributions_cancel():
    x, w = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, -2.0], [2.0, -1.0]])
    found = gamma(F.linear, x, w, torch.tensor([[1.0, 0.0]]))
    assert not found.any()
    assert torch.allclose(gamma(F.linear, x, w, torch.tensor([[1.0, 1.0]])).sum(), torch.tensor(1.0))


def test_the_stabiliser_of_epsilon_has_the_sign_of_the_output_unless_told_otherwise():
    x, w, R = torch.tensor([[1.0]]), torch.tensor([[-1.0]]), torch.tensor([[1.0]])
    assert float(epsilon(F.linear, x, w, R, eps=0.5)) == pytest.approx(1 / 1.5)
    assert float(epsilon(F.linear, x, w, R, eps=0.5, signed=False)) == pytest.approx(1 / 0.5)


def test_z_box_takes_bounds_per_channel_or_each_samples_own():
    apply, x, w, _, R = fixed("convolution", nothing=0.0)
    own = torch.cat([z_box(apply, x[n : n + 1], w, R[n : n + 1], low=x[n].min(), high=x[n].max()) for n in (0, 1)])
    assert torch.allclose(z_box(apply, x, w, R), own)
    low, high = (torch.stack([x[:, c].amin() for c in (0, 1)]), torch.stack([x[:, c].amax() for c in (0, 1)]))
    found = z_box(apply, x, w, R, low=low[:, None, None], high=high[:, None, None])
    assert torch.allclose(found.sum((1, 2, 3)), R.sum((1, 2, 3)), rtol=1e-6)
    assert not torch.allclose(found, own)


def test_z_box_refuses_bounds_that_do_not_hold():
    apply, x, w, _, R = fixed("convolution")
    with pytest.raises(MethodError, match=r"the input runs from .* to .*, the bounds from 0 to 1\. Give the bounds"):
        z_box(apply, x, w, R, low=0.0, high=1.0)


# -- in a rulebook ---------------------------------------------------------------------------------------------------


def propagated(rule, function, x, R, **options):
    """Relevance of the input of one operation in a trace."""
    rules = RelevanceRules(Phase())
    book = rules.composite(dict.fromkeys(("linear", "convolution"), rules.layer(rule, **options)))
    with Trace(book.rules, len(x), book.maps, book.fan_out) as trace:
        out = function(trace.input("x", x))
    rules.phase.relevance = True
    return torch.autograd.grad(out, trace.sources[0].tensor, R)[0]


@pytest.mark.parametrize("name", RULES)
def test_a_traced_layer_follows_the_rule(name):
    rule = RULES[name][0]
    _, x, w, bias, R = fixed("linear")
    want, free = rule(F.linear, x, w, R, bias), rule(F.linear, x, w, R)
    layers = {
        "linear": lambda t: F.linear(t, w, bias),
        "addmm": lambda t: torch.addmm(bias, t, w.T),
        "module": nn.utils.skip_init(nn.Linear, 5, 3, dtype=torch.float64),
    }
    layers["module"].load_state_dict({"weight": w, "bias": bias})
    for layer in layers.values():
        assert torch.allclose(propagated(rule, layer, x, R), want)
        assert torch.allclose(propagated(rule, layer, x, R, absorb=False), free)
    for layer in (lambda t: t @ w.T, lambda t: (w @ t.T).T, lambda t: torch.einsum("ni,oi->no", t, w)):
        assert torch.allclose(propagated(rule, layer, x, R), free)
    apply, x, w, bias, R = fixed("convolution")
    found = propagated(rule, lambda t: F.conv2d(t, w, bias, stride=2, padding=1), x, R)
    assert torch.allclose(found, rule(apply, x, w, R, bias))


def test_options_reach_the_rule_and_the_coverage_has_its_name():
    _, x, w, bias, R = fixed("linear")
    found = propagated(gamma, lambda t: F.linear(t, w, bias), x, R, gamma=3.0)
    assert torch.allclose(found, gamma(F.linear, x, w, R, bias, gamma=3.0))
    rules = RelevanceRules()
    assert rules.layer(gamma).name == "gamma"
    assert rules.layer(functools.partial(gamma, gamma=3.0)).name == "layer"


def test_what_the_forward_has_made_is_not_made_again(monkeypatch):
    _, x, w, bias, R = fixed("linear")
    calls = []
    true = F.linear

    def counted(*args):
        calls.append(args)
        return true(*args)

    monkeypatch.setattr(F, "linear", counted)
    for rule, products in ((epsilon, 0), (gamma, 1), (z_plus, 1), (alpha_beta, 1)):
        rules = RelevanceRules()
        with Trace({"linear": rules.layer(rule)}, len(x)) as trace:
            out = true(trace.input("x", x), w, bias)
        rules.phase.relevance = True
        calls.clear()
        out.backward(R)
        assert len(calls) == products, rule


def test_a_vjp_is_of_the_product_that_was_asked_for():
    _, x, w, bias, R = fixed("linear")
    z, back = pull(F.linear, x, w, bias)
    assert torch.equal(z, F.linear(x, w, bias))
    assert torch.equal(back(R), R @ w)


# -- methods of one's own --------------------------------------------------------------------------------------------


@pytest.fixture
def own():
    """Registers methods for one test: name -> what changes in the composite."""
    before = dict(REGISTRY)

    def register(name, changes=lambda rules: {}):
        class Own(whence.InputLevel):
            """A composite."""

            def rulebook(self):
                rules = RelevanceRules()
                return rules.composite(changes(rules))

        whence.method(name)(Own)

    yield register
    REGISTRY.clear()
    REGISTRY.update(before)


def rectifiers(bias=False):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16, bias=bias), nn.ReLU(), nn.Linear(16, 16, bias=bias), nn.ReLU(), nn.Linear(16, 3, bias=bias)
    ).double()


def test_epsilon_everywhere_is_gradient_times_input_over_the_output_in_a_rectifier_network(own):
    own("plain", lambda rules: {"linear": rules.layer(epsilon, eps=0.0)})
    model, x = rectifiers(), torch.randn(4, 6, dtype=torch.float64)
    found = whence.explain(model, x, "plain", target=1)
    gradient = whence.explain(model, x, "gradient-x-input", target=1)
    assert torch.allclose(found.scores, gradient.scores / model(x)[:, 1:2].detach(), rtol=1e-9)
    assert torch.allclose(found.scores.sum(1), torch.ones(4, dtype=torch.float64))


def test_biases_absorb_their_share_and_the_books_say_so(own):
    own("plain", lambda rules: {"linear": rules.layer(epsilon, eps=0.0)})
    own("free", lambda rules: {"linear": rules.layer(z_plus, absorb=False)})
    model, x = rectifiers(bias=True), torch.randn(4, 6, dtype=torch.float64)
    gradient = whence.explain(model, x, "gradient-x-input", target=1)
    found = whence.explain(model, x, "plain", target=1)
    assert torch.allclose(found.scores, gradient.scores / model(x)[:, 1:2].detach(), rtol=1e-9)
    absorbed = sum(table.sum(1) for table in found.ledger.absorbed.values())
    assert torch.allclose(found.scores.sum(1) + absorbed, torch.ones(4, dtype=torch.float64))
    assert float(absorbed.abs().min()) > 1e-3
    assert torch.allclose(whence.explain(model, x, "free", target=1).scores.sum(1), torch.ones(4, dtype=torch.float64))


def test_the_first_layer_may_have_a_rule_of_its_own(own):
    own("first", lambda rules: {"linear": rules.first(rules.layer(flat), rules.layer(epsilon))})
    own("all", lambda rules: {"linear": rules.layer(epsilon)})
    model, x = rectifiers(), torch.randn(4, 2, 3, dtype=torch.float64)
    hidden = whence.explain(model[1:], model[0](x.flatten(1)).detach(), "all", target=1).scores
    e = whence.explain(nn.Sequential(nn.Flatten(), *model), x, "first", target=1, at="pixel")
    each = flat(F.linear, x.flatten(1), model[0].weight.detach(), hidden)
    assert torch.allclose(e.scores, each.reshape(x.shape).sum(-1))
    assert e.coverage.ruled["linear"] == "flat or epsilon"


def test_a_weighted_sum_whose_weight_is_not_at_hand_follows_eq_1(own):
    own("gammas", lambda rules: {"linear": rules.layer(gamma)})
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6).double().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    x = torch.randn(4, 6, dtype=torch.float64)
    found = whence.explain(norm, x, "gammas", target=1).scores
    want = torch.zeros(4, 6, dtype=torch.float64)
    want[:, 1] = (x[:, 1] * (norm.running_var[1] + norm.eps) ** -0.5) / norm(x)[:, 1].detach()
    assert torch.allclose(found, want, rtol=1e-6)


COMPOSITES = {
    "gamma and flat": lambda rules: {"linear": rules.layer(gamma), "convolution": rules.layer(flat)},
    "gamma and z_box": lambda rules: {"linear": rules.layer(gamma), "convolution": rules.layer(z_box)},
    "alpha_beta and w_square": lambda rules: {
        "linear": rules.layer(alpha_beta, alpha=1.5), "convolution": rules.layer(w_square)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_on_a_vision_transformer(own, name):
    own(name, COMPOSITES[name])
    model, x = tiny.vit().double(), tiny.pixels().double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    e = whence.explain(model, x, name, at="pixel")
    assert e.scores.shape == (3, 144)
    assert torch.isfinite(e.scores).all()
    assert float(e.ledger.imbalance.abs().max()) < 1e-9 * float(e.ledger.sums.abs().max())
    assert e.coverage.share == 1.0
    assert set(e.coverage.ruled["linear"].split(", ")) == {name.split(" and ")[0]}
    assert e.coverage.ruled["conv2d"] == name.split(" and ")[1]
    alone = torch.cat([whence.explain(model, x[n : n + 1], name, at="pixel").scores for n in range(3)])
    assert torch.allclose(e.scores, alone, rtol=1e-9, atol=1e-12)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    eager = whence.explain(tiny.vit(implementation="eager").double(), x, name, at="pixel")  # its softmax is in float32
    assert torch.allclose(e.scores, eager.scores, rtol=1e-3, atol=1e-4 * float(e.scores.abs().max()))


def test_padding_scores_nothing_and_changes_nothing(own):
    own("gammas", lambda rules: {"linear": rules.layer(gamma)})
    model, batch = tiny.bert().double(), tiny.padded([7, 4])
    e = whence.explain(model, batch, "gammas")
    alone = whence.explain(model, {name: value[1:, :4] for name, value in batch.items()}, "gammas")
    assert not e.scores[1, 4:].any()
    assert torch.allclose(e.scores[1, :4], alone.scores[0], rtol=1e-7, atol=1e-10)
