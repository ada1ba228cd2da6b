"""Recorded operations as functions: evaluated at other values, delimited, and remembered by structure."""

from __future__ import annotations

import pytest
import torch

from whence.tracing import replay
from whence.tracing.replay import UnknownFunctionError, dominator, evaluate, region, remembered, restored, same, sample
from whence.tracing.tensor_info import node_of
from whence.tracing.tracer import Trace

X = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_answers(monkeypatch):
    """Start without answers of other tests."""
    monkeypatch.setattr(replay, "_ANSWERS", {})


def recorded(function, *more):
    """Run a function of ``X`` under a trace; return the node of ``X`` and those of its results."""
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        results = function(x, *more)
        results = results if isinstance(results, tuple) else (results,)
        return node_of(x), *(node_of(t) for t in results), results


FUNCTIONS = {
    "elementwise": lambda x: torch.exp(x) * 2 - x,
    "reduced": lambda x: x - x.mean(-1, keepdim=True),
    "constants": lambda x: x * torch.arange(4, dtype=x.dtype) + 1,
    "list argument": lambda x: torch.cat([x, 2 * x], 1)[:, 1:5],
    "one of several outputs": lambda x: x.chunk(2, -1)[1] * 3,
    "mask": lambda x: torch.where(x > 0, x, 0.1 * x),
    "keyword": lambda x: torch.softmax(x, dim=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tensor_is_evaluated_at_other_values_of_its_root(name):
    function = FUNCTIONS[name]
    root, end, _ = recorded(function)
    for value in (X, -X, X.flip(0) * 3):
        assert torch.equal(evaluate(end, {root: value}), function(value))


def test_an_evaluation_does_not_overwrite_what_an_in_place_operation_is_given():
    root, end, _ = recorded(lambda x: x.mul(1).add_(5))
    value = X.clone()
    assert torch.equal(evaluate(end, {root: value}), X + 5)
    middle = end.flows[0]
    assert torch.equal(evaluate(end, {middle: value}), X + 5)
    assert torch.equal(value, X)


def test_values_may_be_given_for_several_tensors():
    _, a, b, total, _ = recorded(lambda x: (a := x.exp(), b := x.sin(), a - b))
    assert torch.equal(evaluate(total, {a: X, b: 2 * X}), -X)


def test_a_tensor_that_is_no_function_of_the_given_ones_is_not_evaluated():
    _, a, total, _ = recorded(lambda x: (a := x.exp(), a + x))
    with pytest.raises(UnknownFunctionError):  # x, too, is part of it
        evaluate(total, {a: X})


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 3).round(decimals=9)

    @staticmethod
    def backward(ctx, g):
        return g * 3


def test_an_opaque_kernel_is_not_evaluated():
    root, end, _ = recorded(lambda x: torch.relu(Opaque.apply(x)))
    with pytest.raises(UnknownFunctionError):
        evaluate(end, {root: X})


def test_the_dominator_is_the_nearest_tensor_on_all_paths():
    root, a, b, c, _ = recorded(lambda x: (a := x.exp(), b := a * 2, b + a.sin()))
    assert dominator([c.flows[0], c.flows[1]]) is a
    assert dominator([b, c]) is a
    assert dominator([a]) is a
    assert dominator([a, root]) is root


def test_the_dominator_of_a_tensor_and_a_function_of_it_is_the_tensor():
    _, a, b, _ = recorded(lambda x: (a := x.exp(), a.sin().cos()))
    assert dominator([a, b]) is a


def test_tensors_of_two_inputs_have_no_dominator():
    with Trace({}, batch=2) as trace:
        x, y = trace.input("x", X), trace.input("y", X)
        assert dominator([node_of(x * 2), node_of(y * 2)]) is None


def test_a_dominator_beyond_reach_is_none():
    def long(x):
        y = x
        for _ in range(10):
            y = y.sin()
        return y

    root, end, _ = recorded(long)
    assert dominator([root, end], reach=11) is root
    assert dominator([root, end], reach=9) is None


def test_a_region_is_what_lies_between_in_the_order_of_the_forward_pass():
    root, a, b, c, _ = recorded(lambda x: (a := x.exp(), b := a.sum(-1, keepdim=True), a / b))
    assert region(c, root) == [a, b, c]
    assert region(c, a) == [b, c]
    assert region(a, a) == []


def test_a_tensor_that_is_overwritten_is_restored_from_what_it_was_made_of():
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        y = x * 2
        node = node_of(y)
        assert restored(node) is y
        y.add_(1)
        assert node.tensor is None
        assert torch.equal(restored(node), X * 2)


def test_a_tensor_without_anything_left_is_not_restored():
    with Trace({}, batch=2) as trace:
        x = trace.input("x", X)
        y = x * 2
        node = node_of(y)
        y.add_(1)
        x.add_(1)
        with pytest.raises(UnknownFunctionError):
            restored(node)


# -- remembered ----------------------------------------------------------------------------------------------------


class Question:
    """Counts how often it is answered."""

    def __init__(self) -> None:
        self.answered = 0

    def __call__(self, root, end, last=None):
        def answer():
            self.answered += 1
            return self.answered

        return remembered("question", [end], [root], answer, last)


def test_the_same_structure_is_answered_once_for_all_blocks_and_traces():
    asked = Question()

    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    for _ in range(2):
        root, first, second, _ = recorded(lambda x: (a := norm(x), norm(a)))
        assert asked(root, first) == 1
        assert asked(first, second) == 1
    assert asked.answered == 1


@pytest.mark.parametrize("other", [
    lambda x: x.pow(3).sum(-1), lambda x: x.pow(2).sum(1), lambda x: x.pow(2).mean(-1), lambda x: x.sum(-1).pow(2),
    lambda x: x[:, 1:].pow(2).sum(-1),
])  # fmt: skip
def test_another_number_call_or_order_of_calls_is_another_structure(other):
    asked = Question()
    for function in (lambda x: x.pow(2).sum(-1), other):
        root, end, _ = recorded(function)
        asked(root, end)
    assert asked.answered == 2


@pytest.mark.parametrize("changed", [X.float(), X[:, :2]])
def test_another_type_or_shape_is_another_structure(changed):
    asked = Question()
    for value in (X, changed):
        with Trace({}, batch=2) as trace:
            x = trace.input("x", value)
            asked(node_of(x), node_of(x.exp()))
    assert asked.answered == 2


def test_a_question_has_its_own_answer():
    root, end, _ = recorded(torch.exp)
    assert [remembered(name, [end], [root], lambda name=name: name) for name in "abab"] == list("abab")


def test_the_same_operation_on_other_ends_is_another_structure():
    asked = Question()
    root, a, b, _ = recorded(lambda x: (x.exp(), x.sin()))
    assert asked(root, a) != asked(root, b)


def test_a_function_with_constants_that_are_no_weights_is_not_remembered():
    asked = Question()
    root, end, _ = recorded(lambda x: x * torch.arange(4, dtype=x.dtype))
    assert [asked(root, end) for _ in range(3)] == [1, 2, 3]


def test_a_function_with_weights_is_remembered():
    asked = Question()
    weight = torch.nn.Parameter(torch.rand(4, dtype=torch.float64))
    for _ in range(2):
        root, end, _ = recorded(lambda x: x * weight)
        assert asked(root, end) == 1


def test_answers_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(replay, "ANSWERS", 3)
    asked = Question()
    for power in range(8):
        root, end, _ = recorded(lambda x, power=power: x.pow(power + 2))
        asked(root, end)
    assert len(replay._ANSWERS) <= 3


# -- values --------------------------------------------------------------------------------------------------------


def test_a_sample_is_the_same_every_time_and_of_the_shape_and_type_of_the_tensor():
    root, *_ = recorded(torch.exp)
    assert torch.equal(sample(root), sample(root))
    assert not torch.equal(sample(root), sample(root, 1))
    assert sample(root).shape == X.shape
    assert sample(root).dtype == X.dtype


def test_values_are_compared_relative_to_the_largest():
    a = torch.tensor([1000.0, 0.0])
    assert same(a + 0.5, a, 1e-3)
    assert not same(a + 5, a, 1e-3)
    assert not same(a[:1], a, 1e-3)
    assert not same(a * torch.nan, a, 1e-3)
