"""Axes: the batch and the tokens are found wherever a model has put them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from whence.tracing.axes import Axis, follow, size_of
from whence.tracing.reductions import per_sample, per_token, spread
from whence.tracing.tensor_info import node_of
from whence.tracing.tracer import Trace

BATCH, TOKENS = 3, 4

STEPS = {
    "transpose": lambda x: x.transpose(0, -1),
    "permute": lambda x: x.permute(*range(1, x.dim()), 0),
    "movedim": lambda x: x.movedim(-1, 0),
    "flatten": lambda x: x.flatten(0, 1) if x.dim() > 2 else x,
    "split heads": lambda x: x.unflatten(-1, (2, -1)) if x.shape[-1] % 2 == 0 else x,
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.squeeze(),
    "expand": lambda x: x[None].expand(2, *x.shape),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "slice": lambda x: x[..., :-1] if x.shape[-1] > 5 else x,
    "index": lambda x: x[..., 0] if x.dim() > 3 else x,
    "ellipsis": lambda x: x[..., None],
    "cat": lambda x: torch.cat([x, x], -1),
    "stack": lambda x: torch.stack([x, x], 1),
    "chunk": lambda x: x.chunk(2, -1)[0],
    "unbind": lambda x: x.unbind(-1)[0] if x.dim() > 3 else x,
    "linear": lambda x: nn.functional.linear(x, torch.ones(6, x.shape[-1])),
    "matmul": lambda x: x @ x.mT if x.dim() > 1 else x,
    "gelu": lambda x: nn.functional.gelu(x),
    "mean": lambda x: x.mean(-1) if x.dim() > 3 else x,
    "reshape": lambda x: x.reshape(x.shape[0], -1),
}


@given(steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=7), seed=st.integers(0, 99))
def test_sums_per_sample_find_the_batch_after_any_rearrangement(steps, seed):
    """Only sample 1 is not zero: after any steps that keep samples apart, so are the sums."""
    x = torch.zeros(BATCH, TOKENS, 6)
    x[1] = torch.rand(TOKENS, 6, generator=torch.Generator().manual_seed(seed)) + 1
    with Trace({}, batch=BATCH) as trace:
        y = trace.input("x", x)
        for step in steps:
            if step == "matmul" and any(trace.batch in dim for dim in node_of(y).axes[-1:]):
                continue  # would mix the samples
            if step in ("linear", "slice", "index", "chunk", "mean", "unbind", "split heads", "cat") and (
                trace.batch in node_of(y).axes[-1]
            ):
                continue  # would work along the batch
            y = STEPS[step](y)
            if y.numel() > 20000 or y.dim() > 6:
                break
    node = node_of(y)
    sums = per_sample(y.detach(), node.axes, trace.batch)
    assert sums.shape == (BATCH,)
    assert sums[1] != 0
    assert sums[0] == sums[2] == 0
    scaled = y.detach() * spread(torch.tensor([5.0, 2.0, 7.0]), node.axes, trace.batch)
    assert torch.allclose(per_sample(scaled, node.axes, trace.batch)[1], 2 * sums[1])


@given(steps=st.lists(st.sampled_from(["transpose", "unsqueeze", "movedim", "flatten tokens", "heads"]), max_size=5))
def test_sums_per_token_find_the_tokens(steps):
    x = torch.zeros(BATCH, TOKENS, 6)
    x[1, 2] = 1.0
    with Trace({}, batch=BATCH) as trace:
        y = trace.input("x", x)
        tokens = node_of(y).axes[1]
        for step in steps:
            if step == "flatten tokens":
                axes = node_of(y).axes
                y = y.flatten(0, 1) if y.dim() > 2 and axes[0] == (trace.batch,) and axes[1] == tokens else y
            elif step == "heads":
                y = y.unflatten(-1, (2, 3)) if y.shape[-1] == 6 else y
            else:
                y = STEPS[step](y)
    want = torch.zeros(BATCH, TOKENS)
    want[1, 2] = 6.0
    assert torch.equal(per_token(y.detach(), node_of(y).axes, trace.batch, tokens), want)


def test_patches_are_a_grid_behind_what_is_concatenated():
    conv, cls = nn.Conv2d(3, 8, 4, 4), torch.zeros(1, 2, 8)
    with Trace({}, batch=2) as trace:
        y = conv(trace.input("x", torch.randn(2, 3, 8, 12))).flatten(2).transpose(1, 2)
        y = torch.cat([cls.expand(2, -1, -1), y], 1)
    (axis,) = node_of(y).axes[1]
    prefix, patches = axis.parts
    assert (prefix.source, prefix.length) == (None, 2)
    assert [a.size for a in patches.source] == [2, 3]


def test_stretches_of_one_dimension_leave_the_others_where_they_are():
    batch, time, channels = Axis(2), Axis(8), Axis(3)
    x = torch.zeros(2, 8, 3)
    (found,) = follow(
        "unfold", torch.Tensor.unfold, (x, 1, 4, 2), {}, [(((batch,), (time,), (channels,)), x.shape)],
        [x.unfold(1, 4, 2).shape], batch,
    )  # fmt: skip
    assert found[0] == (batch,)
    assert found[2] == (channels,)
    assert [size_of(dim) for dim in found] == [2, 3, 3, 4]
    assert found[1] != (time,)
