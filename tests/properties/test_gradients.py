"""Gradients averaged over changed inputs: complete, equal to another library's, the same in any batch."""

from __future__ import annotations

import captum.attr
import pytest
import torch

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tools.conformance.family import FAMILIES as ALL_FAMILIES

FAMILIES = {
    "bert": (lambda: tiny.bert().double(), lambda: {"input_ids": tiny.ids(2)}),
    "gpt2": (lambda: tiny.gpt2().double(), lambda: {"input_ids": tiny.ids(2)}),
    "vit": (lambda: tiny.vit().double(), lambda: {"pixel_values": tiny.pixels(2).double()}),
    "sequence first": (lambda: tiny.Encoder(batch_first=False).double().eval(), lambda: {"input_ids": tiny.ids(2)}),
}  # fmt: skip


@pytest.mark.parametrize("at", ["position", "token"])
def test_integrated_gradients_are_complete(at):
    """They sum to the difference between the value at the input and at the baseline, which is computed apart.

    The norms get a large epsilon: at zero a usual one makes a jump.
    """
    model, ids = tiny.bert(layer_norm_eps=1.0).double(), tiny.ids(2)
    e = whence.explain(model, {"input_ids": ids}, "integrated-gradients", 1, at=at, steps=60)
    layer = model.bert.embeddings if at == "position" else model.bert.embeddings.word_embeddings
    hook = layer.register_forward_hook(lambda module, args, out: torch.zeros_like(out))
    nothing = model(ids).logits[:, 1].detach()
    hook.remove()
    assert torch.allclose(e.scores.sum(1), model(ids).logits[:, 1] - nothing, atol=1e-6)


def test_integrated_gradients_equal_those_of_captum():
    """Captum computes the points of the line in single precision."""
    model, ids = tiny.bert().double(), tiny.ids(2)
    embedded = model.get_input_embeddings()(ids).detach()
    pad = model.get_input_embeddings().weight[3].detach()
    method = captum.attr.IntegratedGradients(lambda x: model(inputs_embeds=x).logits)
    expected = method.attribute(embedded, pad.expand_as(embedded), target=1, n_steps=20)
    e = whence.explain(model, {"input_ids": ids}, "integrated-gradients", 1, steps=20, at="token", baseline=pad)
    assert relative(e.scores, expected.sum(-1)) < 1e-6


def test_pixels_equal_those_of_captum():
    model, pixels = tiny.vit().double(), tiny.pixels(2).double()
    method = captum.attr.IntegratedGradients(lambda x: model(x).logits)
    expected = method.attribute(pixels, target=1, n_steps=20)
    e = whence.explain(model, {"pixel_values": pixels}, "integrated-gradients", 1, steps=20, at="pixel")
    assert relative(e.patches, expected.sum(1)) < 1e-6
    saliency = captum.attr.Saliency(lambda x: model(x).logits).attribute(pixels, target=1)
    e = whence.explain(model, {"pixel_values": pixels}, "saliency", 1, at="pixel", norm="l1")
    assert relative(e.patches, saliency.sum(1)) < EXACT


@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_and_no_noise_are_gradient_x_input(family):
    make, inputs = FAMILIES[family]
    model, x = make(), inputs()
    plain = whence.explain(model, x, "gradient-x-input").scores
    assert relative(whence.explain(model, x, "smooth-grad", noise=0.0, samples=2).scores, plain) < EXACT
    near = whence.explain(model, x, "integrated-gradients", steps=1, baseline=0.0)
    assert near.scores.shape == plain.shape


@pytest.mark.parametrize(
    ("method", "options"), [("smooth-grad", {"samples": 3}), ("integrated-gradients", {"steps": 4})]
)
def test_batch_and_padding_change_nothing(method, options):
    model, lengths = tiny.bert().double(), [7, 4, 2]
    batch = tiny.padded(lengths)
    together = whence.explain(model, batch, method, **options).scores
    for i, n in enumerate(lengths):
        alone = whence.explain(model, {k: v[i : i + 1, :n] for k, v in batch.items()}, method, **options).scores
        assert torch.allclose(together[i, :n], alone[0], atol=1e-6 * float(alone.abs().max()))
        assert not together[i, n:].any()


@pytest.mark.parametrize("method", ["smooth-grad", "integrated-gradients"])
def test_a_changed_input_explains_the_same_class(method):
    """The class that was predicted is explained, also where the model would say another of the changed input."""
    model, ids = tiny.bert().double(), tiny.ids(4)
    free = whence.explain(model, {"input_ids": ids}, method)
    named = whence.explain(model, {"input_ids": ids}, method, free.prediction.tolist())
    assert torch.equal(free.scores, named.scores)


def test_noise_is_drawn_again_from_its_seed():
    model, ids = tiny.bert(), tiny.ids(2)
    first, again, other = (whence.explain(model, ids, "smooth-grad", seed=s).scores for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize(
    ("method", "options"),
    [("integrated-gradients", {"steps": 0}), ("smooth-grad", {"samples": 0}), ("smooth-grad", {"noise": -1.0}),
     ("saliency", {"norm": "l3"})],
)  # fmt: skip
def test_options_out_of_range_are_refused(method, options):
    with pytest.raises(whence.MethodError, match=next(iter(options))):
        whence.explain(tiny.bert(), tiny.ids(1), method, **options)


def test_random_scores_are_of_every_stream():
    pytest.importorskip("tools.conformance.families.multimodal")  # adds it
    family = ALL_FAMILIES["LXMERT"]
    model, inputs = family.model(), family.batch(2)
    e = whence.explain(model, inputs, "random", family.target)
    assert {name: s.shape[1] for name, s in e.streams.items()} == dict(family.streams)
    alone = whence.explain(model, {k: v[1:] for k, v in inputs.items()}, "random", family.target)
    for name, scores in e.streams.items():
        assert len(scores[1].unique()) == scores.shape[1]
        assert torch.equal(scores[1:], alone.streams[name])


def test_random_scores_belong_to_the_input_and_the_seed():
    model, ids = tiny.bert(), tiny.ids(3)
    scores = whence.explain(model, ids, "random").scores
    assert torch.equal(scores[1:2], whence.explain(model, ids[1:2], "random").scores)
    assert not torch.equal(scores[0], scores[1])
    assert not torch.equal(scores, whence.explain(model, ids, "random", seed=1).scores)
