"""Changed copies of a batch in one forward pass: the same scores as one by one, within the memory that is free."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.unit.runs.test_rerun import MODELS
from whence.methods.integrated_gradients import IntegratedGradients
from whence.runs import copies
from whence.runs.copies import memory_of_copy
from whence.runs.forward import forwarded

METHODS = {
    "integrated-gradients": {"steps": 7},
    "smooth-grad": {"samples": 7},
    "occlusion": {},
    "kernel-shap": {"samples": 15},
    "lime": {"samples": 15},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_copies_that_go_together_are_those_that_go_alone(name, method):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, given = make().double(), inputs()
    together = whence.explain(model, given, method, 1, **METHODS[method])
    for size in (1, 6):  # one copy of the batch of two, three copies
        alone = whence.explain(model, given, method, 1, internal_batch_size=size, **METHODS[method])
        assert relative(together.scores, alone.scores) < EXACT


@pytest.mark.parametrize("method", METHODS)
def test_padding_and_other_samples_change_nothing(method):
    model, ids = tiny.bert().double(), tiny.ids(2)
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    batch = whence.explain(model, {"input_ids": ids, "attention_mask": mask}, method, 1, **METHODS[method])
    for i, length in enumerate((7, 4)):
        alone = whence.explain(model, {"input_ids": ids[i : i + 1, :length]}, method, 1, **METHODS[method])
        assert relative(batch.scores[i, :length], alone.scores[0]) < EXACT
    assert not batch.scores[1, 4:].any()


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


@pytest.mark.parametrize("method", ["integrated-gradients", "occlusion"])
@pytest.mark.parametrize(("options", "batches"), [
    ({}, [2, 10, 2, 10]),  # the first, five points, the last of these alone, five points
    ({"mixing": True}, [2, 10, 2] + 10 * [2]),
    ({"fixed": 2}, [2, 10] + 10 * [2]),
])  # fmt: skip
def test_they_go_together_if_they_do_not_influence_each_other(method, options, batches):
    torch.manual_seed(0)
    model, x = Counting(**options).double().eval(), torch.randn(2, 10, 4, dtype=torch.float64)
    steps = {"steps": 10} if method == "integrated-gradients" else {}  # as many as there are tokens
    found = whence.explain(model, {"x": x}, method, [0, 2], at="pixel", internal_batch_size=11, **steps)
    assert model.batches == batches
    alone = whence.explain(model, {"x": x}, method, [0, 2], at="pixel", internal_batch_size=1, **steps)
    assert relative(found.scores, alone.scores) < EXACT


@pytest.mark.parametrize("method", METHODS)
def test_a_target_that_is_a_function_is_computed_for_one_copy_at_a_time(method):
    torch.manual_seed(0)
    model, x = Counting().double().eval(), torch.randn(2, 5, 4, dtype=torch.float64)
    found = whence.explain(model, {"x": x}, method, lambda out: out[:, 1], at="pixel", **METHODS[method])
    assert set(model.batches) == {2}
    assert (
        relative(found.scores, whence.explain(model, {"x": x}, method, 1, at="pixel", **METHODS[method]).scores) < EXACT
    )


class Pairs(nn.Module):
    """Pictures by texts, as in CLIP: how well each of the batch's texts fits each picture."""

    def __init__(self):
        super().__init__()
        self.picture, self.text = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y):
        return torch.tanh(self.picture(x)).mean(1) @ torch.tanh(self.text(y)).mean(1).T


@pytest.mark.parametrize("method", METHODS)
def test_classes_that_are_samples_are_not_mixed_up(method):
    torch.manual_seed(0)
    model, given = Pairs().double().eval(), {"x": torch.randn(2, 5, 4).double(), "y": torch.randn(2, 3, 4).double()}
    scores = [
        whence.explain(model, given, method, 1, at="pixel", internal_batch_size=size, **METHODS[method]).scores
        for size in (None, 1)
    ]
    assert relative(scores[0], scores[1]) < EXACT


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["integrated-gradients", "occlusion"])
def test_as_many_go_together_as_fit_into_the_free_memory(method, monkeypatch):
    torch.manual_seed(0)
    model, x = Counting().double().eval(), torch.randn(1, 40, 4, dtype=torch.float64)
    with forwarded(model, [], {"x": x}, 1, IntegratedGradients(), [0]) as (run,):
        need = memory_of_copy(run, gradients=method == "integrated-gradients")
    for free, largest in ((0, 1), (need, 1), (6 * need, 3), (2**40, 1024 // 40)):
        monkeypatch.setattr(copies, "free_memory", lambda device, free=free: free)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        model.batches.clear()
        whence.explain(model, {"x": x}, method, 0, at="pixel")
        assert max(model.batches) == largest


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
def test_the_memory_of_a_copy_bounds_what_autograd_saves(name):
    make, inputs = MODELS[name]
    model, given = make().double().requires_grad_(False), inputs()
    with forwarded(model, [], given, 2, IntegratedGradients(), [0]) as (run,):
        need, without_graph = memory_of_copy(run, gradients=True), memory_of_copy(run, gradients=False)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def pack(t):
        saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t  # is kept, so that no other tensor has its address

    if "input_ids" in given:
        given = {"inputs_embeds": model.get_input_embeddings()(given["input_ids"])}
    given = {name: t.requires_grad_() for name, t in given.items()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        kept = model(**given)
    expected = sum(size for address, size in saved.items() if address not in weights)
    del kept
    assert expected <= need <= 6 * expected  # all results of operations, of which autograd saves some
    assert 0 < without_graph < need


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_samples_is_refused(method):
    with pytest.raises(whence.MethodError, match="`internal_batch_size` must be at least 1, not 0"):
        whence.explain(tiny.bert(), tiny.ids(1), method, internal_batch_size=0)
