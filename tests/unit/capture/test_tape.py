"""A tape replays what it has recorded, on other inputs, or refuses."""

import pytest
import torch

from whence.capture.program import Program
from whence.capture.tape import CaptureError, Guard, Tape, checking, values


def captured(function, *inputs):
    """A program of a function that returns a tensor, recorded for some inputs."""
    tape = Tape(inputs)
    with tape:
        out = function(*inputs)
    return Program(tape, [out])


def replays(function, first, other):
    """Whether a function that was recorded for one input is the same on another one, bit for bit."""
    program = captured(function, first.clone())
    found = program([other.clone()])
    return not isinstance(found, Guard) and torch.equal(found[0], function(other.clone()))


def into_a_slice(x):
    out = torch.zeros(4, 6)
    out[1:3] = x[1:3]
    out[0].add_(x[3])
    return out * 2


def constant_overwritten_later(x):
    scratch = torch.ones(6)
    first = x * scratch
    scratch.mul_(5)  # no input takes part in this
    return first + x * scratch


def data_exchanged(x):
    y = x * 2
    seen = y.detach()
    y.data = y.detach().clone()
    y.add_(1)
    return seen * y


def with_a_backward_pass(x):
    x = x.detach().requires_grad_()
    y = torch.tanh(torch.softmax(x, -1) @ torch.arange(36.0).view(6, 6))
    return torch.autograd.grad(y.sum(), x)[0] * x.detach()


def by_a_mask(x):
    return torch.where(x > 0, x, -x).masked_fill(x > 1, 0.0)


def of_chunks(x):
    a, b = x.chunk(2, -1)
    return torch.cat([b.sin_(), a], -1).std(-1)


@pytest.mark.parametrize(
    "function",
    [into_a_slice, constant_overwritten_later, data_exchanged, with_a_backward_pass, by_a_mask, of_chunks],
    ids=lambda f: f.__name__,
)
def test_a_replay_is_the_function_itself_on_another_input(function):
    torch.manual_seed(0)
    assert replays(function, torch.randn(4, 6), torch.randn(4, 6))


def test_what_the_result_does_not_depend_on_is_not_run():
    def function(x):
        for _ in range(10):
            (x @ x.mT).sum()
        return x + 1

    assert captured(function, torch.randn(3, 3)).operations == 1


def test_what_depends_on_constants_alone_is_not_run_again():
    weight = torch.randn(3, 3)
    program = captured(lambda x: x @ weight.abs().sqrt().t(), torch.randn(2, 3))
    assert program.operations == 1


def test_a_value_that_is_read_becomes_a_guard():
    def function(x, mask):
        return x.sum(-1) if bool(mask.all()) else (x * mask).sum(-1)

    x = torch.randn(2, 3)
    program = captured(function, x.clone(), torch.ones(2, 3))
    assert not isinstance(program([torch.randn(2, 3), torch.ones(2, 3)]), Guard)
    assert isinstance(program([x, torch.tensor([[1.0, 1, 0], [1, 1, 1]])]), Guard)


def test_a_number_that_becomes_nan_is_noticed():
    def function(x):
        return x * 2 if float(x[0]) else x

    program = captured(function, torch.tensor([1.0, 2.0]))
    assert not isinstance(program([torch.tensor([1.0, 3.0])]), Guard)
    assert isinstance(program([torch.tensor([float("nan"), 2.0])]), Guard)


@pytest.mark.parametrize("read", [lambda t: t.tolist(), values, lambda t: t.numpy().copy()])
def test_integers_that_are_read_at_once_are_guards(read):
    def function(x, order):
        read(order)
        return x * 2

    program = captured(function, torch.randn(3), torch.tensor([2, 0, 1]))
    assert not isinstance(program([torch.randn(3), torch.tensor([2, 0, 1])]), Guard)
    assert isinstance(program([torch.randn(3), torch.tensor([2, 1, 0])]), Guard)


def test_reads_that_confirm_what_is_known_are_no_guards():
    def function(x):
        with checking():
            assert float(x.abs().max()) >= 0
        return x * 2

    assert not isinstance(captured(function, torch.randn(3))([torch.randn(3)]), Guard)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: (x > 0).nonzero(), "shape"),
        (lambda x: x.nonzero(), "shape"),
        (lambda x: torch.nn.functional.dropout(x, 0.5), "random"),
        (lambda x: x * torch.rand(3), "random"),
        (lambda x: x * sum(x.tolist()), "read into Python"),
    ],
)
def test_what_cannot_be_replayed_is_refused(function, why):
    with pytest.raises(CaptureError, match=why):
        captured(function, torch.randn(3))


def test_random_numbers_that_nothing_depends_on_are_allowed():
    def function(x):
        torch.rand([])  # as models with layer drop do in evaluation mode
        return x * 2

    assert not isinstance(captured(function, torch.randn(3))([torch.randn(3)]), Guard)


