"""Occlusion, KernelSHAP and LIME: equal to what is computed by hand, the same in any batch, nothing left behind."""

from __future__ import annotations

import itertools
import sys
import threading

import captum.attr
import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.snapshot import snapshot
from whence._utils import progress

METHODS = {"occlusion": {}, "kernel-shap": {"samples": 15}, "lime": {"samples": 15}}
LENGTHS = [5, 3, 1]


class Linear(nn.Module):
    """``sum_i w_i . x_i + b`` of what is embedded, per class."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(tiny.VOCABULARY, 4)
        self.head = nn.Linear(4 * tokens, 3)

    def forward(self, ids):
        return self.head(self.embed(ids).flatten(1))

    def contributions(self, ids, target):
        weight = self.head.weight[target].reshape(-1, 4)
        return (self.embed(ids) * weight).sum(-1).detach()


def replaced(model, layer, inputs, positions, baseline=0.0, target=1):
    """The target's values with other vectors at some positions of what a layer returns, by the model itself."""

    def hook(module, args, out):
        out = out.clone()
        out[:, positions] = baseline
        return out

    handle = layer.register_forward_hook(hook)
    with torch.no_grad():
        values = model(**inputs).logits[:, target]
    handle.remove()
    return values


# -- against what is known -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["position", "token"])
def test_occlusion_is_a_loop_over_replaced_embeddings(at):
    model, inputs = tiny.bert().double(), {"input_ids": tiny.ids(2)}
    layer = model.bert.embeddings if at == "position" else model.bert.embeddings.word_embeddings
    pad = model.bert.embeddings.word_embeddings.weight[0].detach()
    for baseline in (0.0, pad):
        e = whence.explain(model, inputs, "occlusion", 1, at=at, baseline=baseline)
        values = [replaced(model, layer, inputs, i, baseline) for i in range(7)]
        expected = model(**inputs).logits[:, 1, None] - torch.stack(values, 1)
        assert relative(e.scores, expected) < 1e-12


def test_occlusion_where_tokens_come_first():
    model, ids = tiny.Encoder(batch_first=False).double().eval(), tiny.ids(2)
    e = whence.explain(model, ids, "occlusion", 1)
    embedded = model.embed(ids).detach()
    for i in range(7):
        other = embedded.clone()
        other[:, i] = 0
        lost = model(ids)[:, 1] - model.head(model.encoder(other.transpose(0, 1))[0])[:, 1]
        assert torch.allclose(e.scores[:, i], lost, atol=1e-12)


@pytest.mark.parametrize(("method", "options"), [("occlusion", {}), ("integrated-gradients", {"steps": 3})])
@pytest.mark.parametrize("make", [tiny.Handwritten, tiny.Encoder, lambda: tiny.llama(classify=True)])
def test_embeddings_that_enter_the_first_block_as_they_are(method, options, make):
    """Nothing lies between the lookup and the first block: both places are the same."""
    model, ids = make().double().eval(), tiny.ids(2)
    scores = [whence.explain(model, ids, method, 1, at=at, **options).scores for at in ("position", "token")]
    assert relative(scores[0], scores[1]) < 1e-12
    assert not torch.allclose(scores[0], whence.explain(model, ids, "gradient-x-input", 1).scores)


def test_a_sliding_window_equals_that_of_captum():
    """Captum divides in single precision."""
    model, ids = tiny.bert().double(), tiny.ids(2)
    embedded = model.get_input_embeddings()(ids).detach()
    method = captum.attr.Occlusion(lambda x: model(inputs_embeds=x).logits)
    expected = method.attribute(embedded, (3, 32), target=1)
    e = whence.explain(model, ids, "occlusion", 1, at="token", window=3)
    assert relative(e.scores, expected[..., 0]) < 1e-6


