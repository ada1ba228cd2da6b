import pytest
import torch

import whence
from tools.replays import computations


@pytest.fixture(autouse=True)
def small_models_as_large_ones(rows_of_small_models_are_left_out):
    """The published models are small here, and large in use: rows of zeros are left out."""


@pytest.fixture(autouse=True)
def explanations_are_replayed(monkeypatch):
    """The published numbers are compared with replays of captures, and each replay with what was computed."""
    monkeypatch.setattr(whence, "explain", _replayed)


def _replayed(model, inputs, method="conservative-lrp", target=None, checkpoints=1, inside=False, **options):
    """Return the replay of an explanation, bit for bit as it was computed; that itself, where it is not captured."""
    if checkpoints > 1 or inside:
        return _explain(model, inputs, method, target, checkpoints=checkpoints, inside=inside, **options)
    explain = whence.compile(model, method, **options)
    found = explain(inputs, target)
    with computations() as computed:
        again = explain(inputs, target)
    assert explain.captures.refusals or not computed
    pairs = zip(found, again, strict=True) if isinstance(found, list) else [(found, again)]
    assert all(torch.equal(a.scores, b.scores) for a, b in pairs)
    return again


_explain = whence.explain
