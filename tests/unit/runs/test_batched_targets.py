"""Several targets with one forward, and one class rather than another."""

from __future__ import annotations

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import whence
from tests.support import tiny
from tests.support.checks import EXACT, close, relative, same
from tests.support.runs import traced
from whence.models import MODELS
from whence.readout.map_walk import visit_relevance
from whence.runs.run import Run

METHODS = [name for name in whence.list_methods() if name not in ("lime", "kernel-shap")]  # which run the model anew
SUMS = [
    "conservative-lrp",
    "gradient-x-input",
    "attn-lrp",
    "integrated-gradients",
    "lrp",
    "res-lrp",
]  # linear in the target


def bert():
    return tiny.bert().double(), {"input_ids": tiny.ids(2), "attention_mask": torch.ones(2, 7, dtype=torch.long)}


def vit():
    return tiny.vit().double(), {"pixel_values": tiny.pixels(2).double()}


def llama():
    return tiny.llama().double(), {"input_ids": tiny.ids(2)}


def neox():
    """Rotary positions, attention and MLP added at once."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=40, initializer_range=0.3,
    )  # fmt: skip
    return GPTNeoXForCausalLM(config).double().eval(), {"input_ids": tiny.ids(2)}


def same_target(a, b):
    """What is summed in another order is the same but for rounding; the target itself is the same to the last bit."""
    assert torch.equal(a.value, b.value)
    assert a.ledger is None or torch.equal(a.ledger.total, b.ledger.total)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [bert, vit, llama, neox])
def test_each_of_several_targets_is_as_it_is_alone(make, method):
    model, inputs = make()
    options = whence.list_methods()[method].quick
    targets = [0, None, [2, 1], whence.contrast(2, 0)]
    try:
        alone = [whence.explain(model, inputs, method, t, **options) for t in targets]
    except whence.ModelError:
        pytest.skip("the method does not apply to this model")
    found = whence.explain(model, inputs, method, whence.every(targets), **options)
    assert isinstance(found, whence.Explanations)
    assert len(found) == 4
    for one, expected in zip(found, alone, strict=True):
        same(one, expected)
        same_target(one, expected)


@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("rows", [4096, 1])  # together, and one after the other
def test_relevance_of_positions_is_of_one_target(make, rows, monkeypatch):
    model, inputs = make()
    alone = [whence.explain(model, inputs, "pa-lrp", t, at="token") for t in (0, 2)]
    assert relative(alone[0].scores, whence.explain(model, inputs, "attn-lrp", 0, at="token").scores) > 0.01
    monkeypatch.setattr("whence.runs.batched_targets.ROWS", rows)
    found = whence.explain(model, inputs, "pa-lrp", whence.every([0, 2]), at="token")
    for one, expected in zip(found, alone, strict=True):
        same(one, expected)
        same_target(one, expected)


@pytest.mark.parametrize(
    "method", ["conservative-lrp", "generic-attention", "transformer-attribution", "rollout", "grad-cam"]
)
def test_one_forward_is_enough(method):
    model, inputs = bert()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    whence.explain(model, inputs, method, whence.every([0, 1, 2]))
    assert len(calls) == 1


@pytest.fixture
def backwards(monkeypatch):
    """How many backwards there were."""
    calls, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: calls.append(1) or grad(*args, **kwargs))
    return calls


def test_targets_of_few_tokens_go_back_together(backwards):
    model, inputs = bert()
    whence.explain(model, inputs, "attn-lrp", whence.every([0, 1, 2]))
    assert len(backwards) == 1


@pytest.mark.parametrize(("method", "backwards"), [("transformer-attribution", 2), ("lrp", 1)])
def test_relevance_of_several_targets_goes_back_together(method, backwards, monkeypatch):
    model, inputs = bert()
    sent, send = [], Run.send
    monkeypatch.setattr(Run, "send", lambda *args, **kwargs: sent.append(1) or send(*args, **kwargs))
    whence.explain(model, inputs, method, whence.every([0, 1, 2]))
    assert len(sent) == backwards


def test_a_contrast_of_shared_relevance_has_that_of_its_first_class():
    """Eq. 7 is undefined when the total relevance is zero: only the gradient is that of the difference."""
    model, inputs = bert()
    seen = {}
    for target in (0, 2, whence.contrast(2, 0)):
        _, run = traced(model, inputs, "transformer-attribution", target)
        found = seen[str(target)] = {}
        visit_relevance(run, lambda i, _, *shown, found=found: found.update({i: shown}), [run.boundaries[0].tensor])
    zero, two, both = seen.values()
    for i in (0, 1):
        close(both[i][1], two[i][1])
        close(both[i][0], two[i][0] - zero[i][0])
    e = whence.explain(model, inputs, "transformer-attribution", whence.contrast(2, 0))
    assert e.ledger.total.tolist() == [1.0, 1.0]
    assert (e.scores[:, 1:] > 1e-6).any(1).all()


@pytest.mark.parametrize(("rows", "expected"), [(28, 2), (27, 3), (1, 3)])  # of 14 rows a target
def test_targets_of_many_tokens_go_back_a_few_at_a_time(backwards, monkeypatch, rows, expected):
    model, inputs = bert()
    alone = [whence.explain(model, inputs, target=c).scores for c in range(3)]
    backwards.clear()
    monkeypatch.setattr("whence.runs.batched_targets.ROWS", rows)
    found = whence.explain(model, inputs, target=whence.every(range(3)))
    assert len(backwards) == expected
    for one, scores in zip(found, alone, strict=True):
        close(one.scores, scores)


class Counted(torch.autograd.Function):
    """An identity whose backward looks at its gradient's value, of which there is only one at a time."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1.0 if float(gradient.sum()) > 1e9 else 1.5)


