"""Captured explanations are those of ``whence.explain``, bit for bit, on other inputs and after any change."""

import copy
import dataclasses
import pickle
import warnings

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import close, refused
from whence.errors import InputError
from whence.explainer.captured import _Signature

pytestmark = pytest.mark.usefixtures("rows_of_small_models_are_left_out")

TEXT = sorted(whence.list_methods())
MODELS = {
    "bert": (tiny.bert, lambda seed: {"input_ids": tiny.ids(2, 7, seed)}),
    "bert, eager": (lambda: tiny.bert(implementation="eager"), lambda seed: {"input_ids": tiny.ids(2, 7, seed)}),
    "llama": (tiny.llama, lambda seed: {"input_ids": tiny.ids(2, 7, seed)}),
    "vit": (tiny.vit, lambda seed: {"pixel_values": tiny.pixels(2, seed)}),
    "hand-written": (tiny.Handwritten, lambda seed: tiny.ids(2, 7, seed)),
}


def explained(model, inputs, method, target=None):
    try:
        return whence.explain(model, inputs, method, target)
    except whence.EngineError:
        raise
    except whence.WhenceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("method", TEXT)
@pytest.mark.parametrize("name", MODELS)
def test_a_replay_is_the_explanation_itself(name, method):
    build, inputs = MODELS[name]
    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = [explained(model, inputs(seed), method, target) for seed, target in ((1, None), (2, None), (3, 1))]
        explain = whence.compile(model, method)
        found = [explain(inputs(seed), target) for seed, target in ((1, None), (2, None), (3, 1))]
        again = explain(inputs(4), 0)
        assert again == explained(model, inputs(4), method, 0)
    assert found == wanted


REPLAYED = [
    "attn-lrp", "conservative-lrp", "generic-attention", "grad-cam", "gradient-x-input", "libragrad", "lrp", "res-lrp",
    "rollout", "saliency", "transformer-attribution", "integrated-gradients",
]  # fmt: skip


@pytest.mark.parametrize("method", REPLAYED)
def test_later_inputs_are_replayed(method, monkeypatch):
    model = tiny.bert()
    explain = whence.compile(model, method)
    explain({"input_ids": tiny.ids(2, 7, 0)}, 1)
    wanted = whence.explain(model, {"input_ids": tiny.ids(2, 7, 1)}, method, 0)
    monkeypatch.setattr(whence.explainer.request.Request, "compute", None)  # nothing is computed as usual any more
    assert explain({"input_ids": tiny.ids(2, 7, 1)}, 0) == wanted


