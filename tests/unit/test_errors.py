"""Bad input: a sentence that says what was found and what to do, and the model left as found."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import refused
from whence.methods.registry import REGISTRY

METHOD = "transformer-attribution"


def words(**more):
    return {"input_ids": tiny.ids(), **more}


def test_unknown_method_names_the_nearest():
    text = refused(
        whence.MethodError, "no method 'conservative_lrp'", whence.explain, tiny.bert(), words(), "conservative_lrp"
    )
    assert "Did you mean 'conservative-lrp'?" in text


def test_unknown_option_lists_the_options():
    text = refused(whence.MethodError, "no option 'layer'", whence.explain, tiny.bert(), words(), METHOD, layer=3)
    assert "start_layer" in text


@pytest.mark.parametrize(("method", "options"), [
    ("conservative-lrp", {"at": "word"}), ("conservative-lrp", {"activations": "none"}),
    ("generic-attention", {"rows": "cls"}), (METHOD, {"start_layer": 9}), (METHOD, {"block": -7}),
    ("generic-attention", {"start_layer": 2}),
])  # fmt: skip
def test_option_out_of_range(method, options):
    refused(whence.MethodError, r"must be|out of range", whence.explain, tiny.bert(), words(), method, **options)


@pytest.mark.parametrize(("method", "options", "told"), [
    (METHOD, {"start_layer": "abc"}, r"'start_layer' of the method '.*' takes int, not str \('abc'\)"),
    (METHOD, {"start_layer": 1.0}, "takes int, not float"), (METHOD, {"start_layer": True}, "takes int, not bool"),
    (METHOD, {"normalise": 1}, "takes bool, not int"), (METHOD, {"block": "1"}, r"takes int \| None, not str"),
    ("saliency", {"at": None}, "takes str, not NoneType"), ("dave", {"alpha": "0.3"}, "takes float, not str"),
])  # fmt: skip
def test_option_of_a_wrong_type(method, options, told):
    refused(whence.MethodError, told, whence.explain, tiny.bert(), words(), method, **options)


def test_numbers_are_numbers():
    model = tiny.bert()
    plain = whence.explain(model, words(), METHOD, start_layer=1, eps=1).scores
    assert torch.equal(whence.explain(model, words(), METHOD, start_layer=np.int64(1), eps=np.float32(1)).scores, plain)


def test_options_of_a_users_method_are_what_it_says_they_are():
    class Anything:
        pass

    @whence.method("test-anything")
    class Mine(REGISTRY["random"]):
        one: Any = None
        two: Anything | None = None  # a name that is known here alone
        three: list[int] = dataclasses.field(default_factory=list)

    try:
        found = whence.explain(tiny.bert(), words(), "test-anything", one="x", two=Anything(), three=[3], seed=3).scores
        assert torch.equal(found, whence.explain(tiny.bert(), words(), "random", seed=3).scores)
    finally:
        del REGISTRY["test-anything"]


@pytest.mark.parametrize("target", [3, -4, [0, 1, 9]])
def test_target_out_of_range(target):
    refused(
        whence.TargetError, "out of range: the model has 3 classes", whence.explain, tiny.bert(), words(), target=target
    )


def test_unknown_label_lists_labels_and_nearest():
    model = tiny.bert()
    model.config.id2label = {0: "negative", 1: "neutral", 2: "positive"}
    assert whence.explain(model, words(), target="positive").target.tolist() == [2, 2, 2]
    text = refused(whence.TargetError, "no label 'postive'", whence.explain, model, words(), target="postive")
    assert "Did you mean 'positive'?" in text
    assert "neutral" in text


@pytest.mark.parametrize("target", [[0, 1], ["LABEL_0"]])
def test_as_many_targets_as_samples(target):
    refused(whence.TargetError, "for a batch of 3", whence.explain, tiny.bert(), words(), target=target)


@pytest.mark.parametrize("target", [1.5, [None, 1, 2], True])
def test_target_of_a_wrong_type(target):
    refused(whence.TargetError, r"class number or a label", whence.explain, tiny.bert(), words(), target=[target] * 3)


@pytest.mark.parametrize("value", [lambda o: o.logits, lambda o: 1.0, lambda o: o.logits[:2, 0]])
def test_target_function_must_return_one_value_per_sample(value):
    refused(whence.TargetError, r"one per sample", whence.explain, tiny.bert(), words(), target=value)


def test_target_function_must_depend_on_the_input():
    refused(
        whence.TargetError, "does not depend", whence.explain, tiny.bert(), words(), target=lambda o: torch.zeros(3)
    )


class NoClasses(nn.Module):
    def __init__(self, shape: str) -> None:
        super().__init__()
        self.embed, self.shape = nn.Embedding(60, 4), shape

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return {"maps": x[:, None], "vector": x.sum((1, 2)), "nothing": {"hidden": x}, "text": "hello"}[self.shape]


@pytest.mark.parametrize("shape", ["maps", "vector", "nothing", "text"])
def test_outputs_without_a_class_axis(shape):
    refused(whence.TargetError, "target=lambda outputs", whence.explain, NoClasses(shape), words())


def test_a_vector_of_outputs_is_explained_by_a_function():
    e = whence.explain(NoClasses("vector"), words(), "gradient-x-input", target=lambda o: o, at="token")
    assert torch.allclose(e.scores.sum(1), e.logits)


class Integers(nn.Module):
    def forward(self, input_ids):
        return nn.functional.one_hot(input_ids, 60).float().sum(1)


def test_integers_without_an_embedding():
    refused(whence.InputError, "integers and no", whence.explain, Integers(), words())


class NoAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)

    def forward(self, input_ids):
        return self.head(torch.relu(self.embed(input_ids)).mean(1))


@pytest.mark.parametrize("method", [METHOD, "generic-attention"])
def test_attention_methods_refuse_a_model_without_attention(method):
    text = refused(whence.ModelError, "no attention", whence.explain, NoAttention(), words(), method)
    assert "conservative-lrp" in text


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_input_level_methods_work_without_attention(method):
    e = whence.explain(NoAttention(), words(), method)
    assert e.scores.shape == (3, 7)


@pytest.mark.parametrize(
    "inputs", [{}, {"input_ids": torch.zeros(0, 5, dtype=torch.long)}, (), {"input_ids": [[1, 2]]}]
)
def test_nothing_to_explain(inputs):
    refused(whence.InputError, r"empty|no tensor", whence.explain, tiny.bert(), inputs)


def test_mismatched_lengths():
    refused(whence.InputError, "must agree", whence.explain, tiny.bert(), words(attention_mask=torch.ones(3, 6)))


def test_another_device(monkeypatch):
    refused(whence.ModelError, "meta device", whence.explain, tiny.bert().to("meta"), words())
    monkeypatch.setattr("whence.runs.model_inputs.device_of", lambda model: torch.device("cuda", 0))
    refused(whence.InputError, "is on cuda:0 but the input 'input_ids' is on cpu", whence.explain, tiny.bert(), words())


def test_not_a_module():
    with pytest.raises(whence.InputError, match=r"nn\.Module"):
        whence.explain(lambda x: x, words())


def test_nan_in_the_input_is_located():
    x = tiny.pixels()
    x[1, 2, 3, 4] = float("nan")
    refused(
        whence.NumericalError,
        r"'pixel_values' has a NaN or an infinity at \[1, 2, 3, 4\]",
        whence.explain,
        tiny.vit(),
        {"pixel_values": x},
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", tiny.METHODS)
def test_a_bad_weight_is_named(value, method):
    model = tiny.bert()
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.weight[2, 3] = value
    refused(
        whence.NumericalError, "bert.encoder.layer.1.intermediate.dense.weight", whence.explain, model, words(), method
    )


class Overflows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = tiny.Encoder(), nn.Linear(3, 3)

    def forward(self, input_ids):
        return self.last(torch.log(self.inner(input_ids) * 0))


def test_an_overflow_is_located():
    refused(whence.NumericalError, "not finite", whence.explain, Overflows(), words())


class Emptied(Overflows):
    def forward(self, input_ids):
        return torch.log(self.inner(input_ids) * 0)


def test_minus_infinity_in_the_output_is_located():
    refused(
        whence.NumericalError,
        "minus infinity, last made by 'log' in or after 'inner",
        whence.explain,
        Emptied(),
        words(),
    )


def test_attention_across_the_batch_is_refused():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1).eval()  # sequence first
    refused(
        whence.ModelError, r"\[tokens, batch", whence.explain, model, torch.randn(5, 3, 8), target=lambda o: o[:, 0, 0]
    )


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(60, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head, self.reentrant = nn.Linear(8, 3), reentrant

    def forward(self, input_ids):
        x = torch.utils.checkpoint.checkpoint(self.layer, self.embed(input_ids), use_reentrant=self.reentrant)
        return self.head(x[:, 0])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("method", tiny.METHODS)
def test_checkpointing_inside_the_model_is_refused(method, reentrant):
    refused(whence.ModelError, "checkpointing", whence.explain, Checkpointed(reentrant).eval(), words(), method)


def test_checkpointing_is_refused_by_a_torch_that_does_not_tell_which_hooks_are_active(monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    refused(whence.ModelError, "checkpointing", whence.explain, Checkpointed(False).eval(), words(), "conservative-lrp")
    assert whence.explain(tiny.bert(), {"input_ids": tiny.ids(1)}).scores.isfinite().all()


class Overwrites(nn.Module):
    """Writes into the input of a linear layer after using it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(60, 8), nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for _ in range(2):
            x = x.transpose(1, 2).transpose(1, 2)
            q, k, v = self.qkv(x).chunk(3, -1)
            x.mul_(2.0)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head(x)[:, 0]


