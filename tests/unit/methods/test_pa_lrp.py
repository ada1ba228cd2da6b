"""PA-LRP: how rotations are written does not matter, and nothing is left behind. Published numbers: a golden test."""

from __future__ import annotations

import gc

import pytest
import torch
from transformers.models.llama import modeling_llama

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative


def in_place(q, k, cos, sin, unsqueeze_dim=1):
    """Rotations whose second product is added into the first."""
    rotated = []
    for x in (q, k):
        y = x * cos.unsqueeze(unsqueeze_dim)
        y += modeling_llama.rotate_half(x) * sin.unsqueeze(unsqueeze_dim)
        rotated.append(y)
    return rotated


@pytest.mark.parametrize("positions", ["absolute", "signed"])
def test_rotations_may_be_written_in_place(positions, monkeypatch):
    model, inputs = tiny.llama().double(), {"input_ids": tiny.ids(2)}
    plain = whence.explain(model, inputs, "pa-lrp", 1, positions=positions)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", in_place)
    assert relative(whence.explain(model, inputs, "pa-lrp", 1, positions=positions).scores, plain.scores) < EXACT


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_no_tensor_outlives_its_explanation(make):
    model, inputs = make(), {"input_ids": tiny.ids(2)}

    def alive():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    whence.explain(model, inputs, "pa-lrp", 1)
    before = alive()
    for _ in range(3):
        whence.explain(model, inputs, "pa-lrp", whence.every([1, 2]))
    assert alive() <= before