def test_a_model_whose_backward_does_one_at_a_time_is_explained_so(backwards):
    model, inputs = bert()
    model.dropout.forward = Counted.apply
    alone = [whence.explain(model, inputs, "gradient-x-input", c) for c in range(3)]
    backwards.clear()
    found = whence.explain(model, inputs, "gradient-x-input", whence.every(range(3)))
    assert len(backwards) == 1 + 3  # tried once
    for one, expected in zip(found, alone, strict=True):
        same(one, expected)
        same_target(one, expected)


def test_targets_of_different_places_go_back_alone():
    model, inputs = bert()
    targets = [0, lambda outputs: outputs.logits[:, 0] - outputs.logits[:, 1], whence.contrast(0, 1), 1]
    zero, function, contrast, one = whence.explain(model, inputs, target=whence.every(targets))
    close(function.scores, contrast.scores)
    close(zero.scores - one.scores, contrast.scores)


def test_each_function_is_its_own_target():
    model, inputs = bert()
    targets = [lambda outputs: outputs.logits[:, 0], lambda outputs: 2 * outputs.logits[:, 1]]
    first, second = whence.explain(model, inputs, target=whence.every(targets))
    close(first.scores, whence.explain(model, inputs, target=0).scores)
    close(second.scores, 2 * whence.explain(model, inputs, target=1).scores)


def test_samples_that_are_explained_one_by_one_have_all_targets():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        )
    ).eval()  # fmt: skip
    inputs = {"input_ids": tiny.ids(2)}
    targets = [3, [4, 5], whence.contrast(3, [7, 8])]
    found = whence.explain(model, inputs, target=whence.every(targets))
    for one, target in zip(found, targets, strict=True):
        assert relative(one.scores, whence.explain(model, inputs, target=target).scores) < 1e-6


def test_no_target_is_refused():
    model, inputs = bert()
    with pytest.raises(whence.InputError, match="at least one"):
        whence.explain(model, inputs, target=whence.every([]))


# -- contrast ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SUMS)
def test_what_speaks_for_both_cancels(method):
    model, inputs = bert()
    why = whence.explain(model, inputs, method, whence.contrast(0, 2))
    a, b = (whence.explain(model, inputs, method, c) for c in (0, 2))
    assert relative(why.value, a.value - b.value) < EXACT
    assert relative(why.scores, a.scores - b.scores) < 1e-9
    assert torch.equal(why.target, torch.tensor([0, 0]))


def test_one_class_rather_than_the_predicted_one():
    model, inputs = bert()
    said = whence.explain(model, inputs).prediction.tolist()
    others = [(c + 1) % 3 for c in said]
    why = whence.explain(model, inputs, target=whence.contrast(others, None))
    assert (
        relative(
            why.value,
            torch.stack(
                [why.logits[i, o] - why.logits[i, p] for i, (o, p) in enumerate(zip(others, said, strict=True))]
            ),
        )
        < EXACT
    )
    assert why.target_names == tuple(f"LABEL_{o} rather than LABEL_{p}" for o, p in zip(others, said, strict=True))


def test_a_class_is_not_contrasted_with_itself():
    model, inputs = bert()
    with pytest.raises(whence.TargetError, match="contrasted with itself"):
        whence.explain(model, inputs, target=whence.contrast(1, 1))
    with pytest.raises(whence.TargetError, match="out of range"):
        whence.explain(model, inputs, target=whence.contrast(1, 9))


# -- from raw inputs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentiment():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")


def test_several_targets_of_one_text_and_of_many(sentiment):
    targets = whence.every(["negative", "positive", whence.contrast("negative", "positive")])
    one = sentiment("a gripping film", target=targets)
    assert [e.target_names for e in one] == [("negative",), ("positive",), ("negative rather than positive",)]
    assert [w.text for w in one[2].words[0]] == ["a", "gripping", "film"]
    many = sentiment(["a gripping film", "far too long, and dull"], target=targets)
    assert [len(found) for found in many] == [3, 3]
    assert relative(many[0][1].scores, one[1].scores) < 1e-4
    assert relative(many[0][2].scores, one[0].scores - one[1].scores) < 1e-3


def test_comparing_methods_and_targets_is_one_forward_a_method(sentiment):
    calls = []
    hook = sentiment.model.register_forward_hook(lambda *_: calls.append(1))
    try:
        found = sentiment.compare("a gripping film", ["conservative-lrp", "rollout"], ["negative", "positive"])
    finally:
        hook.remove()
    assert len(calls) == 2
    assert [(e.method, e.target_names[0]) for e in found] == [
        (method, target) for method in ("conservative-lrp", "rollout") for target in ("negative", "positive")
    ]


@pytest.mark.parametrize("method", ["conservative-lrp", "generic-attention"])
@pytest.mark.parametrize("make", [bert, vit, llama])
def test_targets_of_a_short_input_go_back_together(make, method, monkeypatch):
    (model, inputs), sent = make(), []
    send = Run.send

    def counted(self, *given):
        sent.append(1)
        return send(self, *given)

    monkeypatch.setattr(Run, "send", counted)
    whence.explain(model, inputs, method, whence.every([0, 1, 2]))
    several = len(sent)
    sent.clear()
    whence.explain(model, inputs, method, 0)
    assert several == len(sent)
