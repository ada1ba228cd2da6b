"""Recognition: norms, softmax, activations, products, sums and attentions are known by what they compute."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import close
from whence.tracing.node import walk
from whence.tracing.op_call import Call
from whence.tracing.recognition.contraction import free, summed, terms
from whence.tracing.recognition.elementwise import is_elementwise, is_gated, is_identity
from whence.tracing.recognition.softmax import is_map_along, sums_to_one
from whence.tracing.tensor_info import node_of
from whence.tracing.tracer import Trace

X = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WEIGHT = nn.Parameter(torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


def made(function, value=X):
    """The node of a function of the input."""
    with Trace({}, batch=2) as trace:
        return node_of(function(trace.input("x", value)))


# -- norms ---------------------------------------------------------------------------------------------------------


def mean(x):
    return x.mean(-1, keepdim=True)


NORMS = {
    "layer norm": lambda x: (x - mean(x)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5),
    "E[x²] - E[x]²": lambda x: (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(x) ** 2 + 1e-5),
    "root mean square": lambda x: x * torch.rsqrt(mean(x.pow(2)) + 1e-6),
    "by a power": lambda x: x * torch.pow(mean(x * x) + 1e-6, -0.5),
    "commuted": lambda x: torch.rsqrt(mean(x * x) + 1e-6) * x,
    "einsum": lambda x: x / (torch.einsum("bnd,bnd->bn", x, x)[..., None] / 8 + 1e-6).sqrt(),
    "matmul": lambda x: x / ((x.unsqueeze(-2) @ x.unsqueeze(-1)).squeeze(-1) + 1e-6).sqrt(),
    "length": lambda x: x / x.norm(dim=-1, keepdim=True),
    "clamped length": lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
    "largest": lambda x: x / x.abs().amax(-1, keepdim=True),
    "sum of sizes": lambda x: x / x.abs().sum(-1, keepdim=True),
    "in steps": lambda x: x / torch.exp(0.5 * torch.log(mean(x * x) + 1e-6)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_quotient_by_a_deviation_is_a_norm(name):
    node = made(NORMS[name])
    assert node.kind == "normalise"
    assert any(flow.moved_from().deviation for flow in node.flows)


NO_NORMS = {
    "a sum": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "a square": lambda x: x / mean(x * x),
    "a sum of entries": lambda x: x / x.sum(-1, keepdim=True),
    "a sum of probabilities": lambda x: x.softmax(-1)[..., 0] / x.softmax(-1)[..., :2].sum(-1).clamp(min=1e-9),
    "a weighted mean": lambda x: x / mean(x @ WEIGHT),
    "a number of the token": lambda x: x / x[..., :1].exp(),
}


@pytest.mark.parametrize("name", NO_NORMS)
def test_a_quotient_by_something_else_is_no_norm(name):
    assert not any(flow.moved_from().deviation for flow in made(NO_NORMS[name]).flows)


def test_a_product_with_a_function_that_does_not_grow_with_x_is_a_gate():
    for function in (torch.sigmoid, torch.tanh, torch.square):
        assert made(lambda x, f=function: x * f(mean(x))).kind == "gate"


def test_an_axis_of_size_one_has_a_norm_too():
    assert made(NORMS["root mean square"], X[..., :1]).kind == "normalise"
    assert made(lambda x: x - mean(x) * 0.5, X[..., :1]).kind != "center"


@pytest.mark.parametrize("function", [
    lambda x: x - mean(x), lambda x: x - x.sum(-1, keepdim=True) / 8, lambda x: -mean(x) + x,
    lambda x: x - x.amax(-1, keepdim=True), lambda x: x - x.max(-1, keepdim=True).values,
    lambda x: x - x.mean(-1)[..., None], lambda x: x - x.mean(1, keepdim=True),
    lambda x: torch.add(x, mean(x), alpha=-1), lambda x: 2 * x - mean(2 * x),
])  # fmt: skip
def test_a_tensor_less_its_own_mean_or_maximum_is_centred(function):
    assert made(function).kind == "center"


@pytest.mark.parametrize("function", [
    lambda x: x + mean(x), lambda x: x - 0.5 * mean(x), lambda x: x - 2 * mean(x), lambda x: x - mean(x.abs()),
    lambda x: x - mean(x @ WEIGHT),
])  # fmt: skip
def test_what_does_not_stay_when_a_number_is_added_is_not_centred(function):
    assert made(function).kind != "center"


# -- softmax -------------------------------------------------------------------------------------------------------

MASK = torch.tensor([1.0, 0.0, 1.0]).repeat(9)[: X.shape[-1]].to(X)
SOFTMAX = {
    "exp over sum": lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
    "one exp": lambda s: (e := s.exp()) / e.sum(-1, keepdim=True),
    "times reciprocal": lambda s: (e := s.exp()) * e.sum(-1, keepdim=True).reciprocal(),
    "less the maximum": lambda s: (e := (s - s.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True),
    "less a detached maximum": lambda s: (e := (s - s.detach().amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True),
    "logarithm": lambda s: s.log_softmax(-1).exp(),
    "logsumexp": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "base two": lambda s: (e := torch.exp2(s * math.log2(math.e))) / e.sum(-1, keepdim=True),
    "over tokens": lambda s: (e := s.exp()) / e.sum(1, keepdim=True),
    "with a sink": lambda s: (e := s.exp()) / (1 + e.sum(-1, keepdim=True)),
    "masked": lambda s: (e := s.exp() * MASK) / e.sum(-1, keepdim=True),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_something_positive_over_its_sum_is_a_softmax(name):
    node = made(SOFTMAX[name])
    assert node.kind == "softmax"
    assert node.softmax == node.axes[1 if name == "over tokens" else -1]


@pytest.mark.parametrize("function", [
    lambda s: (e := s.exp()) / (2 * e.sum(-1, keepdim=True)), lambda s: (e := s.exp()) / e.sum(-1, keepdim=True).sqrt(),
    lambda s: (e := s.exp()) / (s.amax(-1, keepdim=True) ** 2 + e.sum(-1, keepdim=True)),
    lambda s: s / s.sum(-1, keepdim=True), lambda s: s.exp() / 3,
])  # fmt: skip
def test_what_does_not_sum_to_one_is_no_softmax(function):
    assert made(function).kind != "softmax"


def test_the_axis_of_probabilities_is_the_one_along_which_they_sum_to_one():
    a = X.softmax(1)
    assert sums_to_one(a) == -2
    assert sums_to_one(a * 2) is None
    assert sums_to_one(-a) is None
    masked = X.softmax(-1)
    masked[:, 0] = 0
    assert is_map_along(masked, -1)
    assert not is_map_along(torch.zeros(2, 3), -1)


# -- activations ---------------------------------------------------------------------------------------------------

GATED = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu by where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "relu by a mask": lambda x: x * (x > 0),
    "relu by a bound": lambda x: torch.clamp(x, min=0),
    "relu by a maximum": lambda x: torch.maximum(x, torch.zeros(())),
    "relu by its size": lambda x: (x + x.abs()) / 2,
    "leaky relu": lambda x: torch.where(x > 0, x, 0.1 * x),
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x)),
}
OTHER = {
    "tanh": lambda x: 2 * torch.sigmoid(2 * x) - 1,
    "tanh by exponentials": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "softplus": lambda x: torch.log(1 + torch.exp(x)),
    "clipped": lambda x: torch.clamp(x, 0.5),
}


def activation(function):
    """The node of an activation, without a constant factor."""
    node = made(lambda x: function(x @ WEIGHT))
    while node.kind == "scale":
        (node,) = node.flows
    return node


@pytest.mark.parametrize("name", GATED)
def test_a_function_that_is_zero_at_zero_and_grows_is_gated(name):
    assert activation(GATED[name]).kind == "gated"


@pytest.mark.parametrize("name", OTHER)
def test_a_function_that_is_bounded_or_not_zero_at_zero_is_not_gated(name):
    assert activation(OTHER[name]).kind in ("activation", "extreme")


def test_functions_are_told_by_their_values():
    assert is_gated(F.gelu, X)
    assert is_gated(torch.relu, X)
    assert not is_gated(torch.tanh, X)
    assert not is_gated(F.softplus, X)
    assert is_identity(lambda x: x.clamp(-1e9, 1e9), X)
    assert not is_identity(torch.relu, X)
    assert is_elementwise(torch.erf, X)
    assert not is_elementwise(lambda x: x.cumsum(-1), X)
    assert not is_elementwise(lambda x: x - mean(x), X)


def test_steps_of_one_function_have_its_argument_as_their_root():
    with Trace({}, batch=2) as trace:
        y = trace.input("x", X) @ WEIGHT
        a = torch.sigmoid(2 * y)
        mask = y > 0
        other = torch.sigmoid(y @ WEIGHT)
    assert node_of(a).root is node_of(y)
    assert node_of(mask).root is node_of(y)
    assert node_of(other).root is not node_of(y)


@pytest.mark.parametrize("function", [
    lambda g, u: F.silu(g) * u, lambda g, u: u * F.silu(g), lambda g, u: (u * g) * torch.sigmoid(g),
    lambda g, u: torch.sigmoid(g) * (g * u), lambda g, u: u * g / (1 + torch.exp(-g)),
])  # fmt: skip
def test_factors_of_one_gate_are_joined(function):
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        g, u = x @ WEIGHT, x @ WEIGHT.mT
        node = node_of(function(g, u))
    assert node.kind == "gate"
    assert {flow.root.seq for flow in node.flows} == {node_of(g).seq, node_of(u).seq}
    assert {flow.kind for flow in node.flows} == {"gated", "linear"}


# -- products ------------------------------------------------------------------------------------------------------

Q, K = torch.rand(2, 3, 4), torch.rand(2, 5, 4)
CONTRACTIONS = {  # the call: dimensions summed over, and free ones, of both operands
    "matmul": (torch.matmul, (Q, K.mT), ([2], [1]), ([1], [2])),
    "bmm": (torch.bmm, (Q, K.mT), ([2], [1]), ([1], [2])),
    "matmul of a vector": (torch.matmul, (Q, Q[0, 0]), ([2], [0]), ([0, 1], [])),
    "linear": (F.linear, (Q, K[0]), ([2], [1]), ([0, 1], [0])),
    "inner": (torch.inner, (Q, K), ([2], [2]), ([0, 1], [0, 1])),
    "tensordot": (torch.tensordot, (Q, K, ([-1], [-1])), ([2], [2]), ([0, 1], [0, 1])),
    "tensordot by number": (torch.tensordot, (Q, Q[0].mT, 1), ([2], [0]), ([0, 1], [1])),
    "einsum": (torch.einsum, ("bqd,bkd->bqk", Q, K), ([2], [2]), ([1], [1])),
    "einsum without an arrow": (torch.einsum, ("ij,jk", Q[0], K[0].mT), ([1], [0]), ([0], [1])),
    "einsum with dots": (torch.einsum, ("...qd,...kd->...qk", Q, K), ([2], [2]), ([1], [1])),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_product_has_the_letters_of_its_einsum(name):
    func, args, over, left = CONTRACTIONS[name]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    call = Call(func.__name__, "", func, args, {}, None, tensors, [None] * 2, [])
    found = terms(call)
    close(torch.einsum(f"{found[0][0]},{found[0][1]}->{found[1]}", *tensors), func(*args), 1e-6)
    assert ([summed(found, i) for i in (0, 1)], [free(found, i) for i in (0, 1)]) == ([*over], [*left])


ATTENTIONS = {
    "matmul": lambda a, v: a @ v,
    "transposed": lambda a, v: (v.mT @ a.mT).mT,
    "einsum": lambda a, v: torch.einsum("bqk,bkd->bqd", a, v),
    "einsum of the transposed map": lambda a, v: torch.einsum("bdk,bkq->bqd", v.mT, a.mT),
    "broadcast": lambda a, v: (a.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2),
    "blocks of queries": lambda a, v: torch.cat([a[:, :2] @ v, a[:, 2:] @ v], 1),
    "blocks of keys": lambda a, v: a[:, :, :2] @ v[:, :2] + a[:, :, 2:] @ v[:, 2:],
    "blocks of features": lambda a, v: torch.cat([a @ v[..., :4], a @ v[..., 4:]], -1),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_is_one_record_of_queries_and_keys(name):
    with Trace({}, batch=2, maps=True) as trace:
        x = trace.input("x", X)
        a = torch.softmax(x @ WEIGHT @ x.mT, -1)
        ATTENTIONS[name](a, x @ WEIGHT)
    (record,) = trace.attentions
    assert record.shape == (1, 5, 5)
    close(record.map()[:, 0], a)


@pytest.mark.parametrize("join", ["stack", "cat"])
def test_heads_of_a_loop_are_one_attention(join):
    with Trace({}, batch=2, maps=True) as trace:
        x = trace.input("x", X)
        q, k, v = (x @ WEIGHT).chunk(2, -1), (x @ WEIGHT.mT).chunk(2, -1), (x @ WEIGHT).chunk(2, -1)
        heads = [torch.softmax(q[i] @ k[i].mT, -1) @ v[i] for i in (0, 1)]
        torch.stack(heads, 1) if join == "stack" else torch.cat(heads, -1)
    (record,) = trace.attentions
    assert record.shape == (2, 5, 5)
    for i in (0, 1):
        close(record.map()[:, i], torch.softmax(q[i] @ k[i].mT, -1))


# -- sums ----------------------------------------------------------------------------------------------------------

SUMS = {
    "usual": lambda x, f: x + f,
    "commuted": lambda x, f: f + x,
    "alpha": lambda x, f: torch.add(x, f, alpha=1),
    "difference": lambda x, f: x - (-f),
    "copy": lambda x, f: x.clone() + f,
    "multiples": lambda x, f: (2 * x + 2 * f) / 2,
    "stack": lambda x, f: torch.stack([x, f]).sum(0),
    "mean": lambda x, f: torch.stack([x, f]).mean(0) * 2,
    "layout": lambda x, f: (x.mT + f.mT).mT,
    "einsum": lambda x, f: torch.einsum("sbnd->bnd", torch.stack([x, f])),
    "zero": lambda x, f: (x + 0) + f,
    "in place": lambda x, f: f.clone().add_(x),
}


def summands(function):
    """The residual additions of a function of ``x`` and a branch of it, and the nodes of both."""
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X) @ WEIGHT
        f = torch.tanh(x @ WEIGHT)
        y = function(x, f)
        return trace.residuals, node_of(x), node_of(f), y


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_of_a_tensor_and_its_branch_is_one_residual_addition(name):
    residuals, x, f, y = summands(SUMS[name])
    assert len(residuals) == 1
    assert node_of(residuals[0].trunk).layout() is x.layout()
    assert node_of(residuals[0].branch).layout().moved_from().name in (f.name, "clone")
    assert node_of(residuals[0].output).layout() is node_of(y).layout()


def rotated(x, _):
    """Rotary embedding."""
    angle = torch.arange(5, dtype=x.dtype)[:, None] * torch.ones(8, dtype=x.dtype)
    return x * angle.cos() + torch.cat([-x[..., 4:], x[..., :4]], -1) * angle.sin()


@pytest.mark.parametrize("function", [
    rotated, lambda x, f: x + 0.3 * x, lambda x, f: f - x, lambda x, f: f + torch.sigmoid(WEIGHT[0]) * f,
    lambda x, f: x + x, lambda x, f: x * f, lambda x, f: torch.cat([x, f], 1),
])  # fmt: skip
def test_what_is_no_sum_of_a_tensor_and_its_branch_is_no_residual_addition(function):
    residuals, *_ = summands(function)
    assert not residuals


def branch(x):
    return torch.tanh(x @ WEIGHT)


@pytest.mark.parametrize("function", [
    lambda x, other: x - torch.maximum(x, other),  # a running maximum (RWKV)
    lambda x, other: (y := x.sum(-1, keepdim=True)) - y.mean(-1, keepdim=True),  # of one entry
    lambda x, other: x[:, :2] + branch(x[:, 2:4]),  # some tokens, and a function of others
    lambda x, other: torch.cat([x[:, :2], other[:, 2:]], 1) + branch(other),
])  # fmt: skip
def test_differences_and_sums_with_other_slices_are_no_residual_additions(function):
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        function(x @ WEIGHT, x @ WEIGHT.T)
        assert not trace.residuals


@pytest.mark.parametrize("function", [
    lambda x: x[:, 1:] + branch(x[:, 1:]),
    lambda x: branch(x[:, 1:]) + x[:, 1:],
    lambda x: torch.cat([first := branch(x[:, :2]), rest := x[:, 2:]], 1) + branch(torch.cat([rest, first], 1)),
])  # fmt: skip
def test_a_sum_of_slices_and_their_branch_is_a_residual_addition(function):
    with Trace({}, batch=2) as trace:
        output = function(trace.input("x", X) @ WEIGHT)
        (residual,) = trace.residuals
        assert node_of(residual.output) is node_of(output)


def test_attention_in_a_branch_of_slices_is_not_that_of_a_block():
    """No tensor holds all that enters the block: slices hold what the branch reads, or what it is added to."""
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X) @ WEIGHT
        y = x[:, 1:]
        assert x[:, 1:] + F.scaled_dot_product_attention(y @ WEIGHT, y @ WEIGHT, y @ WEIGHT) is not None
        (residual,) = trace.residuals
        assert len(trace.attentions) == 1
        assert not residual.attentions


def test_a_multiple_of_a_branch_is_still_a_branch():
    residuals, x, *_ = summands(lambda x, f: x + 0.5 * f)
    assert len(residuals) == 1
    assert node_of(residuals[0].trunk) is x


@pytest.mark.parametrize("zeros", [torch.zeros(8, 8, dtype=X.dtype), 0])
def test_a_term_that_is_multiplied_by_zeros_stays_part_of_its_sum(zeros):
    """As in the first chunk of a recurrence (Qwen3-Next): its operations are listed, although the state is empty."""

    def run(x):
        read = (x @ WEIGHT) * torch.sigmoid(x @ WEIGHT.T)
        return x @ WEIGHT.T - (read @ zeros if isinstance(zeros, torch.Tensor) else read * zeros)

    kinds = [node.kind for node in walk([made(run)], lambda node: node.live)]
    assert kinds.count("gate") == 1


def test_a_product_of_a_map_and_its_inverse_is_no_attention():
    """As in the pseudo-inverse of Nyströmformer: what a map reads does not depend on the map itself."""
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X) @ WEIGHT
        A = torch.softmax(x @ x.mT, -1)
        inverse = A.mT / A.sum(-2).amax(-1)[:, None, None]
        y = inverse @ (7 * torch.eye(5, dtype=X.dtype) - A @ inverse)
        assert not trace.attentions
        assert (A @ (y @ x)) is not None
        assert not trace.attentions
        assert (A @ (A @ x)) is not None  # two hops
        assert len(trace.attentions) == 2


# -- coverage ------------------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A step between an embedding and a classifier."""

    def __init__(self, step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.step, self.head = nn.Embedding(60, 8), step, nn.Linear(8, 3)

    def forward(self, input_ids):
        x = self.step(self.embed(input_ids))
        return self.head((x[0] if isinstance(x, tuple) else x).mean(1))


class Pair(torch.autograd.Function):
    """An opaque kernel with two outputs."""

    @staticmethod
    def forward(ctx, x):
        return (x * 2).round(decimals=9), x.sum().round(decimals=9)

    @staticmethod
    def backward(ctx, g, _):
        return g * 2


def covered(step):
    model = Wrapped(step).eval()
    return whence.explain(model, tiny.ids(2), "conservative-lrp", 0, at="token").coverage


@pytest.mark.parametrize(("name", "layer"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn_tanh", nn.RNN)])
def test_a_recurrent_layer_is_listed_as_without_a_rule(name, layer):
    coverage = covered(layer(8, 8, batch_first=True))
    assert coverage.plain[name] == 1
    assert coverage.share < 1


def test_a_kernel_that_returns_a_tuple_is_listed_as_without_a_rule():
    coverage = covered(Pair.apply)
    assert sum(coverage.plain.values()) >= 1
    assert any("Pair" in name for name in coverage.plain)


def test_a_norm_that_returns_its_statistics_has_the_rule_of_the_norm():
    coverage = covered(lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5))
    assert not coverage.plain


def in_log_space(x):
    return (x.sigmoid().log() + F.softplus(x.flip(-1)).log()).exp()


#: operations that are no part of a Transformer by themselves
ODD = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x.square() + 1 + x.flip(-1).square()),
    "sqrt": lambda x: torch.sqrt(x.cumsum(-1).square() + 1 + x.square()),
    "rsqrt": lambda x: torch.rsqrt(x.flip(-1).square() + x.square() + 1),
    "reciprocal": lambda x: 1 / (x.flip(-1) + x + 9),
    "pow": lambda x: (x.flip(-1).abs() + x.abs() + 1) ** 1.5,
    "div": lambda x: x / (x.flip(-1).abs() + 9),
}


