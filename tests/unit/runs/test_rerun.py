"""A forward with other values: the target and its gradients are those of a forward that is traced to its end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from whence.methods.integrated_gradients import IntegratedGradients
from whence.runs.forward import forwarded
from whence.tracing.tensor_info import node_of
from whence.tracing.tracer import Trace


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Custom(nn.Module):
    """A model with a function of its own behind a linear layer, that keeps what it saw last."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(8, dtype=torch.float64))

    def forward(self, x):
        x = x + torch.tanh(Twice.apply(self.first(x)))
        self.seen.copy_(x[0, 0])
        return self.head(x.mean(1))


class Frozen(nn.Module):
    """A model that switches gradients off in the midst, and overwrites what it has made."""

    def __init__(self):
        super().__init__()
        self.first, self.backbone, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = x + torch.tanh(self.first(x))
        with torch.no_grad():
            x = torch.sin(self.backbone(x))
        x = x * 1.5
        x += 0.25
        return self.head(x.mean(1))


MODELS = {
    "bert": (tiny.bert, lambda: {"input_ids": tiny.ids(2)}),
    "gpt2": (tiny.gpt2, lambda: {"input_ids": tiny.ids(2)}),
    "llama": (tiny.llama, lambda: {"input_ids": tiny.ids(2)}),
    "vit": (tiny.vit, lambda: {"pixel_values": tiny.pixels(2).double()}),
    "sequence first": (lambda: tiny.Encoder(batch_first=False).eval(), lambda: {"input_ids": tiny.ids(2)}),
    "custom": (lambda: Custom().eval(), lambda: {"x": torch.randn(2, 5, 8, dtype=torch.float64)}),
    "frozen": (lambda: Frozen().eval(), lambda: {"x": torch.randn(2, 5, 8, dtype=torch.float64)}),
}


def runs(name, checkpoints=1, at="position"):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    method = IntegratedGradients(at=at)
    return forwarded(make().double(), [], inputs(), 2, method, [1], checkpoints), method


@pytest.mark.parametrize("checkpoints", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_a_whole_trace_says(name, checkpoints):
    begun, method = runs(name, checkpoints)
    with begun as (run,):
        (place,) = method.places(run)
        values = {node_of(place).seq: torch.randn_like(place)}
        there, whole = run.rerun(values), run.retrace(values)
        assert relative(there.seed.value, whole.seed.value) < EXACT
        assert not torch.equal(there.seed.value, run.seed.value)
        expected = whole.backward(method.places(whole))[0]
        assert relative(there.gradients()[0], expected) < EXACT
        assert expected.abs().sum() > 0


@dataclass
class Counted:
    calls: int = 0


def test_nothing_is_followed_once_the_values_are_in_their_places(monkeypatch):
    begun, method = runs("bert")
    seen, perform = Counted(), Trace._perform

    def counting(self, call):
        seen.calls += 1
        return perform(self, call)

    monkeypatch.setattr(Trace, "_perform", counting)
    with begun as (run,):
        (place,) = method.places(run)
        traced, seen.calls = seen.calls, 0
        run.rerun({node_of(place).seq: place.detach()})
        assert 0 < seen.calls < traced / 4  # the embeddings: what comes before the first block


def test_a_language_model_is_not_asked_for_all_its_logits():
    begun, method = runs("llama")
    with begun as (run,):
        (place,) = method.places(run)
        there = run.rerun({node_of(place).seq: place.detach()})
        assert there.seed.last is not None
        assert relative(there.gradients()[0], run.backward([place])[0]) < EXACT


def test_what_a_model_keeps_is_free_of_the_graph():
    model, x = Custom().double().eval(), torch.randn(2, 5, 8, dtype=torch.float64)
    whence.explain(model, {"x": x}, "integrated-gradients", 0, at="pixel", steps=2)
    assert not model.seen.requires_grad
    assert model.seen.grad_fn is None
    assert not hasattr(model.seen, "_whence")


def test_parameters_that_need_gradients_are_left_alone():
    model, ids = tiny.bert(), tiny.ids(1)
    model.requires_grad_(True)
    whence.explain(model, {"input_ids": ids}, "integrated-gradients", 0, steps=2)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_no_graph_is_kept_where_only_the_value_is_asked(name):
    """Also if the model's parameters require gradients, as they do here."""
    begun, method = runs(name)
    with begun as (run,):
        (place,) = method.places(run)
        values = {node_of(place).seq: torch.randn_like(place)}
        there, with_graph = run.rerun(values, gradients=False), run.rerun(values)
        assert relative(there.seed.value, with_graph.seed.value) < EXACT
        assert with_graph.seed.output.requires_grad
        assert not there.seed.output.requires_grad


def test_a_value_that_finds_no_place_is_said():
    begun, _ = runs("bert")
    with begun as (run,), pytest.raises(whence.ModelError, match="again"):
        run.rerun({10**6: torch.zeros(1)})
