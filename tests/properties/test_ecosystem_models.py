"""Adapters and quantised models, as their packages make them: equal to the plain model, or a sentence that says why."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

import whence
from tools.ecosystem import adapters, quantised
from tools.ecosystem.tiny_models import INPUTS

MODULES = {"optimum-quanto": "optimum.quanto", "transformers": "peft", "torch": "torch"}
METHODS = ["conservative-lrp", "lrp", "transformer-attribution", "rollout"]


def explained(explain, method):
    """The scores, or the sentence by which a method does not apply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return explain(method).scores
        except whence.WhenceError as error:
            return str(error)


@pytest.mark.parametrize("case", adapters.CASES + quantised.CASES, ids=lambda case: f"{case.package}: {case.name}")
def test_a_model_as_it_is_loaded_equals_the_plain_one(case):
    module = MODULES.get(case.package, case.package)
    pytest.importorskip(module, reason=f"{case.package} is not installed; it is no dependency of the tests")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = case.build()
    for method in METHODS:
        plain, loaded = (explained(explain, method) for explain in pair)
        if isinstance(plain, str) or isinstance(loaded, str):
            assert plain == loaded, method
            continue
        tolerance = 1e-5 if case.correlation is None else 0.1
        assert float((plain - loaded).abs().max()) <= tolerance * float(plain.abs().max()), method


def test_replays_follow_the_adapter_that_is_set():
    peft = pytest.importorskip("peft", reason="peft is not installed; it is no dependency of the tests")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    model = adapters.adapted("SEQ_CLS", config)
    model.add_adapter("other", config)
    adapters.trained(model)
    explain = whence.compile(model, "lrp")
    given = INPUTS
    seen = [explain(given, target=1)]

    def check() -> None:
        e = explain(given, target=1)
        assert e == whence.explain(model, given, "lrp", target=1)
        assert all(not torch.equal(e.scores, one.scores) for one in seen)
        seen.append(e)

    model.set_adapter("other")
    check()
    for context in (model.disable_adapter(), contextlib.nullcontext()):
        with context:
            for module in model.modules():
                if hasattr(module, "set_scale"):
                    module.set_scale("other", 3.0)
            check()
