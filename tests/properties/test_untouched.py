"""The model is left exactly as found: after an explanation, an error, an interrupt, and beside other threads."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support import tiny
from tests.support.snapshot import snapshot
from whence.tracing.node import Node


@pytest.mark.parametrize("method", tiny.METHODS)
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_found(method, training):
    model = tiny.bert().train(training)
    model.bert.encoder.layer[0].eval()
    for p in list(model.parameters())[::2]:
        p.requires_grad_(False)
    before = snapshot(model)
    ids = tiny.ids()
    kept = ids.clone()
    whence.explain(model, {"input_ids": ids}, method)
    assert snapshot(model) == before
    assert torch.equal(ids, kept)
    assert not ids.__dict__


class Breaks(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.inner, self.error = tiny.Encoder(), error

    def forward(self, input_ids):
        self.inner(input_ids)
        raise self.error("stop")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("method", tiny.METHODS)
def test_the_model_is_left_as_found_after_an_exception(method, error):
    model = Breaks(error).train()
    before = snapshot(model)
    with pytest.raises(whence.InputError if error is RuntimeError else error, match="stop"):
        whence.explain(model, {"input_ids": tiny.ids()}, method)
    assert snapshot(model) == before
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.is_grad_enabled()


def test_an_error_in_the_backward_leaves_nothing_behind():
    model = tiny.bert()
    before = snapshot(model)

    def target(outputs):
        outputs.logits.register_hook(lambda g: (_ for _ in ()).throw(KeyboardInterrupt))
        return outputs.logits[:, 0]

    with pytest.raises(KeyboardInterrupt):
        whence.explain(model, {"input_ids": tiny.ids()}, target=target)
    assert snapshot(model) == before


def test_under_no_grad_and_inference_mode_the_numbers_are_the_same():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids()}
    want = whence.explain(model, inputs).scores
    with torch.no_grad():
        assert torch.equal(whence.explain(model, inputs).scores, want)
    with torch.inference_mode():
        assert torch.equal(whence.explain(model, {"input_ids": tiny.ids()}).scores, want)


@pytest.mark.parametrize("same_model", [True, False])
def test_threads_do_not_disturb_each_other(same_model):
    models = [tiny.bert(seed=0)] * 2 if same_model else [tiny.bert(seed=0), tiny.vit(seed=1)]
    inputs = (
        [{"input_ids": tiny.ids()}] * 2 if same_model else [{"input_ids": tiny.ids()}, {"pixel_values": tiny.pixels()}]
    )
    methods = ["transformer-attribution", "conservative-lrp"]
    want = [whence.explain(m, i, k).scores for m, i, k in zip(models, inputs, methods, strict=True)]
    third, x = tiny.vit(seed=2), tiny.pixels(seed=3)
    plain = third(x).logits
    got: dict[int, list] = {0: [], 1: [], 2: []}
    start = threading.Barrier(3)

    def explain(i: int) -> None:
        start.wait()
        for _ in range(5):
            got[i].append(whence.explain(models[i], inputs[i], methods[i]).scores)

    def forward() -> None:
        start.wait()
        for _ in range(20):
            got[2].append(third(x).logits)

    threads = [threading.Thread(target=explain, args=(i,)) for i in (0, 1)] + [threading.Thread(target=forward)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got[0]) == len(got[1]) == 5
    for i in (0, 1):
        assert all(torch.equal(s, want[i]) for s in got[i])
    assert all(torch.equal(s, plain) and s.requires_grad for s in got[2])
    assert len(got[2]) == 20


@pytest.mark.parametrize("method", sorted(set(tiny.METHODS) | {"integrated-gradients", "bi-attention"}))
def test_nothing_keeps_itself_alive(method):
    """What an explanation was made from goes when it is made, without a search for cycles."""
    text = method != "dave"
    model = tiny.bert() if text else tiny.vit()
    inputs = {"input_ids": tiny.ids(2)} if text else {"pixel_values": tiny.pixels(2)}
    whence.explain(model, inputs, method)  # what the first call sets up
    while gc.collect():  # what earlier tests have left behind, cycle by cycle
        pass
    gc.disable()
    try:
        explanation = whence.explain(model, inputs, method, target=whence.every([0, 1]))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(found).__name__ for found in gc.garbage if isinstance(found, Tensor | Node)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert len(explanation) == 2
    assert not left


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was(on):
    before = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        whence.explain(tiny.bert(), {"input_ids": tiny.ids(1)})
        assert gc.isenabled() == on
        with pytest.raises(whence.WhenceError):
            whence.explain(tiny.bert(), {"input_ids": tiny.ids(1)}, target=99)
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()
