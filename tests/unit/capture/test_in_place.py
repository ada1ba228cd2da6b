"""Elementwise operations of a program write over operands that are not needed any more, and over no others."""

import pytest
import torch

from whence.capture.in_place import overwriting
from whence.capture.program import Program
from whence.capture.tape import Tape


def recorded(function, x):
    """The steps of a function with operations in place, and its program."""
    tape = Tape([x])
    with tape:
        out = function(x)
    return overwriting(tape, tape.steps, [tape.number(out)], tape.memory), Program(tape, [out])


def names(function):
    """The names of a function's operations, in place where they can be."""
    steps, _ = recorded(function, torch.randn(4, 4))
    return [step.func._schema.name.removeprefix("aten::") for step in steps]


def read_twice(x):
    y = x.sin()
    return y.exp() * y  # the exponential may be overwritten, the sine not before it was read


def read_through_a_view(x):
    y = x.sin()
    z = y.t()
    return (y + 1).mm(z)


def both_operands_in_one_memory(x):
    y = x.sin()
    return y + y.t()


def of_other_shape(x):
    return x.sum(1) + x.exp()  # the first operand is smaller than the result, the second takes it


def of_other_type(x):
    return (x.sin() > 0).add(x.cos())


def result_of_a_view(x):
    y = x.sin()
    z = (y * 2).t()
    w = y.cos()
    return (w + 1) @ z  # w + 1 must not lie where z is


def overwritten_later(x):
    y = x.sin()
    kept = y + 1
    y.mul_(3)
    return kept * y


def view_of_a_copy(x):
    y = x.sin()
    z = y.clone().view(-1)  # the copy is left out, so that its view lies in y
    return (y * 2).sum() + z


def view_of_what_was_computed_before(x):
    y = x.sin()
    z = x.sin().t()  # the second sine is left out
    return (y * 2) @ z


def of_complex_numbers(x):
    y = torch.complex(x, x.cos())
    return (y * y.exp()).real


def of_a_single_number_in_half_precision(x):
    """The first operand is a number in single precision, which torch rounds only there."""
    return ((x.sum() * 0.37 + 0.1234567) * x.sin().bfloat16()).float()


FUNCTIONS = [
    read_twice, read_through_a_view, both_operands_in_one_memory, of_other_shape, of_other_type, result_of_a_view,
    overwritten_later, view_of_a_copy, view_of_what_was_computed_before, of_complex_numbers,
    of_a_single_number_in_half_precision,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_the_same_bit_for_bit_and_inputs_are_left_alone(function):
    _, program = recorded(function, torch.randn(4, 4))
    x = torch.randn(4, 4)
    given = x.clone()
    for _ in range(2):  # no constant is overwritten, either
        assert torch.equal(program([given])[0], function(x.clone()))
        assert torch.equal(given, x)


def test_an_operand_that_is_not_needed_any_more_is_overwritten():
    assert names(read_twice) == ["sin", "exp", "mul_"]
    assert names(of_other_shape) == ["sum", "exp", "add_"]


def test_an_operand_that_is_read_later_is_not_overwritten():
    assert names(read_through_a_view) == ["sin", "t", "add", "mm"]
    assert names(both_operands_in_one_memory) == ["sin", "t", "add"]


def test_an_input_is_not_overwritten():
    assert names(lambda x: x * 2 + 1) == ["mul", "add_"]


def test_subtraction_does_not_change_places():
    assert names(lambda x: x - x.sin()) == ["sin", "sub"]
