"""Models that answer at every position: the word that is explained is named, or the message says how."""

import pytest
import torch
from transformers import BertForQuestionAnswering, BertForTokenClassification

import whence
from tests.support.processors import WORDS, bert, bert_config, small

TEXT = "A gripping film, and a wonderful cast."


@pytest.fixture(scope="module")
def tagger():
    return whence.Explainer(bert(WORDS, BertForTokenClassification), WORDS)


@pytest.fixture(scope="module")
def reader():
    return whence.Explainer(small(BertForQuestionAnswering, bert_config(len(WORDS))), WORDS)


def test_a_word_names_the_position_of_its_first_token(tagger):
    e = tagger(TEXT, token="wonderful")
    place = next(i for i, s in enumerate(e.origins[0]["text"].spans) if s and s.start == TEXT.index("wonderful"))
    assert torch.equal(e.scores, tagger(TEXT, target=whence.At(place)).scores)
    assert torch.equal(
        tagger(TEXT, token="wonderful", target="good").scores, tagger(TEXT, target=whence.At(place, 2)).scores
    )


def test_in_a_list_each_text_has_its_own_position(tagger):
    both = tagger([TEXT, "The cast is a wonderful one."], token="wonderful")
    assert torch.allclose(both[1].scores, tagger("The cast is a wonderful one.", token="wonderful").scores, atol=1e-6)


@pytest.mark.parametrize(
    ("token", "why"),
    [("plot", "is no word of the text"), ("a", "is in the text 2 times, at the positions")],
)
def test_a_word_that_is_not_there_once_is_refused(tagger, token, why):
    text = "it is a film, a good one." if token == "a" else TEXT
    with pytest.raises(whence.TargetError, match=why):
        tagger(text, token=token)


def test_without_a_position_the_message_says_how_to_choose_one(tagger):
    with pytest.raises(whence.TargetError, match=r"none of them is chosen.*whence\.At.*token='word'"):
        tagger(TEXT)
    with pytest.raises(whence.TargetError, match="is a word, and these inputs are tensors"):
        whence.explain(tagger.model, tagger.read(TEXT).tensors, target=whence.At("film"))


def test_an_answer_is_explained_by_its_span(reader):
    pair = ("What is gripping?", TEXT)
    assert torch.equal(reader(pair, answer=True).scores, reader(pair, target=whence.answer()).scores)
    with pytest.raises(whence.TargetError, match=r"whence\.answer\(\).*answer=True"):
        reader(pair)
    with pytest.raises(whence.TargetError, match="a target of its own"):
        reader(pair, answer=True, target=1)
