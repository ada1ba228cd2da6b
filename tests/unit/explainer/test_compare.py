"""Several methods side by side: exactly what each gives alone, with one forward pass for those that can share it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.processors import WORDS, bert
from whence.explainer.request import Request, compute_together, sharing_forward
from whence.methods.conservative_lrp import ConservativeLRP

MAPS = ["attention", "rollout", "grad-cam", "generic-attention"]
PLAIN = ["saliency", "integrated-gradients", "random", "occlusion"]
TEXT = "it is far too long"


class CountedForwards:
    """Counts the forward passes of a model; a model with hooks is not captured."""

    def __init__(self, model):
        self.count = 0
        self._handle = model.register_forward_hook(self._note)

    def _note(self, module, args, output):
        self.count += 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._handle.remove()


@pytest.mark.parametrize("targets", [(None,), (0, 1, whence.contrast(0, 1))], ids=["one target", "several"])
@pytest.mark.parametrize("double", [False, True])
def test_every_method_gives_what_it_gives_alone(targets, double):
    """Bit for bit, ledger and coverage included."""
    model = bert(WORDS).double() if double else bert(WORDS)
    explainer = whence.Explainer(model, processor=WORDS, capture=False)
    found = explainer.compare(TEXT, targets=targets)
    names = list(dict.fromkeys(e.method for e in found))
    assert names == [name for name in whence.list_methods() if name in names]
    assert len(names) > 20
    alone = [e for name in names for e in explainer(TEXT, name, whence.every(targets))]
    for one, other in zip(found, alone, strict=True):
        assert one == other, one.method


def test_images_and_tensors_are_compared_alike():
    """Patches are located for every method, and tensors may be a batch."""
    explainer = whence.Explainer(tiny.vit())
    pixels = tiny.pixels(2)
    names = [*MAPS, *PLAIN, "gradient-x-input", "bi-attention", "token-tm"]
    for e in explainer.compare(pixels, names):
        assert e == whence.explain(explainer.model, pixels, e.method), e.method


def test_options_are_those_of_every_method():
    explainer = whence.Explainer(tiny.bert())
    given = {"input_ids": tiny.ids(1)}
    first, second = explainer.compare(given, ["saliency", "smooth-grad"], at="token")
    assert first == whence.explain(explainer.model, given, "saliency", at="token")
    assert second == whence.explain(explainer.model, given, "smooth-grad", at="token")
    inside = explainer.compare(given, ["gradient-x-input", "generic-attention"], inside=True)
    assert all(e == whence.explain(explainer.model, given, e.method, inside=True) for e in inside)


@pytest.mark.parametrize(
    ("names", "forwards"),
    [
        (MAPS, 1),
        (["saliency", "random"], 1),
        ([*MAPS, "saliency", "random"], 2),
        (["rollout", "saliency", "attention", "random"], 2),
        (["gradient-x-input", "conservative-lrp"], 2),
        (["rollout"], 1),
    ],
)
def test_methods_with_equal_rulebooks_share_a_forward_pass(names, forwards):
    explainer = whence.Explainer(tiny.bert())
    with CountedForwards(explainer.model) as counted:
        found = explainer.compare({"input_ids": tiny.ids(1)}, names, targets=[0, 1])
    assert [e.method for e in found] == [name for name in names for _ in range(2)]
    assert counted.count == forwards


@pytest.mark.parametrize("names", [PLAIN, ["bi-attention", "token-tm"]])
def test_methods_that_run_the_model_many_times_share_the_first_forward_pass(names):
    explainer = whence.Explainer(tiny.bert())
    given = {"input_ids": tiny.ids(1)}
    with CountedForwards(explainer.model) as alone:
        for name in names:
            explainer(given, name)
    with CountedForwards(explainer.model) as together:
        explainer.compare(given, names)
    assert together.count == alone.count - (len(names) - 1)


def test_a_method_that_does_not_apply_leaves_the_others_as_they_are():
    """A linear model has no attention: some methods of every group refuse it, by the same words as alone."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    explainer, x = whence.Explainer(model), torch.randn(1, 3, 4)
    found = explainer.compare(x)
    assert {"saliency", "integrated-gradients"} <= {e.method for e in found}
    assert not {e.method for e in found} & set(MAPS)
    for e in found:
        assert e == whence.explain(model, x, e.method)
    with pytest.raises(whence.ModelError) as alone:
        explainer(x, "rollout")
    with pytest.raises(whence.ModelError) as compared:
        explainer.compare(x, ["attention", "rollout"][::-1])
    assert str(compared.value) == str(alone.value)


def test_a_failure_in_the_midst_of_a_group_is_not_seen_by_the_next(monkeypatch):
    """Entries that a failed method left in the ledger are not those of the method after it."""
    model, given = tiny.bert().double(), {"input_ids": tiny.ids(1)}
    read = ConservativeLRP.read
    calls = []

    def failing(self, run):
        calls.append(self.name)
        if len(calls) == 2:
            run.backward(self.places(run))
            assert run.ledger.recorded()[0]
            raise whence.ModelError("not this time")
        return read(self, run)

    monkeypatch.setattr(ConservativeLRP, "read", failing)
    requests = [Request(model, "conservative-lrp", {}) for _ in range(3)]
    assert sharing_forward(requests) == [[0, 1, 2]]
    first, failed, last = compute_together(requests, [], given, 1, [1])
    assert failed is None
    expected = whence.explain(model, given, "conservative-lrp", 1)
    assert [first[0].named() == expected, last[0].named() == expected] == [True, True]


def test_unknown_names_and_options_are_said_as_alone():
    explainer = whence.Explainer(tiny.bert())
    with pytest.raises(whence.MethodError, match="rollouts"):
        explainer.compare({"input_ids": tiny.ids(1)}, ["attention", "rollouts"])
    with pytest.raises(whence.MethodError, match="no option 'steps'"):
        explainer.compare({"input_ids": tiny.ids(1)}, ["integrated-gradients", "saliency"], steps=3)


def test_comparisons_are_captured_and_replayed():
    explainer = whence.Explainer(tiny.bert())
    for seed in range(6):
        given = {"input_ids": tiny.ids(1, seed=seed)}
        found = explainer.compare(given, MAPS)
        assert all(e == whence.explain(explainer.model, given, e.method) for e in found)
    captures = [explainer._captures.of(name, {}) for name in MAPS]
    assert all(known.captures for own in captures for known in own._signatures.values())
