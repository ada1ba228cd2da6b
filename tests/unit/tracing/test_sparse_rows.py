"""Rows that carry nothing are left out of a backward, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from whence.tracing import sparse_rows

pytestmark = pytest.mark.usefixtures("rows_of_small_models_are_left_out")


@given(tokens=st.integers(2, 9), alive=st.integers(0, 9), batch=st.integers(1, 3), seed=st.integers(0, 99))
def test_what_is_left_out_is_zero(tokens, alive, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(batch, tokens, 4, generator=generator, dtype=torch.float64)
    gradient[:, min(alive, tokens) :] = 0
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    counted = []

    def product(x):
        counted.append(x.numel() // 4)
        return x @ weight

    found = sparse_rows.among(sparse_rows.few(gradient), product, gradient)
    torch.testing.assert_close(found, gradient @ weight, rtol=EXACT, atol=EXACT)
    few = 2 * min(alive, tokens) <= tokens
    assert counted == [batch * (min(alive, tokens) if few else tokens)]


def test_a_small_gradient_is_not_searched(monkeypatch):
    monkeypatch.setattr(sparse_rows, "LEAST", 2**14)
    gradient = torch.zeros(1, 128, 64)
    gradient[:, 0] = 1
    assert sparse_rows.few(gradient) is None
    assert sparse_rows.few(gradient.repeat(1, 1, 2)).tolist() == [0]


def linears(model, run):
    """How many rows each linear layer's backward multiplied, from the last layer to the first."""
    seen = []
    among = sparse_rows.among

    def counting(alive, apply, first, *others):
        return among(alive, lambda x: (seen.append(x.numel() // x.shape[-1]), apply(x))[1], first, *others)

    sparse_rows.among = counting
    try:
        run()
    finally:
        sparse_rows.among = among
    return seen


def test_behind_the_last_attention_only_the_class_token_goes_back():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids(1)}
    seen = linears(model, lambda: whence.explain(model, inputs, "gradient-x-input"))
    tokens = inputs["input_ids"].shape[1]
    assert seen[:5] == [1] * 5  # classifier, pooler, the last block's MLP, what its attention wrote
    assert seen[-1] == tokens
    assert len(seen) == 2 + 2 * 6


def test_every_sample_of_a_batch_keeps_its_own_row():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids(3)}
    seen = linears(model, lambda: whence.explain(model, inputs, "gradient-x-input"))
    assert seen[:5] == [3] * 5


def test_the_gradient_is_that_of_the_plain_model():
    model, ids = tiny.bert().double(), tiny.ids(2)
    found = whence.explain(model, {"input_ids": ids}, "gradient-x-input", target=1, at="token")
    rows_ = model.get_input_embeddings()(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=rows_).logits[:, 1].sum(), rows_)
    assert relative(found.scores, (gradient * rows_).sum(-1).detach()) < EXACT


class Cast(nn.Module):
    """Runs under autocast, its backward does not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.last(torch.tanh(self.first(x)))[:, 0].float()


def test_a_layer_under_autocast_goes_back_as_in_the_plain_model():
    model, x = Cast().eval(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    found = whence.explain(model, x, "gradient-x-input", target=1)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    assert relative(found.scores, (gradient * leaf).sum(-1).detach()) < 1e-6
