"""One model explained again, changed or by several threads: the scores are those of a fresh model."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import same
from whence.tracing import replay

METHODS = ["attn-lrp", "res-lrp", "conservative-lrp"]


class Adjustable(nn.Module):
    """A block, one step of which depends on an attribute."""

    def __init__(self, step, value) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.value = step, value
        self.embed, self.norm = nn.Embedding(60, 8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def attention(self, x):
        s = self.q(x) @ self.k(x).mT / 8**0.5
        a = self.step(s, self.value) if self.step in (masked, divided) else torch.softmax(s, -1)
        return self.out(a @ self.v(x))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        y = self.norm(x)
        f = self.attention(y if self.step in (masked, divided, multiple) else self.step(y, self.value))
        return self.head((multiple(x, f, self.value) if self.step is multiple else x + f).mean(1))


def masked(s, mask):
    return torch.softmax(s + torch.where(mask, 0.0, -torch.inf).to(s), -1)


def divided(s, factor):
    e = torch.exp(s)
    return e / (e.sum(-1, keepdim=True) * factor)


def multiple(x, f, factor):
    return (2 * x + factor * f) / 2


def norm_or_gate(x, exponent):
    return x * torch.pow(x.pow(2).mean(-1, keepdim=True) + 1e-6, exponent)


def centred(x, factor):
    return x - factor * x.mean(-1, keepdim=True)


def maximum(x, bound):
    return torch.maximum(x, bound.to(x))


def clamped(x, low):
    return torch.clamp(x, min=low)


def called(x, function):
    return function(x)


def repeated(x, times):
    for _ in range(times):
        x = torch.tanh(x)
    return x


def swapped(x, swap):
    a, b = torch.sigmoid(x), x * 2
    return b / a if swap else a / b.exp()


def scaled(x, scale):
    return x if scale is None else x * scale


def routed(x, _):
    """Apply one of four activations to each token; one that no token is sent to is not called."""
    chosen = x[..., :4].argmax(-1)
    out = torch.zeros_like(x)
    for i, function in enumerate((torch.tanh, F.gelu, torch.relu, lambda t: t * torch.sigmoid(t))):
        if (chosen == i).any():
            out[chosen == i] = function(x[chosen == i])
    return out


def number(value):
    return torch.tensor(value, dtype=torch.float64)


CHANGES = {
    "exponent": (norm_or_gate, -0.5, 1.0),
    "exponent tensor": (norm_or_gate, number(-0.5), number(1.0)),
    "multiple of the mean": (centred, 1.0, 0.5),
    "multiple of the mean, tensor": (centred, number(1.0), number(0.5)),
    "bound": (clamped, 0.5, 0.0),
    "bound tensor": (maximum, number(0.0), number(1.0)),
    "softmax": (divided, 2.0, 1.0),
    "softmax tensor": (divided, number(2.0), number(1.0)),
    "residual sum": (multiple, 3.0, 2.0),
    "residual sum tensor": (multiple, number(3.0), number(2.0)),
    "activation": (called, torch.relu, torch.tanh),
    "number of calls": (repeated, 3, 1),
    "operands": (swapped, False, True),
    "one call less": (scaled, 0.5, None),
    "mask": (masked, torch.eye(7).bool(), torch.ones(7, 7).tril().bool()),
}


def explained(model, method, ids=None):
    return whence.explain(model, tiny.ids(2) if ids is None else ids, method, 1, at="token")


def fresh(step, value, method, monkeypatch, ids=None):
    """The explanation of a model in a process that has explained no other."""
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_ANSWERS", {})
        return explained(Adjustable(step, value).double().eval(), method, ids)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_changed_has_the_scores_of_a_fresh_one(change, method, back, monkeypatch):
    step, *values = CHANGES[change]
    before, after = reversed(values) if back else values
    model = Adjustable(step, before).double().eval()
    explained(model, method)
    model.value = after
    found, want = explained(model, method), fresh(step, after, method, monkeypatch)
    same(found, want, 1e-12)
    assert found.coverage == want.coverage


@pytest.mark.parametrize("method", METHODS)
def test_the_second_explanation_is_the_first(method):
    torch.manual_seed(0)
    model = tiny.Handwritten().double().eval()
    first, second = (explained(model, method) for _ in range(2))
    same(first, second, 0)
    assert first.coverage == second.coverage


@pytest.mark.parametrize("method", METHODS)
def test_tokens_that_make_other_calls_have_the_scores_of_a_fresh_model(method, monkeypatch):
    model = Adjustable(routed, None).double().eval()
    for seed in range(4):
        ids = tiny.ids(2, seed=seed)
        same(explained(model, method, ids), fresh(routed, None, method, monkeypatch, ids), 1e-12)


def test_one_method_does_not_decide_for_another(monkeypatch):
    model = Adjustable(clamped, 0.0).double().eval()
    for method in (*METHODS, "lrp", "gradient-x-input"):
        same(explained(model, method), fresh(clamped, 0.0, method, monkeypatch), 1e-12)


def test_an_explanation_keeps_no_model_alive():
    model = Adjustable(clamped, 0.0).double().eval()
    explained(model, "attn-lrp")
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_two_threads_explain_one_model_as_one_does():
    inputs = [tiny.ids(2, seed=seed) for seed in range(4)]
    model = Adjustable(norm_or_gate, -0.5).double().eval()
    want = [explained(model, "attn-lrp", ids) for ids in inputs]
    found = {}

    def work(mine):
        for i in mine:
            found[mine, i] = explained(model, "attn-lrp", inputs[i])

    orders = [(0, 1, 2, 3), (3, 2, 1, 0)]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8  # none has failed
    for (_, i), e in found.items():
        same(e, want[i], 0)
