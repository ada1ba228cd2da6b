"""A layer with an adapter beside it is one linear layer, for rules that read weights as well."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny


class Adapted(nn.Module):
    """A layer plus a low-rank one, as peft writes it: LoRA, and with magnitudes DoRA."""

    def __init__(self, layer: nn.Linear, magnitudes: bool, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        self.magnitude = nn.Parameter(1 + 0.3 * torch.rand(1, layer.out_features)) if magnitudes else None

    def forward(self, x):
        found = self.layer(x)
        if self.magnitude is None:
            return found + self.up(self.down(x)) * 0.7
        change = (self.magnitude - 1) * (found - self.layer.bias) + self.magnitude * self.up(self.down(x)) * 0.7
        return found + change

    def merged(self) -> nn.Linear:
        layer = copy.deepcopy(self.layer)
        total = layer.weight + 0.7 * self.up.weight @ self.down.weight
        layer.weight = nn.Parameter(total if self.magnitude is None else total * self.magnitude[0][:, None])
        return layer


def pair(magnitudes):
    model = tiny.bert().double()
    merged = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if name.endswith(("query", "value", "output.dense")):
            adapted = Adapted(layer, magnitudes).double()
            model.set_submodule(name, adapted)
            merged.set_submodule(name, adapted.merged())
    return model.eval(), merged.eval()


@pytest.mark.parametrize("magnitudes", [False, True], ids=["LoRA", "DoRA"])
@pytest.mark.parametrize("method", ["lrp", "partial-lrp", "transformer-attribution", "conservative-lrp", "flash-trace"])
def test_an_adapter_beside_its_layer_equals_the_merged_layer(method, magnitudes):
    model, merged = pair(magnitudes)
    given = {"input_ids": tiny.ids(2)}
    found, expected = (whence.explain(m, given, method, target=1) for m in (model, merged))
    assert torch.allclose(found.scores, expected.scores, rtol=0, atol=1e-9 * float(expected.scores.abs().max()))


def test_a_capture_of_an_adapter_follows_its_weights():
    model, _ = pair(False)
    given = {"input_ids": tiny.ids(1)}
    explain = whence.compile(model, "lrp")
    before = explain(given, target=1)
    for module in model.modules():
        if isinstance(module, Adapted):
            module.up.weight.data.mul_(3)
    after = explain(given, target=1)
    assert after == whence.explain(model, given, "lrp", target=1)
    assert not torch.equal(after.scores, before.scores)