def test_a_tensor_that_was_there_before_must_not_be_overwritten():
    buffer = torch.zeros(3)
    with pytest.raises(CaptureError, match="keeps"):
        captured(lambda x: buffer.add_(x) * 2, torch.randn(3))


def test_results_are_new_tensors_each_time():
    program = captured(lambda x: torch.stack([x.sum(), torch.tensor(1.0)]), torch.randn(3))
    a, b = program([torch.ones(3)]), program([torch.ones(3)])
    a[0].zero_()
    assert b[0].tolist() == [3.0, 1.0]
    assert program([torch.ones(3)])[0].tolist() == [3.0, 1.0]


def test_a_linear_layer_is_one_operation():
    layer = torch.nn.Linear(6, 5)
    x = torch.randn(2, 3, 6)
    with torch.no_grad():
        program = captured(layer, x)
        assert program.operations == 1
        other = torch.randn(2, 3, 6)
        assert torch.equal(program([other])[0], layer(other))


def test_positions_found_among_integers_are_guarded():
    ids, x = torch.tensor([3, 7, 3, 1]), torch.arange(4.0)

    def chosen(ids, x):
        return x[ids == 3] * 2

    tape = Tape([ids, x])
    with tape:
        made = chosen(ids, x)
    program = Program(tape, [made])
    other = torch.tensor([3, 1, 3, 7])
    assert torch.equal(program([other, x + 1])[0], chosen(other, x + 1))
    assert isinstance(program([torch.tensor([3, 3, 3, 7]), x]), Guard)


@pytest.mark.parametrize("write", [False, True])
def test_positions_that_depend_on_numbers_are_refused(write):
    ids, x = torch.tensor([3, 7, 3, 1]), torch.arange(4.0)
    with Tape([ids, x]):
        mask = (ids == 3).copy_(x > 1) if write else x > 1
        with pytest.raises(CaptureError, match="depends on values"):
            mask.nonzero()


def test_masks_of_numbers_are_guarded():
    x = torch.arange(4.0)
    tape = Tape([x])
    with tape:
        made = x[x > 1] * 2
    program = Program(tape, [made])
    assert torch.equal(program([x * 0.75])[0], torch.tensor([3.0, 4.5]))
    assert isinstance(program([x + 1]), Guard)


def test_places_of_additive_masks_are_guarded():
    """They are numbers, 0 and -inf, but computed of integers alone; an embedding is looked up in a table."""
    ids, table = torch.tensor([3, 7, 3, 1]), torch.arange(8.0)
    tape = Tape([ids])
    with tape:
        mask = torch.zeros(4)
        mask[ids == 3] = -torch.inf
        made = (mask < 0).nonzero() * 2
        with pytest.raises(CaptureError, match="depends on values"):
            (table[ids] > 2).nonzero()
    program = Program(tape, [made])
    assert torch.equal(program([torch.tensor([3, 1, 3, 7])])[0], made)
    assert isinstance(program([torch.tensor([3, 3, 3, 7])]), Guard)


def test_a_tensor_in_another_layout_is_not_left_out():
    """Strides of dimensions of one entry decide which kernel computes a product."""
    program = captured(lambda x: (x + 1).as_strided((4, 1), (1, 4)).exp(), torch.randn(4, 1))
    assert program.operations == 3


def zeroed_after_it_was_read(ids, x):
    count = (ids == 3).sum()
    out = x * 2 if int(count) else x.tanh()
    count.zero_()
    return out + count


def filled_after_it_was_searched(ids, x):
    mask = ids == 3
    places = mask.nonzero()
    mask.fill_(True)
    return x[places[:, 0]] + mask.sum()


def split_at(ids, x):
    return torch.tensor_split(x, ids[:2])[1].sum() * x


def packed(ids, x):
    lengths = ids.sort(descending=True).values[:1]
    rows = torch.nn.utils.rnn.pack_padded_sequence(x[None, :, None], lengths, batch_first=True)
    return rows.data.sum() * x


def printed(ids, x):
    return x * len(repr(ids))


@pytest.mark.parametrize(
    "function",
    [zeroed_after_it_was_read, filled_after_it_was_searched, split_at, packed, printed],
    ids=lambda f: f.__name__,
)
def test_what_was_read_is_guarded_as_it_was_then(function):
    ids, other, x = torch.tensor([1, 2, 3, 4]), torch.tensor([2, 1, 2, 2]), torch.arange(4.0)
    tape = Tape([ids, x])
    with tape:
        made = function(ids, x)
    program = Program(tape, [made])
    assert torch.equal(program([ids, x + 1])[0], function(ids, x + 1))
    assert isinstance(program([other, x]), Guard)


def test_a_conjugate_view_is_no_copy():
    def function(x):
        y = torch.fft.fft(x)
        return (y - y.conj()).abs()

    x = torch.randn(5)
    assert torch.equal(captured(function, torch.randn(5))([x])[0], function(x))