def test_patches_equal_those_of_captum():
    model, pixels = tiny.vit().double(), tiny.pixels(2).double()
    patches = (torch.arange(12)[:, None] // 4 * 3 + torch.arange(12) // 4).expand(1, 3, 12, 12)
    method = captum.attr.FeatureAblation(lambda x: model(x).logits)
    expected = method.attribute(pixels, 0.5, target=1, feature_mask=patches)
    e = whence.explain(model, pixels, "occlusion", 1, at="pixel", baseline=0.5)
    assert relative(e.patches, expected[:, 0] / 16) < EXACT  # a patch's score is shared by its pixels
    given = whence.explain(model, pixels, "occlusion", 1, at="pixel", patch=4, baseline=0.5)
    assert torch.equal(e.scores, given.scores)
    square = whence.explain(model, pixels, "occlusion", 1, at="pixel", window=2)
    method = captum.attr.Occlusion(lambda x: model(x).logits)
    expected = method.attribute(pixels, (3, 8, 8), (3, 4, 4), target=1)
    assert relative(square.patches, expected[:, 0] / 16) < 1e-6


@pytest.mark.parametrize(
    ("method", "options", "error"),
    [
        ("occlusion", {}, 1e-12), ("kernel-shap", {"samples": 60}, 1e-6), ("lime", {"surrogate": "linear"}, 1e-6),
        ("lime", {"surrogate": "lasso", "alpha": 1e-6}, 1e-4), ("lime", {"samples": 400}, 0.1),
    ],
)  # fmt: skip
def test_what_is_additive_is_recovered(method, options, error):
    model, ids = Linear(6).double(), tiny.ids(2, 6)
    e = whence.explain(model, ids, method, 2, **options)
    assert relative(e.scores, model.contributions(ids, 2)) < error


def test_kernel_shap_stays_exact_with_many_tokens():
    """A regression in single precision would not: the weights are a million apart."""
    model, ids = Linear(120).double(), tiny.ids(1, 120)
    assert relative(whence.explain(model, ids, "kernel-shap", 0).scores, model.contributions(ids, 0)) < 1e-6


def test_kernel_shap_goes_to_the_shapley_values():
    """These are the mean contributions over all orders, computed by the model itself."""
    model, inputs = tiny.bert().double(), {"input_ids": tiny.ids(1, 4)}
    value = {}
    for kept in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(5)):
        value[frozenset(kept)] = float(replaced(model, model.bert.embeddings, inputs, sorted({*range(4)} - {*kept})))
    shapley = torch.zeros(4)
    for order in itertools.permutations(range(4)):
        for i, token in enumerate(order):
            shapley[token] += (value[frozenset(order[: i + 1])] - value[frozenset(order[:i])]) / 24
    errors = []
    for samples in (20, 1000):
        e = whence.explain(model, inputs, "kernel-shap", 1, samples=samples)
        errors.append(relative(e.scores[0], shapley))
        assert float(e.scores.sum()) == pytest.approx(value[frozenset(range(4))] - value[frozenset()], rel=1e-4)
    assert errors[1] < 0.1
    assert errors[1] < errors[0] / 2


def test_kernel_shap_equals_that_of_captum():
    """Captum fits in single precision."""
    model, ids = tiny.bert().double(), tiny.ids(1, 4)
    embedded = model.get_input_embeddings()(ids).detach()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        method = captum.attr.KernelShap(lambda x: model(inputs_embeds=x).logits)
        expected = method.attribute(embedded, target=1, feature_mask=torch.arange(4)[None, :, None], n_samples=50)
    e = whence.explain(model, ids, "kernel-shap", 1, at="token", samples=50, seed=3)
    assert relative(e.scores, expected[..., 0]) < 1e-5


def test_lime_is_a_weighted_ridge_regression():
    """The same sets, drawn again; the fit by its normal equations."""
    model, inputs = tiny.bert().double(), {"input_ids": tiny.ids(1, 4)}
    e = whence.explain(model, inputs, "lime", 1, samples=60, seed=5, width=0.4, alpha=2.0)
    generator = torch.Generator().manual_seed(5)
    z = torch.cat([torch.bernoulli(torch.full((1, 4), 0.5), generator=generator) for _ in range(60)]).double()
    f = torch.cat([replaced(model, model.bert.embeddings, inputs, row == 0) for row in z])
    pi = torch.exp(-((1 - (z.sum(1) / 4).sqrt()) ** 2) / (2 * 0.4**2))
    mean_z, mean_f = (pi[:, None] * z).sum(0) / pi.sum(), (pi * f).sum() / pi.sum()
    centred = z - mean_z
    expected = torch.linalg.solve(
        centred.T @ (pi[:, None] * centred) + 2.0 * torch.eye(4).double(), centred.T @ (pi * (f - mean_f))
    )
    assert relative(e.scores[0], expected) < 1e-5


# -- batches and padding -----------------------------------------------------------------------------------------------


