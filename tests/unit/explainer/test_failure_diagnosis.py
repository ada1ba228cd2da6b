"""Unexpected exceptions: whose fault they are is tried, and said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import refused
from tests.support.snapshot import snapshot
from whence.methods.gradient_x_input import InputLevel
from whence.methods.registry import REGISTRY
from whence.propagation.rules.relevance import RelevanceRules
from whence.tracing.tracer import Trace


class Small(nn.Module):
    """A classifier of words that ends as a test says."""

    def __init__(self, end):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.end = nn.Embedding(60, 8), nn.Linear(8, 3), end

    def forward(self, input_ids, **options):
        return self.end(self.head(self.embed(input_ids).mean(1)), **options)


def words():
    return {"input_ids": tiny.ids(2)}


def broken(*_: Any, **__: Any):
    raise TypeError("unsupported operand")


# -- faults of Whence --------------------------------------------------------------------------------------------------


def test_a_fault_while_tracing_names_operation_module_and_line(monkeypatch):
    perform = Trace._perform

    def fail(self, written):
        return broken() if written.name == "softmax" else perform(self, written)

    monkeypatch.setattr(Trace, "_perform", fail)
    model = tiny.bert(implementation="eager")
    before = snapshot(model)
    with pytest.raises(whence.EngineError) as found:
        whence.explain(model, words())
    text = str(found.value)
    assert (
        "in 'conservative-lrp' at the operation 'softmax' in the module 'bert.encoder.layer.0.attention.self'" in text
    )
    assert "(tracing/tracer.py:" in text
    assert "TypeError: unsupported operand" in text
    assert "input_ids [2, 7] int64" in text
    assert f"torch {torch.__version__}" in text
    assert isinstance(found.value.__cause__, TypeError)
    assert snapshot(model) == before


def test_a_fault_in_a_rule_names_operation_and_module(monkeypatch):
    monkeypatch.setattr(RelevanceRules, "linear", broken)
    with pytest.raises(whence.EngineError, match="at the operation 'linear' in the module 'classifier'"):
        whence.explain(tiny.bert(), words(), "transformer-attribution")


@pytest.mark.parametrize("kind", [TypeError, AttributeError, RuntimeError, AssertionError, IndexError, KeyError])
def test_a_fault_in_a_readout_is_one_sentence_whatever_it_is(kind, monkeypatch):
    def fail(*_):
        raise kind("lost")

    monkeypatch.setattr(InputLevel, "read", fail)
    with pytest.raises(whence.EngineError, match=rf"{kind.__name__}: .*lost.*fault of Whence.*report it") as found:
        whence.explain(tiny.bert(), words(), "gradient-x-input")
    assert type(found.value.__cause__) is kind


def test_a_fault_is_named_by_every_way_in(monkeypatch):
    monkeypatch.setattr(InputLevel, "read", broken)
    model = tiny.bert()
    for ask in (
        lambda: whence.explain(model, words(), target=whence.every([0, 1])),
        lambda: whence.compile(model)(words()),
        lambda: whence.Explainer(model)(words()),
        lambda: whence.Explainer(model).compare(words(), ["conservative-lrp", "gradient-x-input"]),
    ):
        refused(whence.EngineError, "fault of Whence", ask)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, torch.OutOfMemoryError])
def test_interrupts_and_exhausted_memory_pass(kind, monkeypatch):
    def fail(*_):
        raise kind("stop")

    monkeypatch.setattr(InputLevel, "read", fail)
    with pytest.raises(kind, match="stop"):
        whence.explain(tiny.bert(), words())


def test_memory_that_a_model_exhausts_is_not_called_its_failure():
    def end(x):
        raise torch.OutOfMemoryError("no more")

    with pytest.raises(torch.OutOfMemoryError):
        whence.explain(Small(end), words())


def test_a_users_own_method_keeps_its_exceptions():
    @whence.method("test-own")
    class Own(REGISTRY["random"]):
        def read(self, run):
            raise LookupError("mine")

    try:
        with pytest.raises(LookupError, match="mine"):
            whence.explain(tiny.bert(), words(), "test-own")
    finally:
        del REGISTRY["test-own"]


# -- faults of the model, the target or the input ----------------------------------------------------------------------


def test_a_model_that_fails_without_whence_is_said_to():
    def end(x):
        raise KeyError("lost")

    with pytest.raises(whence.InputError, match=r"itself fails .*without Whence: KeyError: 'lost'") as found:
        whence.explain(Small(end), words())
    assert isinstance(found.value.__cause__, KeyError)


def test_a_model_that_fails_only_when_it_is_traced_is_not_blamed():
    """The claim would be false: without Whence it runs."""

    def end(x):
        if torch.overrides._get_current_function_mode_stack():
            raise RuntimeError("seen")
        return x

    assert "runs on this input without Whence" in refused(
        whence.EngineError, "seen", whence.explain, Small(end), words()
    )


def test_a_missing_argument_is_named():
    def end(x, *, extra):
        return x

    refused(whence.InputError, "missing 1 required keyword-only argument: 'extra'", whence.explain, Small(end), words())


def test_numbers_outside_the_vocabulary_are_the_models_own_error():
    refused(whence.InputError, "itself fails", whence.explain, tiny.bert(), {"input_ids": tiny.ids(2) + 1000})


def test_a_target_function_that_fails_is_said_to():
    def margin(outputs):
        return outputs.nothing[:, 0]

    text = refused(whence.TargetError, "'margin' fails", whence.explain, tiny.bert(), words(), target=margin)
    assert "no attribute 'nothing'" in text


def test_a_target_function_that_fails_only_when_it_is_traced_is_not_blamed():
    def target(outputs):
        if torch.overrides._get_current_function_mode_stack():
            raise RuntimeError("seen")
        return outputs.logits[:, 0]

    refused(whence.EngineError, "seen", whence.explain, tiny.bert(), words(), target=target)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no way back")


def test_a_backward_pass_of_the_models_own_that_fails_is_said_to():
    refused(whence.ModelError, "own backward pass fails.*no way back", whence.explain, Small(Once.apply), words())


def test_a_function_without_a_derivative_is_claimed_only_if_a_plain_backward_pass_fails():
    def end(x):
        return torch.special.zeta(x.abs() + 2, x.abs() + 1)

    refused(whence.ModelError, "has no backward pass: without Whence, it fails", whence.explain, Small(end), words())


def test_a_derivative_that_only_whence_needs_is_not_claimed_to_be_the_models(monkeypatch):
    def fail(*_):
        raise RuntimeError("derivative for aten::some_backward is not implemented")

    monkeypatch.setattr(InputLevel, "read", fail)
    text = refused(
        whence.ModelError, "a plain backward pass of the model does not need", whence.explain, tiny.bert(), words()
    )
    assert "fails, too" not in text


def test_an_overwritten_tensor_that_only_whence_needs_is_not_claimed_to_be_the_models(monkeypatch):
    def fail(*_):
        raise RuntimeError("one of the variables was modified by an inplace operation")

    monkeypatch.setattr(InputLevel, "read", fail)
    refused(whence.ModelError, "plain backward pass of the model does not need", whence.explain, tiny.bert(), words())


def test_an_overwritten_tensor_that_the_model_needs_is_claimed_to_be():
    def end(x):
        return x.exp().mul_(2.0)

    text = refused(
        whence.ModelError,
        "own backward pass needs: without Whence, it fails",
        whence.explain,
        Small(end),
        words(),
        "saliency",
    )
    assert "Torch says" in text


# -- odd models and inputs ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Outputs:
    logits: torch.Tensor


def test_a_dataclass_with_logits_is_explained():
    assert whence.explain(Small(Outputs), words()).scores.shape == (2, 7)


def test_a_model_under_no_grad_is_explained():
    class Frozen(Small):
        def forward(self, input_ids):
            with torch.no_grad():
                return super().forward(input_ids)

    free = whence.explain(Small(lambda x: x), words()).scores
    assert torch.equal(whence.explain(Frozen(lambda x: x), words()).scores, free)


@pytest.mark.parametrize(
    ("error", "said", "end"),
    [
        (whence.TargetError, "returned NoneType", lambda x: None),
        (whence.TargetError, "returned str", lambda x: "positive"),
        (whence.TargetError, "complex numbers", torch.fft.fft),
        (whence.InputError, "of type int64, which has no gradient", lambda x: (9 * x).long()),
        (whence.InputError, "No gradient leads .* what it reads .'input_ids'", lambda x: x.detach()),
        (whence.InputError, "No gradient leads", lambda x: torch.tensor(x.tolist())),
    ],
)  # fmt: skip
def test_outputs_that_cannot_be_explained(error, said, end):
    text = refused(error, said, whence.explain, Small(end), words())
    assert "no embedding of them was found" not in text


def test_no_embedding_is_claimed_only_of_integers():
    """The claim would be false: its input is of floating-point numbers, in a list."""

    class Listed(nn.Module):
        def forward(self, mask, given):
            return given[0] * 2

    text = refused(
        whence.InputError, "inside lists", whence.explain, Listed(), (torch.ones(2, 3).long(), [torch.rand(2, 3)])
    )
    assert "integers" not in text


def test_numbers_that_the_model_computes_before_it_looks_them_up():
    class Shifted(Small):
        def forward(self, input_ids):
            return super().forward(input_ids.add_(1))

    refused(whence.InputError, "of numbers that it computes", whence.explain, Shifted(lambda x: x), words())


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("'meta'", torch.zeros(2, 5, dtype=torch.long, device="meta")),
        ("empty", torch.zeros(0, 5, dtype=torch.long)),
        ("empty", torch.zeros(2, 0, dtype=torch.long)),
        ("no tensor", [torch.zeros(5, dtype=torch.long), torch.zeros(3, dtype=torch.long)]),
    ],
)
def test_inputs_that_cannot_be_explained(said, value):
    refused(whence.InputError, said, whence.explain, Small(lambda x: x), {"input_ids": value})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_ragged_batch_is_named():
    ragged = torch.nested.nested_tensor([torch.zeros(5).long(), torch.zeros(3).long()], layout=torch.strided)
    refused(whence.InputError, "nested tensor", whence.explain, Small(lambda x: x), {"input_ids": ragged})


def test_an_infinite_target_function_does_not_make_the_models_output_infinite():
    text = refused(
        whence.NumericalError, "target function is not finite", whence.explain, tiny.bert(), words(),
        target=lambda outputs: (outputs.logits[:, 0] * 0).log(),
    )  # fmt: skip
    assert "The model's output is not finite" not in text


def test_a_complex_target_is_named():
    refused(
        whence.TargetError,
        "complex",
        whence.explain,
        Small(torch.fft.fft),
        words(),
        target=lambda outputs: outputs[:, 0],
    )
    assert whence.explain(Small(torch.fft.fft), words(), "gradient-x-input", lambda o: o[:, 1].abs()).scores.any()


def test_an_explanation_of_tensors_says_that_nothing_is_recorded():
    refused(whence.WhenceError, "nothing of its input is recorded", lambda: whence.explain(tiny.bert(), words()).tokens)


def test_a_bad_weight_is_blamed_only_where_it_is_read():
    """The claim would be false: the model's own logarithm makes the infinity, and the weight is never read."""

    def end(x):
        return (x * 0 + 1).reciprocal() / (x * 0)

    model = Small(end)
    model.register_buffer("bounds", torch.tensor([torch.inf]))
    text = refused(whence.NumericalError, "first appears in the output of 'div", whence.explain, model, words())
    assert "bounds" not in text
