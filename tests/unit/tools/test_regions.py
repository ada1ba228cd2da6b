"""The numbers of norms, activations, gates and residual sums, in the trace and in the model itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import NewGELUActivation

from tests.support import tiny
from tools.conformance.checks import Row, _regions
from tools.conformance.family import Family, ids, pixels
from tools.conformance.regions import Count, counted, implied, is_activation, is_norm
from tools.conformance.table import _count


def text(samples):
    return {"input_ids": ids(samples)}


def family(build, inputs=text, target=lambda o: o.logits[:, 1], **more):
    return Family("tiny", "tests", lambda _: build(), inputs, 2, {}, target, **more)


def found(of):
    return {name: (count.found, count.expected) for name, count in counted(of).items()}


def test_bert():
    counts = found(family(tiny.bert))
    assert counts == {"norms": (5, 5), "activations": (3, 3), "gates": (0, 0), "residuals": (4, 4)}


def test_llama():
    counts = found(family(tiny.llama, target=lambda o: o.logits[:, 6, 5]))
    assert counts == {"norms": (5, 5), "activations": (2, 2), "gates": (2, 2), "residuals": (4, 4)}


def test_vit():
    counts = found(family(tiny.vit, lambda n: pixels(n, 12)))
    assert counts == {"norms": (5, 5), "activations": (2, 2), "gates": (0, 0), "residuals": (4, 4)}


def test_a_number_of_ones_own_replaces_the_derived_one():
    assert found(family(tiny.bert, norms=6))["norms"] == (5, 6)


class Block(nn.Module):
    """Regions that no module computes, and some that the target does not depend on."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.gate = nn.Embedding(60, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.unused = nn.LayerNorm(8), nn.LayerNorm(8)
        self.positions, self.position_norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.query = nn.Parameter(torch.randn(8))

    def forward(self, input_ids):
        places = self.position_norm(self.positions(torch.arange(input_ids.shape[1])[None]))  # no function of the input
        x = self.embed(input_ids) + places
        with torch.no_grad():  # a part that is not trained is explained, too
            h = self.inner(self.norm(x))
        h = h * 0.5 * (1 + torch.tanh(0.8 * (h + 0.04 * h**3)))  # an activation by hand: no gate, no residual
        x = x + h * torch.sigmoid(self.gate(x))
        self.unused(F.relu(x))
        x = x / x.norm(dim=-1, keepdim=True)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return F.layer_norm(y, (8,))[:, 0] + self.unused(self.query)


def test_regions_without_modules():
    counts = found(family(Block, target=lambda o: o[:, 1]))
    assert counts == {"norms": (4, 4), "activations": (2, 2), "gates": (1, 1), "residuals": (1, 1)}


def test_tokens_of_the_models_own_count_as_input():
    model = Block().eval()
    given = text(2), {"input_ids": ids(2)}, lambda o: o[:, 1]
    assert implied(model, *given)["norms"] == 4
    assert implied(model, *given, queries=("query",))["norms"] == 5


def test_the_model_is_as_it_was():
    model = Block().eval()
    model.query.requires_grad_(False)
    implied(model, text(2), text(2), lambda o: o[:, 1])
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["query"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class LayerNormModel(nn.Module):
    """Is called after a norm, and holds one."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)


class NoNorm(nn.Module):
    """As in MobileBERT."""


@pytest.mark.parametrize("module", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4)])
def test_norms(module):
    assert is_norm(module)


@pytest.mark.parametrize("module", [nn.BatchNorm1d(4), LayerNormModel(), NoNorm(), nn.Linear(2, 2)])
def test_no_norms(module):
    assert not is_norm(module)


@pytest.mark.parametrize("module", [nn.GELU(), nn.PReLU(), nn.Tanh(), NewGELUActivation()])
def test_activations(module):
    assert is_activation(module)


@pytest.mark.parametrize("module", [nn.Softmax(-1), nn.MultiheadAttention(4, 2), nn.GLU(), nn.Linear(2, 2)])
def test_no_activations(module):
    assert not is_activation(module)


def test_a_count_that_differs_is_a_failed_cell():
    row = Row(replace(family(tiny.bert), residuals=5))
    _regions(row)
    assert row.passed == {"regions": False}
    assert row.failed == ["regions: 4 residuals found, 5 expected"]
    assert [_count(row, name) for name in ("norms", "residuals")] == ["5", "**4 of 5**"]
    assert not Count(3, 3).missed