LEVEL = {"conservative-lrp": {"at": "token"}, "attn-lrp": {"at": "token"}}


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "lrp"])
@pytest.mark.parametrize("name", ODD)
def test_a_function_that_is_no_activation_is_listed(name, method):
    e = whence.explain(Wrapped(ODD[name]).double().eval(), tiny.ids(2), method, 0, **LEVEL.get(method, {}))
    assert e.coverage.plain[name] == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda x: torch.log1p(torch.exp(x)),
        lambda x: torch.log(1 + torch.exp(x)),
        lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
        lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
        lambda x: x * torch.rsqrt(x * x + 1),
        lambda x: torch.sin(x) + x**3,
        lambda x: torch.exp(-0.5 * torch.log(x.square().mean(-1, keepdim=True) + 1e-6)) * x,
    ],
)
def test_steps_of_an_activation_or_a_norm_are_not_listed(step):
    assert not whence.explain(Wrapped(step).eval(), tiny.ids(2), "attn-lrp", 0, at="token").coverage.plain


def test_a_product_in_log_space_has_its_plain_gradient_and_is_listed():
    product = lambda x: x.sigmoid() * F.softplus(x.flip(-1))  # noqa: E731
    given = {"method": "gradient-x-input", "target": 0, "at": "token"}
    usual, other = (whence.explain(Wrapped(f).double().eval(), tiny.ids(2), **given) for f in (product, in_log_space))
    assert torch.allclose(usual.scores, other.scores)
    assert {"log", "exp"} <= set(covered(in_log_space).plain)


def test_torchscript_is_warned_of_and_listed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    with pytest.warns(whence.WhenceWarning, match="TorchScript"):
        coverage = covered(scripted)
    assert coverage.plain["GeluBackward0"] == 1


def test_vmap_is_warned_of():
    with pytest.warns(whence.WhenceWarning, match="vmap"):
        coverage = covered(torch.vmap(lambda x: torch.tanh(x) * x))
    assert coverage.share < 1


def test_nested_tensors_are_refused():
    def nested(x):
        packed = torch.nested.as_nested_tensor(list(x), layout=torch.jagged)
        return torch.nested.to_padded_tensor(packed * 2, 0.0)

    with pytest.raises(whence.ModelError, match="nested"):
        covered(nested)