@pytest.mark.filterwarnings("ignore:Part of 'input_ids' bypasses:whence.WhenceWarning")
def test_an_input_overwritten_after_use_is_refused_not_miscomputed():
    """What enters its attention is not what the attention is added to."""
    refused(whence.ModelError, "in place", whence.explain, Overwrites(), words(), "lrp")
    refused(whence.ModelError, "sums that are not followed", whence.explain, Overwrites(), words(), METHOD)


def test_a_model_that_could_not_be_trained_either():
    class Relu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(60, 8), nn.Linear(8, 3)

        def forward(self, input_ids):
            return self.head(torch.relu_(self.embed(input_ids) * 2).add_(1.0).mul_(2.0))[:, 0]

    refused(
        whence.ModelError, "in place", whence.explain, Relu(), words(), "saliency"
    )  # nothing of it is watched: it runs as it is


class ReadsPadding(nn.Module):
    """Answers from the last position, whether it is padding or not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = tiny.Encoder()

    def forward(self, input_ids, attention_mask):
        return self.inner.head(self.inner.encoder(self.inner.embed(input_ids))[:, -1])


def test_a_model_that_reads_its_padding_is_spoken_of():
    batch = tiny.padded([7, 4, 4])
    batch.pop("position_ids")
    with pytest.warns(whence.WhenceWarning, match=r"reads its padding: \d+% of the relevance"):
        e = whence.explain(ReadsPadding().eval(), batch)
    assert (e.scores[1, 4:] == 0).all()
