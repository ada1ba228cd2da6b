"""Tokens that a model puts before the user's text shift no word, no position and no target."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import whence
from tests.support.processors import bytes_bpe
from whence.inputs.text import token_limit

VIRTUAL = 3
TEXT = "A gripping film"


class Prompted(nn.Module):
    """A language model with virtual tokens before the embedded words, as prompt tuning and P-tuning put them."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.prompt = nn.Parameter(torch.randn(1, VIRTUAL, model.config.hidden_size))

    def can_generate(self):
        return True

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def forward(self, input_ids, attention_mask):
        words = self.model.get_input_embeddings()(input_ids)
        prompt = self.prompt.expand(len(words), -1, -1)
        mask = torch.cat([attention_mask.new_ones(len(words), VIRTUAL), attention_mask], 1)
        return self.model(inputs_embeds=torch.cat([prompt, words], 1), attention_mask=mask)


@pytest.fixture(scope="module")
def explainer():
    tokenizer = bytes_bpe(pad_token="<|endoftext|>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    return whence.Explainer(Prompted(LlamaForCausalLM(config)).eval().double(), tokenizer)


def logits(explainer, text):
    given = explainer.processor(text, return_tensors="pt")
    with torch.no_grad():
        return explainer.model(**given).logits[0, VIRTUAL:]


@pytest.mark.parametrize("method", ["conservative-lrp", "rollout"])
def test_words_have_their_own_scores_and_virtual_tokens_are_special(explainer, method):
    e = explainer(TEXT, method)
    plain = whence.explain(explainer.model, dict(explainer.processor(TEXT, return_tensors="pt")), method)
    assert [w.text for w in e.words[0]] == TEXT.split()
    assert e.special[0].tolist() == [True] * VIRTUAL + [False] * (e.scores.shape[1] - VIRTUAL)
    assert [w.score for w in e.words[0]] == pytest.approx(plain.scores[0, VIRTUAL:].tolist())
    assert list(e.tokens[0][:VIRTUAL]) == ["[virtual 1]", "[virtual 2]", "[virtual 3]"]


def test_the_last_token_of_a_padded_text_is_explained(explainer):
    texts = [TEXT + ", and a wonderful cast.", TEXT]
    together = explainer(texts, progress=False)
    for e, text in zip(together, texts, strict=True):
        assert int(e.target[0]) == int(logits(explainer, text)[-1].argmax())
        assert torch.allclose(e.scores, explainer(text).scores, atol=1e-9)


def test_positions_are_of_the_users_tokens(explainer):
    found = logits(explainer, TEXT)
    for position in (0, 1, -1):
        e = explainer(TEXT, target=whence.At(position, 7))
        assert float(e.logits[0, 7]) == pytest.approx(float(found[position, 7]))
    e = explainer(TEXT, target=whence.At("gripping"))
    assert int(e.target[0]) == int(found[1].argmax())
    with pytest.raises(whence.TargetError, match="answers at 3 positions"):
        explainer(TEXT, target=whence.At(3))


def test_a_captured_position_is_the_same(explainer):
    explain = whence.compile(explainer.model)
    given = dict(explainer.processor(TEXT, return_tensors="pt"))
    target = whence.At(1, 7)
    first, replayed = explain(given, target=target), explain(given, target=target)
    assert first == replayed == whence.explain(explainer.model, given, target=target)


def test_a_continuation_is_explained_by_its_own_logits(explainer):
    text = " and bad"
    g = explainer.generate(TEXT, continuation=text)
    found = logits(explainer, TEXT + text)
    count = len(logits(explainer, TEXT))
    for i, e in enumerate(g):
        row = found[count - 1 + i]
        token = int(e.target[0])
        assert float(e.logits[0, token]) == pytest.approx(float(row[token]))
        last = VIRTUAL + count + i
        assert not bool(e.scores[:, last:].any())  # what is written later
        assert not bool(e.special[0, VIRTUAL:last].any())
        assert bool(e.special[0, last:].all())
    assert [w.text for w in g[-1].words[0]][:3] == TEXT.split()
    assert g.text == text


def test_virtual_tokens_take_room_from_the_text(explainer, monkeypatch):
    tokenizer, model = explainer.processor, explainer.model
    limit = token_limit(tokenizer, model)
    monkeypatch.setattr(model, "active_peft_config", SimpleNamespace(num_virtual_tokens=VIRTUAL), raising=False)
    assert token_limit(tokenizer, model) == limit - VIRTUAL
