"""Every change of a model that a capture could miss is noticed."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from whence.capture.model_state import ModelState, Observer
from whence.capture.tape import CaptureError

SCALE = 1.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("shift", torch.zeros(3))
        self.scale = 2.0
        self.names = ["a"]
        self.table = torch.ones(3)
        self.config = Config()
        self.settings = {"mlp": {"scale": 1.0}}
        self.parts = [Inner()]
        self.array = np.ones(2)
        self.tables = [torch.ones(3)]

    def forward(self, x):
        return self.layer(x) * SCALE


class Config:
    def __init__(self):
        self.eps = 1e-5
        self.inner = Inner()


class Inner:
    depth = 1

    def __init__(self):
        self.heads = 4


def replace_weight(m):
    m.layer.weight = nn.Parameter(torch.zeros(3, 3))


def replace_data(m):
    m.layer.weight.data = torch.zeros(3, 3)


def change_weight(m):
    with torch.no_grad():
        m.layer.weight[0, 0] += 1


def change_folded_data(m):
    m.layer.weight.data.mul_(2)


def replace_module(m):
    m.layer = nn.Linear(3, 3)


def add_hook(m):
    m.layer.register_forward_hook(lambda *_: None)


def add_parametrization(m):
    nn.utils.parametrizations.weight_norm(m.layer)


def replace_forward(m):
    m.forward = lambda x: x


CHANGES = {
    "a parameter is replaced": replace_weight,
    "its data is replaced": replace_data,
    "a parameter is changed in place": change_weight,
    "the data of a folded parameter is changed": change_folded_data,
    "a buffer is changed": lambda m: m.shift.add_(1),
    "a plain tensor is changed": lambda m: m.table.add_(1),
    "a number is changed": lambda m: setattr(m, "scale", 3.0),
    "a list is changed": lambda m: m.names.append("b"),
    "the configuration is changed": lambda m: setattr(m.config, "eps", 1e-6),
    "an inner configuration is changed": lambda m: setattr(m.config.inner, "heads", 8),
    "a dictionary in a dictionary is changed": lambda m: m.settings["mlp"].update(scale=2.0),
    "an object in a list is changed": lambda m: setattr(m.parts[0], "heads", 8),
    "an array is changed": lambda m: m.array.__setitem__(0, 2.0),
    "a tensor in a list is changed": lambda m: m.tables[0].add_(1),
    "a module is replaced": replace_module,
    "a module is added": lambda m: m.add_module("more", nn.Linear(1, 1)),
    "a hook is added": add_hook,
    "a weight is parametrized": add_parametrization,
    "forward is replaced": replace_forward,
    "training mode": lambda m: m.train(),
    "the type is changed": lambda m: m.double(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_model_is_noticed(change):
    model = Model().eval()
    state = ModelState(model, folded=[model.layer.weight])
    assert state.holds()
    change(model)
    assert not state.holds()


def test_a_class_with_another_forward_is_noticed(monkeypatch):
    model = Model()
    state = ModelState(model)
    monkeypatch.setattr(Model, "forward", lambda self, x: x, raising=False)
    assert not state.holds()


def test_another_global_that_forward_reads_is_noticed(monkeypatch):
    state = ModelState(Model())
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    assert not state.holds()


def test_a_change_of_one_entry_of_a_folded_tensor_is_noticed():
    table = torch.ones(1000)
    state = ModelState(nn.Linear(1, 1), folded=[table])
    table[1] = 2  # not among the values that are compared
    assert not state.holds()


def test_other_settings_of_torch_are_noticed():
    state = ModelState(Model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not state.holds()
    assert state.holds()
    torch.backends.mha.set_fastpath_enabled(not torch.backends.mha.get_fastpath_enabled())
    try:
        assert not state.holds()
    finally:
        torch.backends.mha.set_fastpath_enabled(not torch.backends.mha.get_fastpath_enabled())


def test_a_model_with_hooks_is_refused():
    model = Model()
    model.layer.register_forward_hook(lambda *_: None)
    with pytest.raises(CaptureError, match="hooks"):
        ModelState(model)


def test_a_tensor_outside_the_model_is_noticed():
    table = torch.ones(3)
    state = ModelState(nn.Linear(1, 1), kept=[table])
    assert state.holds()
    table.add_(1)
    assert not state.holds()


def test_a_hook_of_all_modules_is_refused_and_noticed():
    model = Model()
    state = ModelState(model)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not state.holds()
        with pytest.raises(CaptureError, match="hooks"):
            ModelState(model)
    finally:
        hook.remove()
    assert state.holds()


def test_a_hook_that_only_observes_is_allowed_and_one_more_is_noticed():
    model, seen = Model(), []
    model.register_forward_pre_hook(Observer(lambda module, args: seen.append(args)))
    state = ModelState(model)
    assert state.holds()
    assert torch.equal(model.layer(torch.ones(3)), model.layer(torch.ones(3)))
    model.register_forward_pre_hook(lambda module, args: None)
    assert not state.holds()
    with pytest.raises(CaptureError, match="hooks"):
        ModelState(model)
