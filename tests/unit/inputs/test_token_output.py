"""Whether a model predicts tokens, fills in masked ones, or generates text: never by its name."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

import whence
from tests.support.processors import WORDS
from whence.errors import TargetError
from whence.inputs.token_output import can_generate, decoder_start_token, is_masked_lm, predicts_tokens

SIZES = {
    "vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
FILLING = ("Bert", "Roberta", "Electra", "DistilBert", "Albert", "DebertaV2", "ModernBert", "XLMRoberta")


def small(name, **more):
    cls = getattr(hf, name)
    torch.manual_seed(0)
    return cls(cls.config_class(**(SIZES | more))).eval()


@pytest.mark.parametrize("family", FILLING)
def test_models_that_fill_in_masks_are_known(family):
    model = small(f"{family}ForMaskedLM", **({"dim": 16, "n_layers": 1, "n_heads": 2} if "Distil" in family else {}))
    assert predicts_tokens(model, WORDS)
    assert is_masked_lm(model, WORDS)


@pytest.mark.parametrize(
    "name",
    ["BertForSequenceClassification", "BertForTokenClassification", "BertModel", "BertForQuestionAnswering",
     "GPT2LMHeadModel", "LlamaForCausalLM", "BertLMHeadModel", "BartForConditionalGeneration",
     "BartForSequenceClassification"],
)  # fmt: skip
def test_models_that_do_not_fill_in_masks_are_known(name):
    model = small(name, **({"d_model": 16, "encoder_layers": 1, "decoder_layers": 1} if "Bart" in name else {}))
    assert not is_masked_lm(model, WORDS)


class Plain(nn.Module):
    """A model of nobody's library; its table of two types is as large as a head of two classes."""

    def __init__(self, tokens, classes, types=2):
        super().__init__()
        self.embedding, self.types = nn.Embedding(tokens, 16), nn.Embedding(types, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, input_ids, attention_mask=None):
        x = self.embedding(input_ids) + self.types(torch.zeros_like(input_ids))
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


def test_a_class_by_another_name_fills_in_masks_all_the_same():
    class Guesser(hf.BertForMaskedLM):
        pass

    torch.manual_seed(0)
    model = Guesser(hf.BertConfig(**SIZES)).eval()
    explainer = whence.Explainer(model, WORDS)
    e = explainer("the [MASK] film")
    ids = torch.tensor([WORDS.convert_tokens_to_ids(e.tokens[0])])
    assert int(e.prediction) == int(model(ids).logits[0, 2].argmax())
    with pytest.raises(TargetError, match=r"write \[MASK\] where"):
        explainer("the film")


def test_a_plain_module_is_known_by_its_last_layer():
    torch.manual_seed(0)
    assert predicts_tokens(Plain(len(WORDS), len(WORDS)), WORDS)
    assert not predicts_tokens(Plain(len(WORDS), 2), WORDS)  # as many as types, not as tokens
    assert can_generate(Plain(4, 4)) is None


def test_a_mask_in_the_text_of_a_plain_module_is_what_it_guesses():
    torch.manual_seed(0)
    model = Plain(len(WORDS), len(WORDS)).eval()
    explainer = whence.Explainer(model, WORDS)
    e = explainer("the [MASK] film", "gradient-x-input")
    ids = torch.tensor([WORDS.convert_tokens_to_ids(e.tokens[0])])
    assert int(e.prediction) == int(model(ids)[0, 2].argmax())
    with pytest.raises(TargetError, match="none of them is chosen"):  # without one it is not known where to look
        explainer("the film", "gradient-x-input")
    with pytest.raises(TargetError, match=r"write \[MASK\] where"):
        explainer(["the film", "the [MASK]"], "gradient-x-input", batch_size=2)


def test_an_encoder_decoder_begins_with_its_own_token():
    begun = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": 3}
    assert decoder_start_token(small("BartForConditionalGeneration", **begun)) == 3
    assert decoder_start_token(small("BartForSequenceClassification", **begun)) is None
    assert decoder_start_token(small("BartForCausalLM", **begun)) is None
    assert decoder_start_token(small("GPT2LMHeadModel")) is None
