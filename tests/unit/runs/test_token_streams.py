"""Token streams: found from the running model, named by what the user gave, each with its own tokens."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

import whence
from tests.support import tiny
from tests.support.processors import WORDS

TEXTS = ["a good film", "bad", "it is a terrible plot"]


@pytest.fixture(scope="module")
def writer():
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        pad_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    return whence.Explainer(hf.T5ForConditionalGeneration(config).double().eval(), WORDS)


def test_an_encoder_decoder_explains_the_first_token_that_it_would_write(writer):
    e = writer("a good film")
    ids = WORDS("a good film", return_tensors="pt")["input_ids"]
    said = writer.model(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0, 0].argmax()
    assert int(e.prediction) == int(said)
    assert e.prediction_names == (WORDS.decode([int(said)]),)
    assert len(e.streams) == 2
    assert [w.text for w in e.words[0]] == ["a", "good", "film"]


def test_texts_of_an_encoder_decoder_are_the_same_in_a_batch(writer):
    for text, e in zip(TEXTS, writer(TEXTS), strict=True):
        alone = writer(text)
        assert e.tokens == alone.tokens
        assert list(e.streams) == list(alone.streams)
        assert torch.allclose(e.scores, alone.scores, atol=1e-6 * float(alone.scores.abs().max()))


def test_inputs_that_are_read_as_one_sequence_are_told_apart():
    """VisualBERT reads the text, then the picture's features."""
    torch.manual_seed(0)
    config = hf.VisualBertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        visual_embedding_dim=10, num_labels=3,
    )  # fmt: skip
    model = hf.VisualBertForQuestionAnswering(config).eval()
    ids, picture = tiny.ids(2), torch.randn(2, 5, 10)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "visual_embeds": picture}
    e = whence.explain(model, inputs | {"visual_attention_mask": torch.ones(2, 5)})
    assert {name: s.shape for name, s in e.streams.items()} == {"text": (2, 7), "image": (2, 5)}
    assert torch.equal(torch.cat(list(e.streams.values()), 1), e.scores)


def test_of_a_text_and_a_picture_each_can_be_read_alone():
    """ViLT puts both in one row of tokens; at the words there are only words, at the pixels only pixels."""
    torch.manual_seed(0)
    config = hf.ViltConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=16,
        patch_size=8, num_labels=3, max_position_embeddings=20, max_image_length=4,
    )  # fmt: skip
    model = hf.ViltForQuestionAnswering(config).double().eval()
    inputs = {"input_ids": tiny.ids(1, 5), "pixel_values": torch.randn(1, 3, 16, 16, dtype=torch.float64)}
    for at, streams in [
        ("position", {"text": 5, "image": 5}), ("token", {"text": 5}), ("pixel", {"image": 256}),
    ]:  # fmt: skip
        e = whence.explain(model, inputs, "gradient-x-input", 1, at=at)
        assert {name: s.shape[1] for name, s in e.streams.items()} == streams


class Forecast(nn.Module):
    """Predict a series from itself, and compare the two, as for a loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 1)
        self.qkv, self.out, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, values):
        x = self.norm(self.embed(values[..., None]))
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.mT, -1) @ v)
        found = self.head(x).squeeze(-1)
        return {"forecast": found, "error": values - found}


def test_a_sum_around_all_blocks_begins_no_stream():
    """What a model computes for a loss beside the target is no block of its own; where it is the target, it is read."""
    model, values = Forecast().double().eval(), torch.randn(2, 5, dtype=torch.float64)
    e = whence.explain(model, values, "gradient-x-input", lambda out: out["forecast"][:, -1])
    assert [s.shape for s in e.streams.values()] == [(2, 5)]
    with pytest.warns(whence.WhenceWarning, match="bypasses"):
        e = whence.explain(model, values, "gradient-x-input", lambda out: out["error"][:, -1])
    x = values.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)["error"][:, -1].sum(), x)
    assert torch.allclose(e.scores, gradient * values)
