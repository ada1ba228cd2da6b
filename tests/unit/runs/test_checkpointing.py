"""Checkpoints: the same numbers from less memory, on any model, without a change to it."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from whence.runs.checkpointing import Checkpoints, held

METHODS = ["conservative-lrp", "attn-lrp", "gradient-x-input", "saliency", "generic-attention", "grad-cam", "rollout",
           "res-lrp", "libragrad", "integrated-gradients"]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pieces", [2, 5])
@pytest.mark.parametrize(("make", "inputs"), [
    (tiny.bert, {"input_ids": tiny.ids(2)}), (tiny.vit, {"pixel_values": tiny.pixels(2)}),
    (tiny.llama, {"input_ids": tiny.ids(2)}),
])  # fmt: skip
def test_the_numbers_are_the_same_to_the_last_bit(make, inputs, pieces, method):
    model = make()
    expected = whence.explain(model, inputs, method)
    found = whence.explain(model, inputs, method, checkpoints=pieces)
    assert torch.equal(found.scores, expected.scores)
    assert found.ledger == expected.ledger


@pytest.mark.parametrize("rows", [1, 4096])  # one by one, and all at once
@pytest.mark.parametrize("method", ["attn-lrp", "conservative-lrp", "gradient-x-input", "generic-attention"])
@pytest.mark.parametrize("make", [tiny.bert, tiny.llama])
def test_several_targets_need_the_pieces_too(make, method, rows, monkeypatch):
    monkeypatch.setattr("whence.runs.batched_targets.ROWS", rows)
    model, inputs = make().double(), {"input_ids": tiny.ids(2)}
    alone = [whence.explain(model, inputs, method, c).scores for c in range(3)]
    found = whence.explain(model, inputs, method, whence.every(range(3)), checkpoints=3)
    for one, expected in zip(found, alone, strict=True):
        assert relative(one.scores, expected) < EXACT


def test_the_forward_is_run_again_as_often_and_as_far_as_said():
    model, inputs = tiny.bert(layers=8), {"input_ids": tiny.ids(2)}
    calls = []
    for layer in model.bert.encoder.layer:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    whence.explain(model, inputs, checkpoints=4)
    assert 8 * (1 + 2) <= len(calls) <= 8 * (1 + 3)  # (4 + 1) / 2 more


class Blocks(nn.Module):
    """Residual blocks of one layer, and a way to see how much is saved at a time."""

    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x.mean(1))


def test_only_a_piece_is_there_at_a_time():
    model, x = Blocks().eval().requires_grad_(False), torch.randn(2, 5, 16)
    held, largest = Checkpoints(4, model), 0
    inner = held._take

    def take(saved):
        nonlocal largest
        found = inner(saved)
        largest = max(largest, sum(t.numel() * t.element_size() for t, _ in held.kept.values()))
        return found

    held._take = take
    leaf = x.requires_grad_()
    output = held.first(lambda: model(leaf))
    assert not held.kept
    (gradient,) = torch.autograd.grad(output.sum(), leaf)
    assert torch.equal(gradient, torch.autograd.grad(model(leaf).sum(), leaf)[0])
    assert 0 < largest <= 0.35 * sum(held.sizes)
    assert len(held.sizes) >= 12  # a tanh saves its output


GROWTH = """
import re, sys
import torch, whence
from transformers import BertConfig, BertForSequenceClassification
config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
                    max_position_embeddings=2048, vocab_size=100)
model = BertForSequenceClassification(config).eval().requires_grad_(False)
ids = torch.randint(10, 99, (1, 2048))
model(input_ids=ids[:, :8])
largest = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = largest()
whence.explain(model, {"input_ids": ids}, target=0, checkpoints=int(sys.argv[1]))
print(largest() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is measured as Linux counts it")
def test_the_process_grows_less():
    grown = [
        int(subprocess.run([sys.executable, "-W", "ignore", "-c", GROWTH, str(pieces)], check=True, capture_output=True,
                           cwd=Path(__file__).parent).stdout)
        for pieces in (1, 4)
    ]  # fmt: skip
    assert grown[1] < 0.85 * grown[0]


def test_parameters_are_not_dropped():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    held = Checkpoints(2, model)
    held.first(lambda: model(torch.randn(3, 4, requires_grad=True)))
    assert sum(held.sizes) == 2 * 3 * 4 * 4  # what each layer reads, for the gradient of its weight


class Overwriting(nn.Module):
    def forward(self, x):
        y = torch.exp(x)  # which needs its result
        y.mul_(2)
        return torch.sin(torch.sin(torch.sin(y))).sum(1)


def test_what_is_overwritten_is_refused():
    model, x = Overwriting(), torch.randn(2, 5, requires_grad=True)
    output = Checkpoints(2, model).first(lambda: model(x))
    with pytest.raises(whence.ModelError, match="overwritten in place"):
        torch.autograd.grad(output.sum(), x)


def test_a_model_that_keeps_a_state_is_refused():
    class Once(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return torch.tanh(x).sum(1) if self.calls > 1 else torch.sin(torch.tanh(torch.exp(x))).sum(1)

    model, x = Once(), torch.randn(2, 5, requires_grad=True)
    output = Checkpoints(2, model).first(lambda: model(x))
    with pytest.raises(whence.ModelError, match="did something else when it was run again"):
        torch.autograd.grad(output.sum(), x)


@pytest.mark.parametrize("method", ["transformer-attribution", "lrp", "token-tm", "legrad"])
def test_methods_that_cannot_say_so(method):
    with pytest.raises(whence.MethodError, match="cannot save it memory"):
        whence.explain(tiny.bert(), {"input_ids": tiny.ids()}, method, checkpoints=2)


@pytest.mark.parametrize("pieces", [0, -1])
def test_pieces_are_counted(pieces):
    with pytest.raises(whence.MethodError, match="at least 2 pieces"):
        whence.explain(tiny.bert(), {"input_ids": tiny.ids()}, checkpoints=pieces)


def test_a_models_own_checkpointing_is_refused_all_the_same():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Blocks(2)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    with pytest.raises(whence.ModelError, match="gradient checkpointing"):
        whence.explain(Own(), torch.randn(2, 5, 16), "gradient-x-input", checkpoints=2)


def test_a_value_that_is_held_is_dropped_like_all_that_is_saved():
    value = torch.ones(5)
    memory = weakref.ref(value.untyped_storage())
    with saved_tensors_hooks(lambda tensor: None, lambda _: torch.full((5,), 2.0)):
        again = held(value)
    del value
    assert memory() is None
    assert again().tolist() == [2.0] * 5