def padded_on(left):
    """A model that takes padding on a side."""
    return (tiny.llama(layers=1, classify=True) if left else tiny.bert(layers=1)).double()


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_batch_and_padding_change_nothing(method, left):
    """The last sample has a single token."""
    model, batch = padded_on(left), tiny.padded(LENGTHS, left)
    together = whence.explain(model, batch, method, **METHODS[method]).scores
    for i, n in enumerate(LENGTHS):
        real = slice(5 - n, None) if left else slice(n)
        alone = whence.explain(model, {k: v[i : i + 1, real] for k, v in batch.items()}, method, **METHODS[method])
        assert torch.allclose(together[i, real], alone.scores[0], atol=1e-6 * float(alone.scores.abs().max()))
        assert int((together[i] != 0).sum()) == n


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=3), st.integers(1, 4), st.booleans())
def test_windows_slide_over_real_tokens_only(lengths, window, left):
    model, batch = padded_on(left), tiny.padded(lengths, left)
    together = whence.explain(model, batch, "occlusion", window=window).scores
    for i in range(len(lengths)):
        real = batch["attention_mask"][i] == 1
        alone = whence.explain(model, {k: v[i : i + 1, real] for k, v in batch.items()}, "occlusion", window=window)
        assert torch.allclose(together[i, real], alone.scores[0], atol=1e-10)
        assert not together[i, ~real].any()


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_costs_as_many_forwards_as_a_sample(method):
    model, count = tiny.bert(), []

    def target(outputs):
        count.append(1)
        return outputs.logits[:, 0]

    whence.explain(model, tiny.ids(3, 5), method, target, **METHODS[method])
    assert len(count) == 6 if method == "occlusion" else len(count) <= 15
    count.clear()
    whence.explain(model, tiny.ids(3, 3), method, target, **dict.fromkeys(METHODS[method], 60))
    assert len(count) <= 8  # no set is asked for twice


# -- what a method leaves behind ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_model_and_all_generators_are_left_as_found(method):
    model = tiny.bert().train()
    model.bert.encoder.layer[0].eval()
    before, torch_state, numpy_state = snapshot(model), torch.get_rng_state(), np.random.get_state()[1].copy()
    whence.explain(model, tiny.ids(2), method, **METHODS[method])
    assert snapshot(model) == before
    count = itertools.count()

    def target(outputs):
        if next(count) == 3:
            raise KeyboardInterrupt
        return outputs.logits[:, 0]

    with pytest.raises(KeyboardInterrupt):
        whence.explain(model, tiny.ids(2), method, target, **METHODS[method])
    assert snapshot(model) == before
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize("method", ["kernel-shap", "lime"])
def test_sets_are_drawn_again_from_their_seed(method):
    model, ids = tiny.bert(layers=1), tiny.ids(2, 4)
    first, again, other = (whence.explain(model, ids, method, samples=20, seed=s).scores for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_threads_take_turns_to_draw():
    model, ids = tiny.bert(layers=1), tiny.ids(2, 4)
    expected = [whence.explain(model, ids, "lime", samples=20, seed=s).scores for s in range(3)]
    found = {}

    def work(seed):
        found[seed] = whence.explain(model, ids, "lime", samples=20, seed=seed).scores

    threads = [threading.Thread(target=work, args=(s,)) for s in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[s], expected[s]) for s in range(3))


@pytest.mark.parametrize("method", METHODS)
def test_a_changed_input_explains_the_same_class(method):
    model, ids = tiny.bert(layers=1).double(), tiny.ids(3, 4)
    free = whence.explain(model, ids, method, **METHODS[method])
    named = whence.explain(model, ids, method, free.prediction.tolist(), **METHODS[method])
    assert torch.equal(free.scores, named.scores)


# -- inputs of all kinds -----------------------------------------------------------------------------------------------


def test_further_streams_are_occluded_too():
    """An encoder and a decoder: one vector of either at a time."""
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=tiny.VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0,
        pad_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    model = hf.T5ForConditionalGeneration(config).double().eval()
    inputs = {"inputs_embeds": torch.randn(1, 4, 32).double(), "decoder_inputs_embeds": torch.randn(1, 3, 32).double()}
    mask = {"attention_mask": torch.tensor([[1, 1, 1, 0]])}
    e = whence.explain(model, inputs | mask, "occlusion")
    for (name, x), scores in zip(inputs.items(), e.streams.values(), strict=True):
        for i in range(3):  # the last position of the encoder is padding
            other = x.clone()
            other[:, i] = 0
            lost = e.value - model(**inputs | mask | {name: other}).logits[0, -1, e.target]
            assert torch.allclose(scores[:, i], lost, atol=1e-10)
    assert e.scores[0, 3] == 0
    shap = whence.explain(model, inputs | mask, "kernel-shap", samples=20)
    nothing = {name: torch.zeros_like(x) for name, x in inputs.items()}
    nothing["inputs_embeds"][:, 3] = inputs["inputs_embeds"][:, 3]
    gap = shap.value - model(**nothing, **mask).logits[0, -1, shap.target]
    assert torch.allclose(sum(s.sum(1) for s in shap.streams.values()), gap, rtol=1e-4)


