"""Other devices, as far as they can be had here.

On the meta device there are shapes and no values: whatever would wait for a value (and so stop a GPU) fails there.
"""

from __future__ import annotations

import pytest

import whence
from tests.support import tiny
from whence.methods.registry import create
from whence.runs.forward import forwarded

MODELS = {
    "bert": (tiny.bert, {"input_ids": tiny.ids(2)}),  # transformers itself looks at a mask's values
    "vit": (tiny.vit, {"pixel_values": tiny.pixels(2)}),
    "llama": (tiny.llama, {"input_ids": tiny.ids(2)}),
}
ELSEWHERE = ("attention-flow", "random", "pa-lrp")  # a graph library, a seeded draw, constants that are looked at
METHODS = [name for name in tiny.METHODS if name not in ELSEWHERE]
CASES = [
    (name, method)
    for name in MODELS
    for method in METHODS
    if name != "llama" or not create(method, {}).rulebook().maps  # whether it looks only back is then seen in its maps
]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_no_method_waits_for_a_value(name, method, monkeypatch):
    """But once, at the end of the forward, when the answer is looked at."""
    make, inputs = MODELS[name]
    monkeypatch.setattr("whence.runs.forward._check_finite", lambda *_: None)
    expected = whence.explain(make(), inputs, method, 0)
    model, there = make().to("meta"), {key: value.to("meta") for key, value in inputs.items()}
    chosen = create(method, {})
    with forwarded(model, [], there, 2, chosen, [0]) as (run,):
        scores = chosen.read(run).scores
    assert scores.is_meta
    assert scores.shape == expected.scores.shape
