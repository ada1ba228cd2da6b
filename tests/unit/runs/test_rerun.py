"""A forward with other values: the target and its gradients are those of a forward that is traced to its end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from whence.methods import integrated_gradients
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


def test_a_value_that_finds_no_place_is_said():
    begun, _ = runs("bert")
    with begun as (run,), pytest.raises(whence.ModelError, match="again"):
        run.rerun({10**6: torch.zeros(1)})


@pytest.mark.parametrize("method", ["integrated-gradients", "smooth-grad"])
@pytest.mark.parametrize("name", MODELS)
def test_copies_that_go_together_are_those_that_go_alone(name, method, monkeypatch):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, given = make().double(), inputs()
    many = {"steps" if method == "integrated-gradients" else "samples": 7}
    together = whence.explain(model, given, method, 1, **many)
    monkeypatch.setattr(integrated_gradients, "ROWS", 1)
    assert relative(together.scores, whence.explain(model, given, method, 1, **many).scores) < EXACT


class Counting(nn.Module):
    """A model that counts its forwards; its samples may know of each other, or be as many as they were at first."""

    def __init__(self, mixing=False, fixed=None):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.mixing, self.fixed, self.batches = mixing, fixed, []

    def forward(self, x):
        self.batches.append(len(x))
        if self.fixed not in (None, len(x)):
            raise RuntimeError(f"this model takes {self.fixed} samples")
        x = torch.tanh(self.first(x))
        return self.head((x + x.flip(0) if self.mixing else x).mean(1)) ** 3


@pytest.mark.parametrize(("options", "batches"), [
    ({}, [2, 10, 2, 10]),  # the first, five points, the last of these alone, five points
    ({"mixing": True}, [2, 10, 2] + 10 * [2]),
    ({"fixed": 2}, [2, 10] + 10 * [2]),
])  # fmt: skip
def test_they_go_together_if_they_do_not_know_of_each_other(options, batches, monkeypatch):
    torch.manual_seed(0)
    model, x = Counting(**options).double().eval(), torch.randn(2, 5, 4, dtype=torch.float64)
    monkeypatch.setattr(integrated_gradients, "ROWS", 50)
    found = whence.explain(model, {"x": x}, "integrated-gradients", [0, 2], at="pixel", steps=10)
    assert model.batches == batches
    monkeypatch.setattr(integrated_gradients, "ROWS", 1)
    alone = whence.explain(model, {"x": x}, "integrated-gradients", [0, 2], at="pixel", steps=10)
    assert relative(found.scores, alone.scores) < EXACT


class Pairs(nn.Module):
    """Pictures by texts, as in CLIP: how well each of the batch's texts fits each picture."""

    def __init__(self):
        super().__init__()
        self.picture, self.text = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y):
        return torch.tanh(self.picture(x)).mean(1) @ torch.tanh(self.text(y)).mean(1).T


def test_classes_that_are_samples_are_not_mixed_up(monkeypatch):
    torch.manual_seed(0)
    model, given = Pairs().double().eval(), {"x": torch.randn(2, 5, 4).double(), "y": torch.randn(2, 3, 4).double()}
    together = whence.explain(model, given, "integrated-gradients", 1, at="pixel", steps=6)
    monkeypatch.setattr(integrated_gradients, "ROWS", 1)
    assert (
        relative(together.scores, whence.explain(model, given, "integrated-gradients", 1, at="pixel", steps=6).scores)
        < EXACT
    )
