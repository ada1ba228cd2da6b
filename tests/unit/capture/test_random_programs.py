"""Random programs are replayed bit for bit on other inputs, or a guard says that they would go another way."""

import random

import pytest
import torch

from whence.capture.program import Program
from whence.capture.tape import CaptureError, Guard, Tape

UNARY = ["sin", "tanh", "exp", "neg", "abs", "relu", "square"]
BINARY = ["add", "mul", "sub", "maximum"]


def overlaps(x):
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def a_function(draw, x, others):
    return getattr(torch, draw.choice(UNARY))(x)


def a_pair(draw, x, others):
    return getattr(torch, draw.choice(BINARY))(x, draw.choice([y for y in others if y.shape == x.shape]))


def a_scaled_one(draw, x, others):
    return draw.choice([lambda: x.mean() * x, lambda: x * 0.5, lambda: 1 - x, lambda: x.sum() + x])()


def flattened(x):
    return x.clone(memory_format=torch.contiguous_format).view(-1)


def a_view(draw, x, others):
    if x.dim() == 0:
        return x.unsqueeze(0)
    return draw.choice([
        lambda: x.transpose(0, -1), lambda: x[..., ::2], lambda: x.reshape(-1), lambda: x.unsqueeze(0),
        lambda: x.chunk(2, -1)[0], lambda: x.squeeze(), lambda: flattened(x), lambda: x.flip(0),
    ])()  # fmt: skip


def an_overwritten_one(draw, x, others):
    if overlaps(x):
        return x
    return draw.choice([lambda: x.tanh_(), lambda: x.mul_(1.5), lambda: x.add_(draw.choice(others).sum())])()


def a_reduced_one(draw, x, others):
    return x.sum(draw.randrange(x.dim())) if x.dim() else x.exp()


def a_masked_one(draw, x, others):
    return draw.choice(
        [lambda: x.masked_fill(x > 0.3, 0.25), lambda: torch.where(x > 0, x, x.sin()), lambda: x[x > 9]]
    )()


def another_type(draw, x, others):
    return x.to(draw.choice([torch.bfloat16, torch.float32, torch.float64]))


STEPS = [
    a_function, a_function, a_pair, a_pair, a_scaled_one, a_view, a_view, a_view, an_overwritten_one, a_reduced_one,
    a_masked_one, another_type,
]  # fmt: skip


def run(seed, x, y):
    """A random program's last results."""
    draw = random.Random(seed)
    values = [x * 1.1, y + 0.1]
    for _ in range(draw.randint(4, 14)):
        made = draw.choice(STEPS)(draw, draw.choice(values[-4:]), values)
        if 0 < made.numel() < 1000:
            values.append(made)
    return values[-3:]


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_programs_are_replayed_bit_for_bit(first):
    replayed = 0
    for seed in range(first, first + 100):
        torch.manual_seed(seed)
        tape = Tape([x := torch.randn(3, 4), y := torch.randn(3, 4)])
        try:
            with tape:
                made = run(seed, x, y)
        except CaptureError:
            continue
        program = Program(tape, made)
        for _ in range(3):
            inputs = [torch.randn(3, 4), torch.randn(3, 4)]
            found = program([t.clone() for t in inputs])
            if isinstance(found, Guard):
                continue
            for a, b in zip(found, run(seed, *inputs), strict=True):
                assert a.dtype == b.dtype, seed
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)), seed
            replayed += 1
    assert replayed > 200