class Series(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(10 * 2, 3)

    def forward(self, x, attention_mask=None):
        x = x if attention_mask is None else x * attention_mask[..., None]
        return self.head(nn.functional.pad(x, (0, 0, 0, 10 - x.shape[1])).flatten(1))


def test_steps_of_a_series_go_together():
    """Ten steps in stretches of four; padding belongs to none."""
    model, x = Series().double(), torch.randn(2, 10, 2).double()
    mask = torch.arange(10) < torch.tensor([[10], [6]])
    e = whence.explain(model, {"x": x, "attention_mask": mask.double()}, "occlusion", 0, at="pixel", patch=4)
    steps = (x * model.head.weight[0].reshape(10, 2)).sum(-1).detach() * mask
    expected = torch.zeros_like(steps)
    for start in (0, 4, 8):
        own, real = steps[:, start : start + 4], mask[:, start : start + 4]
        expected[:, start : start + 4] = own.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1) * real
    assert relative(e.scores, expected) < 1e-12


def test_a_picture_whose_patches_are_not_known():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3 * 144, 2)

        def forward(self, x):
            return self.head(x.flatten(1))

    model, pixels = Net().double(), tiny.pixels(1).double()
    with pytest.raises(whence.MethodError, match="patch=16"):
        whence.explain(model, pixels, "occlusion", at="pixel")
    e = whence.explain(model, pixels, "occlusion", 0, at="pixel", patch=5)
    values = (pixels[0] * model.head.weight[0].reshape(3, 12, 12)).sum(0).detach()
    assert float(e.scores.sum()) == pytest.approx(float(values.sum()))
    assert torch.allclose(e.patches[0, 10:, 10:], values[10:, 10:].mean())  # a corner of two by two


@pytest.mark.parametrize("method", METHODS)
def test_half_precision(method):
    full, half = tiny.bert(), tiny.bert().bfloat16()
    scores = [whence.explain(m, tiny.ids(1, 4), method, 0, **METHODS[method]).scores for m in (full, half)]
    assert scores[1].dtype == torch.float32
    assert relative(scores[1], scores[0]) < 0.3


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("occlusion", {"window": 0}), ("occlusion", {"patch": 0, "at": "pixel"}), ("occlusion", {"patch": 4}),
        ("kernel-shap", {"samples": 1}), ("lime", {"samples": 0}), ("lime", {"width": 0.0}),
        ("lime", {"surrogate": "tree"}), ("lime", {"alpha": -1.0}), ("lime", {"alpha": 1.0, "surrogate": "linear"}),
        ("occlusion", {"baseline": torch.zeros(5)}),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(method, options):
    with pytest.raises(whence.MethodError, match=next(iter(options))):
        whence.explain(tiny.bert(), tiny.ids(1), method, **options)


def test_a_baseline_that_the_model_cannot_take():
    class Cosine(tiny.Encoder):
        def forward(self, ids):
            x = self.embed(ids)[:, 0]
            return self.head(x / x.norm(dim=-1, keepdim=True))

    with pytest.raises(whence.NumericalError, match="baseline"):
        whence.explain(Cosine(), tiny.ids(1), "occlusion")
    assert whence.explain(Cosine(), tiny.ids(1), "occlusion", baseline=1.0).scores.any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("module", ["captum", "sklearn"])
def test_what_is_not_installed_is_named(method, module, monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    if (method, module) == ("occlusion", "sklearn"):
        whence.explain(tiny.bert(), tiny.ids(1, 3), method)
        return
    with pytest.raises(whence.MissingError, match=rf"needs {module} .*whence\[captum\]"):
        whence.explain(tiny.bert(), tiny.ids(1, 3), method)


def test_work_inside_other_work_has_no_bar_of_its_own(capsys):
    def inner(n):
        return sum(progress.track(range(n), n, "inner", show=True))

    assert list(progress.track(map(inner, range(3)), 3, "outer", show=False)) == [0, 0, 1]
    assert capsys.readouterr().err == ""
    inner(2)
    assert capsys.readouterr().err != ""