TARGETS = {
    "prediction": None,
    "class": 1,
    "label": "LABEL_2",
    "one per sample": [0, 2],
    "contrast": whence.contrast(0, 1),
    "against the prediction": whence.contrast(0, None),
    "several": whence.every([0, 1, None]),
    "function": lambda outputs: outputs.logits[:, 0] * 2,
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_every_kind_of_target_is_replayed(target):
    model = tiny.bert()
    explain = whence.compile(model, "attn-lrp")
    for seed in (0, 1, 2, 3):
        inputs = {"input_ids": tiny.ids(2, 7, seed)}
        try:
            wanted = whence.explain(model, inputs, "attn-lrp", target)
        except whence.TargetError:  # a class against itself
            with pytest.raises(whence.TargetError):
                explain(inputs, target)
            continue
        assert explain(inputs, target) == wanted
    assert not explain.captures.refusals


def test_a_position_is_part_of_the_target():
    model = tiny.gpt2()
    explain = whence.compile(model, "conservative-lrp")
    inputs = {"input_ids": tiny.ids(2, 7, 0)}
    for target in (whence.At(3, 1), whence.At(5, 2), whence.At([1, 4], [3, 4]), whence.At(2)):
        try:
            wanted = whence.explain(model, inputs, "conservative-lrp", target)
        except whence.TargetError:
            pytest.skip("the model has one answer for all positions")
        assert explain(inputs, target) == wanted


def test_padding_is_replayed_and_a_mask_of_another_kind_is_noticed():
    model = tiny.bert()
    explain = whence.compile(model, "conservative-lrp")
    for lengths in ([7, 7], [7, 5], [7, 3], [7, 7], [4, 7]):
        inputs = tiny.padded(lengths, seed=sum(lengths))
        assert explain(inputs, 1) == whence.explain(model, inputs, "conservative-lrp", 1)


class Branching(nn.Module):
    """Takes another way where a token has an even number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = tiny.bert()

    def forward(self, input_ids):
        logits = self.model(input_ids=input_ids).logits
        return logits * 3 if int(input_ids[0, 0]) % 2 == 0 else torch.tanh(logits)


def test_another_way_through_the_model_is_noticed():
    model = Branching()
    explain = whence.compile(model, "attn-lrp")
    for first in (4, 5, 4, 5, 6, 7):
        ids = tiny.ids(2, 7, first)
        ids[0, 0] = first
        assert explain(ids, 1) == whence.explain(model, ids, "attn-lrp", 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.classifier.weight.data.mul_(2),
        lambda m: m.bert.encoder.layer[0].output.dense.weight.data.mul_(2),
        lambda m: m.bert.embeddings.position_embeddings.weight.data.mul_(2),
        lambda m: nn.init.normal_(m.bert.encoder.layer[1].attention.self.query.weight),
        lambda m: m.bert.encoder.layer[0].register_forward_hook(lambda mod, given, out: out * 2),
        lambda m: setattr(m.bert.encoder.layer[0].output.LayerNorm, "eps", 0.1),
        lambda m: setattr(m.bert.encoder.layer[0].intermediate, "intermediate_act_fn", nn.ReLU()),
    ],
)
@pytest.mark.parametrize("method", ["conservative-lrp", "lrp"])
def test_a_change_of_the_model_is_noticed(change, method):
    model = tiny.bert()
    explain = whence.compile(model, method)
    inputs = {"input_ids": tiny.ids(2, 7, 0)}
    before = explain(inputs, 1)
    assert explain(inputs, 1) == before
    change(model)
    after = explain(inputs, 1)
    fresh = whence.explain(model, inputs, method, 1)
    assert torch.allclose(after.scores, fresh.scores, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(after.scores, before.scores)


class Selects(nn.Module):
    """Computes with as many tokens as it finds, as mixtures of experts do."""

    def __init__(self):
        super().__init__()
        self.model = tiny.Handwritten()

    def forward(self, ids):
        logits = self.model(ids)
        chosen = (logits > 0).nonzero()[:, 0]
        return logits.index_add(0, chosen, logits[chosen])


def test_shapes_that_depend_on_values_are_computed_as_usual_and_the_reason_is_given():
    model = Selects()
    explain = whence.compile(model, "gradient-x-input")
    for seed in (0, 1):
        ids = tiny.ids(1, 7, seed)
        assert explain(ids, 1) == whence.explain(model, ids, "gradient-x-input", 1)
    assert "shape of a tensor depends on values" in explain.captures.refusals[0]


def test_warnings_are_given_again():
    model = tiny.bert()
    inputs = {"input_ids": tiny.ids(2, 7, 0), "attention_mask": torch.ones(2, 7, dtype=torch.long)}

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):  # its mask does not reach the model
            return self.model(input_ids=input_ids)

    inputs["attention_mask"][1, 4:] = 0
    explain = whence.compile(Skips(), "gradient-x-input")
    for _ in range(3):
        with pytest.warns(whence.WhenceWarning, match="padding"):
            explain(inputs, 1)


def test_the_explainer_captures_by_itself_and_can_do_without(monkeypatch):
    monkeypatch.setattr("whence.explainer.captured.TRACING", 1.0)  # no arithmetic to speak of
    model = tiny.bert()
    captured, plain = whence.Explainer(model), whence.Explainer(model, capture=False)
    for seed in range(7):
        inputs = {"input_ids": tiny.ids(2, 7, seed)}
        assert captured(inputs, "attn-lrp", 1) == plain(inputs, "attn-lrp", 1)
    (captures,) = captured._captures._captures.values()
    (known,) = captures._signatures.values()
    assert len(known.captures) == 1
    assert known.seen == 5  # four as usual, the fifth captured


@pytest.mark.parametrize(("seconds", "seen"), [(0.01, 5), (0.03, 9), (0.1, 23)])
def test_a_slow_model_is_captured_later(seconds, seen):
    known = _Signature(seconds=seconds)  # of a model with 100 operations: 0.01 seconds are tracing
    for known.seen in range(100):
        if known.pays(100):
            break
    assert known.seen == seen


def test_an_explainer_that_has_captured_can_be_copied():
    explainer = whence.Explainer(tiny.bert())
    inputs = {"input_ids": tiny.ids(2, 7, 0)}
    for _ in range(6):
        wanted = explainer(inputs, "attn-lrp", 1)
    for twin in (copy.deepcopy(explainer), pickle.loads(pickle.dumps(explainer))):
        assert twin.model is not explainer.model
        assert twin._captures._model is twin.model
        assert twin(inputs, "attn-lrp", 1) == wanted


def test_inputs_may_lie_in_memory_in_any_way():
    model = tiny.bert()
    explain = whence.compile(model, "attn-lrp")
    explain({"input_ids": tiny.ids(2, 7, 0)}, 1)
    many = tiny.ids(6, 9, 1)
    for ids in (many[2:4, :7], many[:, :7].contiguous()[2:4], tiny.ids(7, 2, 3).t()):
        assert explain({"input_ids": ids}, 1) == whence.explain(model, {"input_ids": ids}, "attn-lrp", 1)


def test_an_input_that_the_model_cannot_read_is_said_to_be_so():
    model = tiny.bert()
    explain = whence.compile(model, "attn-lrp")
    ids = tiny.ids(2, 7, 0)
    explain({"input_ids": ids}, 1)
    ids[0, 0] = 10_000
    with pytest.raises(whence.InputError, match=r"fails on this input.*out of range"):
        explain({"input_ids": ids}, 1)


def test_results_do_not_share_memory():
    explain = whence.compile(tiny.bert(), "conservative-lrp")
    inputs = {"input_ids": tiny.ids(2, 7, 0)}
    explain(inputs, 1)
    a = explain(inputs, 1)
    kept = dataclasses.replace(a, scores=a.scores.clone())
    explain({"input_ids": tiny.ids(2, 7, 1)}, 1)
    assert torch.equal(a.scores, kept.scores)


def test_an_error_under_the_tape_does_not_take_the_explanation_away(monkeypatch):
    model = tiny.bert()
    inputs = {"input_ids": tiny.ids(2, 7, 0)}
    wanted = whence.explain(model, inputs, "attn-lrp", 1)
    explain = whence.compile(model, "attn-lrp")

    def fails(*_):
        raise RuntimeError("no kernel")

    monkeypatch.setattr("whence.explainer.captured.Program", fails)
    assert explain(inputs, 1) == wanted
    assert explain.captures.refusals == ["recording failed with RuntimeError: no kernel"]


@pytest.mark.parametrize("method", ["conservative-lrp", "lrp", "generic-attention"])
def test_a_backend_of_torch_compile_gives_the_same_scores(method):
    model = tiny.bert().double()
    explain = whence.compile(model, method, backend="aot_eager")
    for seed in (1, 2):
        inputs = {"input_ids": tiny.ids(2, 7, seed)}
        close(explain(inputs).scores, whence.explain(model, inputs, method).scores)
    assert not explain.captures.refusals
    assert explain.captures.backend == "aot_eager"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "transformer-attribution"])
def test_inductor_gives_the_same_scores(method):
    model = tiny.bert().double()
    explain = whence.compile(model, method, backend="inductor")
    for seed in (1, 2):
        inputs = {"input_ids": tiny.ids(2, 7, seed)}
        close(explain(inputs).scores, whence.explain(model, inputs, method).scores)
    assert explain.captures.backend == "inductor"


def test_a_backend_that_fails_is_given_up_with_a_warning(monkeypatch):
    def failing(*args, **kwargs):
        def run(*given):
            raise RuntimeError("no compiler was found\nand more")

        return run

    monkeypatch.setattr(torch, "compile", failing)
    model, inputs = tiny.bert(), [{"input_ids": tiny.ids(2, 7, seed)} for seed in (1, 2)]
    explain = whence.compile(model, "attn-lrp", backend="inductor")
    with pytest.warns(whence.WhenceWarning, match="'inductor' cannot be used .* no compiler was found.$"):
        explain(inputs[0])
    assert explain(inputs[1]) == whence.explain(model, inputs[1], "attn-lrp")
    assert not explain.captures.refusals


def test_a_backend_that_computes_other_numbers_is_given_up(monkeypatch):
    def inexact(module, **options):
        return lambda *given: tuple(t * 1.01 if t.is_floating_point() else t for t in module(*given))

    monkeypatch.setattr(torch, "compile", inexact)
    explain = whence.compile(tiny.bert(), backend="inductor")
    with pytest.warns(whence.WhenceWarning, match="gave other numbers"):
        explain({"input_ids": tiny.ids(2, 7, 1)})
    assert explain.captures.backend is None


def test_an_unknown_backend_is_refused_with_the_known_ones():
    refused(InputError, "no backend 'inducter'.*inductor", lambda: whence.compile(tiny.bert(), backend="inducter"))


def test_a_bias_that_is_changed_behind_torchs_back_is_seen():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids(2, 7, 1)}
    explain = whence.compile(model)
    explain(inputs)
    model.bert.encoder.layer[0].output.dense.bias.data[3] += 1.0
    assert explain(inputs) == whence.explain(model, inputs)
