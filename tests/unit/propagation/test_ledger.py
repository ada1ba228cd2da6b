"""The ledger: the books balance, and conservation holds where the papers say so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # as everywhere in torch code

import whence
from tests.support import tiny


def texts(n: int = 3) -> dict[str, torch.Tensor]:
    return tiny.padded([7, 5, 4][:n])


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
@pytest.mark.parametrize("family", ["bert", "vit", "gpt2", "encoder", "handwritten"])
def test_the_books_balance(method, family):
    """What enters a block less what leaves it is what the entries say was absorbed, whatever the model."""
    torch.manual_seed(0)
    model = {"bert": tiny.bert, "vit": tiny.vit, "gpt2": tiny.gpt2, "encoder": tiny.Encoder,
             "handwritten": tiny.Handwritten}[family]().double().eval()  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    inputs = {"pixel_values": tiny.pixels().double()} if family == "vit" else {"input_ids": tiny.ids()}
    ledger = whence.explain(model, inputs, method, 1).ledger
    assert ledger.sums.shape == (3, 3)
    assert ledger.imbalance.abs().max() < 1e-12 * ledger.sums.abs().max().clamp(min=1)
    assert sum(ledger.absorbed.values()).abs().max() > 1e-3  # there was something to balance


@given(
    seed=st.integers(0, 99), layers=st.integers(1, 3), target=st.integers(0, 2),
    lengths=st.lists(st.integers(2, 8), min_size=1, max_size=3),
)  # fmt: skip
def test_without_biases_conservative_lrp_conserves_from_encoder_output_to_embeddings(seed, layers, target, lengths):
    model = tiny.no_biases(tiny.bert(layers, seed=seed)).double()
    e = whence.explain(model, tiny.padded(lengths, seed=seed), "conservative-lrp", target)
    top = e.ledger.sums[:, -1:]
    assert ((e.ledger.sums - top).abs() <= 1e-9 * top.abs().clamp(min=1e-3)).all()
    assert torch.allclose(e.scores.sum(1), e.ledger.sums[:, 0], rtol=1e-9)


@pytest.mark.parametrize("model", ["vit", "llama"])
def test_without_biases_all_relevance_of_the_logit_reaches_the_input(model):
    """No pooler stands between the logit and the encoder in these: total, sums and scores agree."""
    if model == "vit":
        e = whence.explain(tiny.no_biases(tiny.vit()).double(), {"pixel_values": tiny.pixels().double()}, target=0)
        tolerance = 1e-9
    else:  # RMSNorm in float32 inside
        e, tolerance = whence.explain(tiny.llama().double(), {"input_ids": tiny.ids()}, target=7), 1e-5
    assert torch.allclose(e.ledger.sums, e.ledger.total[:, None].expand_as(e.ledger.sums), rtol=tolerance)
    assert torch.allclose(e.ledger.total, e.logits[:, e.target[0]])


def test_attention_heads_alone_do_not_conserve_and_the_ledger_says_where():
    """LRP (AH) leaves LayerNorm differentiated: its output does not depend on the input's scale, so all is lost."""
    model = tiny.no_biases(tiny.bert()).double()
    ledger = whence.explain(model, texts(), "conservative-lrp", 0, norms=False).ledger
    assert ledger.sums[:, 0].abs().max() < 1e-6 * ledger.total.abs().max()
    kind, name, stage, _ = ledger.largest(1)[0]
    assert (kind, stage) in {("norm", 1), ("norm", 2), ("activation", 3)}
    assert name


@pytest.mark.parametrize("family", [tiny.bert, tiny.vit, tiny.Encoder, tiny.Handwritten])
@pytest.mark.parametrize("layers", [1, 3])
def test_deep_taylor_relevance_sums_to_one_at_every_block(family, layers):
    torch.manual_seed(0)
    model = (
        (family(layers) if family in (tiny.bert, tiny.vit, tiny.Handwritten) else family(layers=layers)).double().eval()
    )
    inputs = {"pixel_values": tiny.pixels().double()} if family is tiny.vit else {"input_ids": tiny.ids()}
    e = whence.explain(model, inputs, "transformer-attribution", 1)
    assert e.ledger.sums.shape == (3, layers + 1)
    assert torch.allclose(e.ledger.sums, torch.ones_like(e.ledger.sums), atol=1e-5)
    exact = whence.explain(model, inputs, "transformer-attribution", 1, eps=0.0)
    assert torch.allclose(exact.ledger.sums, torch.ones_like(e.ledger.sums), atol=1e-10)


def test_the_ledger_names_the_bias_that_absorbed():
    model = tiny.no_biases(tiny.bert()).double()
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.bias.fill_(3.0)
    ledger = whence.explain(model, texts(), "conservative-lrp", 0).ledger
    biases = [x for x in ledger.largest(20) if x[0] == "bias" and abs(x[3]) > 1e-12]
    assert [x[:3] for x in biases] == [("bias", "bert.encoder.layer.1.intermediate.dense", 2)]
    assert ledger.absorbed["bias"][0, 2] == pytest.approx(float(ledger.sums[0, 2] - ledger.sums[0, 1]))


