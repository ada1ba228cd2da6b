"""What must always hold: the forward, the batch, its order and its padding change nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import whence
from tests.support import tiny
from tests.support.checks import relative
from whence.targets.seed import find_logits

pytestmark = pytest.mark.usefixtures("rows_of_small_models_are_left_out")

methods = pytest.mark.parametrize("method", tiny.METHODS)


@methods
@given(
    layers=st.integers(1, 3), heads=st.sampled_from([1, 2, 4]), seed=st.integers(0, 99),
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4), target=st.integers(0, 2),
)  # fmt: skip
def test_a_right_padded_batch_is_its_samples_one_by_one(method, layers, heads, seed, lengths, target):
    model = tiny.bert(layers, heads, seed=seed).double()
    batch = tiny.padded(lengths, seed=seed)
    e = whence.explain(model, batch, method, target)
    for i, n in enumerate(lengths):
        one = whence.explain(model, {k: v[i : i + 1, :n] for k, v in batch.items()}, method, target)
        assert relative(e.scores[i, :n], one.scores[0]) < 1e-6
        assert (e.scores[i, n:] == 0).all()
        assert e.special[i].tolist() == [False] * n + [True] * (len(e.special[i]) - n)


@methods
@pytest.mark.parametrize("family", [tiny.llama, tiny.gpt2])
@given(seed=st.integers(0, 99), lengths=st.lists(st.integers(2, 9), min_size=2, max_size=4))
def test_a_left_padded_batch_is_its_samples_one_by_one(family, method, seed, lengths):
    model = family(seed=seed).double()
    batch = tiny.padded(lengths, left=True, seed=seed)
    e = whence.explain(model, batch, method, 5)
    for i, n in enumerate(lengths):
        one = whence.explain(model, {k: v[i : i + 1, -n:] for k, v in batch.items()}, method, 5)
        width = e.scores.shape[1]
        assert relative(e.scores[i, width - n :], one.scores[0]) < 1e-6
        assert (e.scores[i, : width - n] == 0).all()


@methods
@given(seed=st.integers(0, 99), batch=st.integers(1, 4), layers=st.integers(1, 3))
def test_a_batch_of_images_is_its_images_one_by_one(method, seed, batch, layers):
    model, x = tiny.vit(layers, seed=seed).double(), tiny.pixels(batch, seed).double()
    e = whence.explain(model, {"pixel_values": x}, method)
    for i in range(batch):
        one = whence.explain(model, {"pixel_values": x[i : i + 1]}, method)
        assert relative(e.scores[i], one.scores[0]) < 1e-6
        assert torch.equal(e.target[i], one.target[0])


@methods
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_batch_padding_and_order(method, batch_first, norm_first):
    torch.manual_seed(1)
    model = tiny.Encoder(batch_first, norm_first).double().eval()
    batch = tiny.padded([7, 4, 2])
    del batch["position_ids"]
    e = whence.explain(model, batch, method, 1)
    for i, n in enumerate([7, 4, 2]):
        one = whence.explain(model, {k: v[i : i + 1, :n] for k, v in batch.items()}, method, 1)
        assert relative(e.scores[i, :n], one.scores[0]) < 1e-9
        assert (e.scores[i, n:] == 0).all()
    turned = whence.explain(model, {k: v.flip(0) for k, v in batch.items()}, method, 1)
    assert relative(turned.scores.flip(0), e.scores) < 1e-12


@methods
def test_handwritten_model_batch_order(method):
    torch.manual_seed(0)
    model, x = tiny.Handwritten().double().eval(), tiny.ids(4)
    order = torch.tensor([2, 0, 3, 1])
    e = whence.explain(model, {"input_ids": x}, method, [0, 1, 2, 0])
    f = whence.explain(model, {"input_ids": x[order]}, method, [2, 0, 0, 1])
    assert relative(f.scores, e.scores[order]) < 1e-10


@methods
def test_experts_that_gather_tokens_of_all_samples_do_not_mix_them(method):
    model, x = tiny.mixtral(), tiny.ids()
    e = whence.explain(model, {"input_ids": x}, method, [0, 1, 2])
    for i in range(3):
        one = whence.explain(model, {"input_ids": x[i : i + 1]}, method, i)
        assert relative(e.scores[i], one.scores[0]) < (2e-2 if method == "transformer-attribution" else 1e-4)
    if e.ledger is not None:
        summed = float(e.scores.abs().sum(-1).max())  # of either sign: what rounding goes by
        largest = max([1.0, summed, *(float(entry.amount.abs().max()) for entry in e.ledger.entries)])
        assert e.ledger.imbalance.abs().max() < 1e-6 * largest  # in float32, the only type that torch's experts have
        assert len(e.ledger.sums) == 3


@methods
@pytest.mark.parametrize("family", ["bert", "vit", "llama", "gpt2", "encoder", "handwritten"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_traced_forward_is_the_plain_forward(method, family, dtype, tolerance):
    model, inputs = _family(family)
    model = model.to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        plain = find_logits(model(**inputs))
    plain = plain[:, -1] if plain.dim() == 3 else plain
    e = whence.explain(model, inputs, method)
    assert relative(e.logits, plain) < tolerance
    assert torch.equal(e.prediction, plain.argmax(-1))


def _family(name):
    if name == "vit":
        return tiny.vit(), {"pixel_values": tiny.pixels()}
    torch.manual_seed(0)
    model = {
        "bert": tiny.bert, "llama": tiny.llama, "gpt2": tiny.gpt2, "encoder": tiny.Encoder,
        "handwritten": tiny.Handwritten,
    }[name]()  # fmt: skip
    return model.eval(), {"input_ids": tiny.ids()}


@methods
@pytest.mark.parametrize("family", [tiny.bert, tiny.llama, tiny.gpt2])
def test_eager_attention_is_sdpa(method, family):
    batch = tiny.padded([7, 5, 3])
    batch.pop("position_ids")
    results = []
    for implementation in ("eager", "sdpa"):
        model = family(implementation=implementation).double()
        results.append(whence.explain(model, batch, method, 1).scores)
    assert relative(*results) < 1e-5  # Llama's eager softmax is computed in float32


#: of the largest score
HALF = {torch.bfloat16: 0.06, torch.float16: 0.02}
#: GradCAM weighs a head by its mean gradient, res-lrp a summand by the sum's sign: small differences of large numbers
HALF_OF_DIFFERENCES = {torch.bfloat16: 0.12, torch.float16: 0.02}
#: random is seeded with the input's bits; plain LRP is not for half precision, and says so
NOT_IN_HALF = ("random", "lrp", "partial-lrp")


@pytest.mark.parametrize("method", [m for m in tiny.METHODS if m not in NOT_IN_HALF])
def test_half_precision_is_finite_and_close_to_float32(method):
    tolerances = HALF_OF_DIFFERENCES if method in ("grad-cam", "res-lrp") else HALF
    for dtype, tolerance in tolerances.items():
        for model, inputs in ((tiny.bert(), {"input_ids": tiny.ids()}), (tiny.vit(), {"pixel_values": tiny.pixels()})):
            low = copy.deepcopy(model).to(dtype)
            full = copy.deepcopy(low).float()
            cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
            back = {k: v.float() if v.is_floating_point() else v for k, v in cast.items()}
            e, f = whence.explain(low, cast, method, 1), whence.explain(full, back, method, 1)
            assert e.scores.dtype == torch.float32
            assert relative(e.scores, f.scores) < tolerance


@pytest.mark.parametrize("method", ["lrp", "partial-lrp"])
def test_plain_lrp_in_half_precision_is_warned_of(method):
    with pytest.warns(whence.WhenceWarning, match="float32"):
        whence.explain(tiny.bert().bfloat16(), tiny.ids(1), method)
