"""WeightAbsCache of weights: kept, but never stale, never beyond the bound, never longer than the weights."""

from __future__ import annotations

import gc

import torch

import whence
from tests.support import tiny
from whence.propagation.weight_abs_cache import WeightAbsCache, weight_abs


def test_they_are_kept_until_the_weight_changes():
    store, w = WeightAbsCache(), torch.nn.Parameter(torch.tensor([-1.0, 2.0]))
    first = store.of(w)
    assert store.of(w) is first
    with torch.no_grad():
        w.mul_(3.0)
    assert store.of(w).tolist() == [3.0, 6.0]
    w.data = torch.tensor([-5.0, 5.0])
    assert store.of(w).tolist() == [5.0, 5.0]


def test_they_die_with_the_weight_and_stay_below_the_bound():
    store = WeightAbsCache(bound=100)
    w = torch.nn.Parameter(torch.ones(20))
    assert store.of(w) is not None
    assert store.size == 80
    assert store.of(torch.nn.Parameter(torch.ones(20))) is None
    del w
    gc.collect()
    assert store.size == 0


def test_an_explanation_follows_the_weights():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids()}
    before = whence.explain(model, inputs, "transformer-attribution", 0).scores
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.1)
    after = whence.explain(model, inputs, "transformer-attribution", 0).scores
    weight_abs.clear()
    assert torch.equal(whence.explain(model, inputs, "transformer-attribution", 0).scores, after)
    assert not torch.allclose(before, after)