def test_layers_are_the_relevance_entering_each_block():
    e = whence.explain(tiny.bert(3).double(), texts(), "conservative-lrp", 0)
    assert e.layers.shape == (3, 3, 7)
    assert torch.allclose(e.layers.sum(-1), e.ledger.sums[:, :3])
    assert torch.allclose(e.layers[:, 0], e.scores)
    assert (e.layers[1, :, 5:] == 0).all()


def test_the_ledger_reads_as_text():
    text = repr(whence.explain(tiny.bert(), texts(1), "conservative-lrp", 0).ledger)
    assert "out of the last block" in text
    assert "into block 0" in text
    assert "absorbed" in text or "created" in text


@pytest.mark.parametrize("target", [whence.At(3, 5), whence.At([5, 2], [7, 9]), whence.contrast(5, 9)])
def test_a_backward_that_begins_before_the_vocabulary_has_the_same_scores_and_books(target):
    """Of a function of the logits the whole backward is done; of a token it begins before the layer that makes them."""
    model = tiny.llama().double()
    model.lm_head = torch.nn.Linear(32, 60).double()  # with a bias
    ids = torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(0))

    def by_hand(outputs):
        logits = outputs.logits
        if isinstance(target, whence.Contrast):
            return logits[:, -1, 5] - logits[:, -1, 9]
        places, tokens = ((x, x) if isinstance(x, int) else x for x in (target.position, target.target))
        return torch.stack([logits[i, places[i], tokens[i]] for i in range(2)])

    short, whole = (whence.explain(model, {"input_ids": ids}, target=t) for t in (target, by_hand))
    assert (short.scores - whole.scores).abs().max() < 1e-12
    assert (short.value - whole.value).abs().max() < 1e-12
    assert (short.ledger.sums - whole.ledger.sums).abs().max() < 1e-12
    assert short.ledger.imbalance.abs().max() < 1e-7  # the model's own norms are in float32
    assert (short.ledger.absorbed["bias"] - whole.ledger.absorbed["bias"]).abs().max() < 1e-12
    assert whole.ledger.absorbed["bias"].abs().max() > 1e-3


class ScaledByTheInput(nn.Module):
    """A norm of constants, whose weight depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.weigh, self.head = nn.Embedding(60, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids):
        weight = self.weigh(self.embed(input_ids)).mean((0, 1))
        return self.head(F.layer_norm(torch.arange(8.0, dtype=weight.dtype)[None], (8,), weight))


def test_the_books_of_a_norm_that_only_its_weight_ties_to_the_input_balance():
    e = whence.explain(ScaledByTheInput().double().eval(), {"input_ids": tiny.ids(1)}, "gradient-x-input", 1)
    assert e.scores.isfinite().all()
    assert e.ledger.imbalance.abs().max() < 1e-12


class FilledBySlices(nn.Module):
    """Keys written into uninitialised memory, half by half, as DeepSeek does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.keys, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        keys = x.new_empty(x.shape)
        keys[..., :4].copy_(self.keys(x)[..., :4])
        keys[..., 4:].copy_(x[..., 4:])
        return self.head((x + (x @ keys.mT).softmax(-1) @ x).mean(1))


@pytest.mark.parametrize("method", ["lrp", "transformer-attribution"])
def test_what_uninitialised_memory_holds_is_in_no_entry(method):
    torch.manual_seed(0)
    model = FilledBySlices().double().eval()
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        e = whence.explain(model, {"input_ids": torch.tensor([[1, 2, 3]])}, method, 0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.stack([entry.amount for entry in e.ledger.entries]).isfinite().all()
    assert e.ledger.imbalance.abs().max() < 1e-9


def test_the_stabiliser_of_the_first_block_is_counted_once():
    """Read before the block, relevance passes its input, where the stabiliser of several readers takes its share."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "num_heads": 2, "batch_first": True}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = nn.Embedding(20, 8), nn.MultiheadAttention(**sizes)
            self.head = nn.Linear(8, 3)

        def forward(self, ids):
            x = self.embedding(ids)
            return self.head((x + self.attention(x, x, x)[0])[:, 0])

    ids = torch.tensor([[3, 7, 11, 2], [4, 4, 9, 1]])
    e = whence.explain(Model().double().eval(), ids, "lrp", 1, at="token")
    stabilised = [entry.amount.abs().max() for entry in e.ledger.entries if entry.kind == "stabiliser"]
    assert max(stabilised) > 1e-12
    assert e.ledger.imbalance.abs().max() < 1e-3 * max(stabilised)
