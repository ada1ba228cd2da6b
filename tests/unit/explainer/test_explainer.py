"""Raw text in, explanations out: batches, targets, characters, and models from a directory."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers import BertForMaskedLM, BertForSequenceClassification, GPT2ForSequenceClassification, GPT2LMHeadModel

import whence
from tests.support import tiny
from tests.support.checks import same
from tests.support.goldens import shared
from tests.support.processors import BYTES, LABELS, WORDS, bert, bert_config, bytes_bpe, gpt2, saved, small

PADDED = bytes_bpe(pad_token="<|endoftext|>")
CLASSIFIER, FILLER = bert(WORDS).double(), bert(WORDS, BertForMaskedLM)
MASKED = whence.Explainer(FILLER, processor=WORDS)
SPEAKER = gpt2(BYTES, GPT2LMHeadModel)
BERT = whence.Explainer(CLASSIFIER, processor=WORDS)
GPT2 = whence.Explainer(
    gpt2(PADDED, GPT2ForSequenceClassification, num_labels=3, pad_token_id=0).double(), processor=PADDED
)
CAUSAL = whence.Explainer(SPEAKER, processor=BYTES)
TEXTS = ["A gripping film!", "bad", "it is far too long, and the plot is terrible", "good film", "I don't know"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "bert", bert(WORDS), WORDS)


# -- one and many ----------------------------------------------------------------------------------------------------

VOCABULARY = ["a", "bad", "good", "film", "plot", "is", "terrible", ",", "don't", "it"]
SENTENCE = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12)


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["wordpiece", "bytes"])
@settings(max_examples=8)
@given(texts=st.lists(SENTENCE.map(" ".join), max_size=5), size=st.integers(1, 6), method=st.sampled_from(tiny.METHODS))
def test_many_are_explained_as_one_by_one(explainer, texts, size, method):
    many = explainer(texts, method, batch_size=size)
    assert isinstance(many, whence.Explanations)
    assert [e.origins[0]["text"].texts[0] for e in many] == texts
    for text, e in zip(texts, many, strict=True):
        same(e, explainer(text, method), entries=False)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_single_precision_is_the_same_in_batches(directory, size):
    explainer = whence.Explainer.from_pretrained(directory)
    for text, e in zip(TEXTS, explainer(TEXTS, batch_size=size), strict=True):
        same(e, explainer(text), 1e-5, entries=False)


@pytest.mark.parametrize("wrap", [iter, lambda x: (t for t in x), dict.fromkeys, np.array])
def test_iterators_are_many(wrap):
    source = wrap(TEXTS)
    found = BERT(source if not isinstance(source, dict) else source.keys())
    assert [e.origins[0]["text"].texts[0] for e in found] == TEXTS


def test_nothing_in_nothing_out():
    assert BERT([]) == []
    assert list(BERT.stream([])) == []


def test_texts_of_one_length_without_a_padding_token():
    """Models that need a padding token to be given a batch are not given one."""
    explainer = whence.Explainer(gpt2(BYTES, GPT2ForSequenceClassification, num_labels=3), processor=BYTES)
    assert len(BYTES("a film")["input_ids"]) == len(BYTES("a plot")["input_ids"])
    for text, e in zip(["a film", "a plot"], explainer(["a film", "a plot"]), strict=True):
        same(e, explainer(text), 1e-5, entries=False)


@pytest.mark.parametrize("item", [None, 5, b"bytes", Path("a"), ("a", "b", "c"), ("a", 5), {"text": "a"}])
def test_what_is_no_text_is_refused(item):
    for given_ in (item, [item]):
        with pytest.raises(whence.InputError, match=r"text|string"):
            BERT(given_)


def test_one_input_is_compared_at_a_time():
    assert {e.method for e in BERT.compare("bad")} == set(whence.list_methods()) - {"dave"}  # which explains pictures
    with pytest.raises(whence.InputError, match="one input"):
        BERT.compare(["bad", "good"])


def test_an_error_names_the_input():
    with pytest.raises(whence.InputError, match="Input 2: The text is empty"):
        BERT(["a", "b", " "])


@pytest.mark.parametrize("size", [0, -1])
def test_batches_of_nothing_are_refused(size):
    with pytest.raises(whence.InputError, match="batch_size"):
        BERT(["a"], batch_size=size)
    with pytest.raises(whence.InputError, match="batch_size"):
        list(BERT.stream(["a"], batch_size=size))


def test_tensors_that_hold_several_samples_are_not_given_to_the_wrong_ones():
    """Two batches of two in a list: four samples, not the first two of them twice labelled."""
    ids = tiny.ids(4, 5)
    explainer = whence.Explainer(tiny.bert())
    whole = explainer({"input_ids": ids})
    with pytest.raises(whence.InputError, match="one sample each"):
        explainer([{"input_ids": ids[:2]}, {"input_ids": ids[2:]}])
    found = explainer([{"input_ids": row[None]} for row in ids])
    assert torch.allclose(torch.cat([e.scores for e in found]), whole.scores, atol=1e-5)


# -- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_has_no_end_and_takes_no_more_than_a_window():
    taken = itertools.count()
    source = (TEXTS[next(taken) % 5] for _ in itertools.count())
    found = list(itertools.islice(BERT.stream(source, batch_size=2), 3))
    assert [e.origins[0]["text"].texts[0] for e in found] == TEXTS[:3]
    assert next(taken) <= 64
    for text, e in zip(TEXTS, found, strict=False):
        same(e, BERT(text), entries=False)


def test_a_stream_keeps_order_over_windows():
    texts = [TEXTS[i % 5] for i in range(40)]
    assert [e.origins[0]["text"].texts[0] for e in BERT.stream(texts, batch_size=1)] == texts


def test_targets_of_a_stream_belong_to_their_inputs():
    targets = [i % 3 for i in range(40)]
    assert [int(e.target) for e in BERT.stream(["bad"] * 40, target=targets, batch_size=1)] == targets
    with pytest.raises(whence.TargetError):  # too few, but as many as the first window holds
        list(BERT.stream(["bad"] * 32, target=targets[:16], batch_size=1))


def test_an_error_in_a_stream_names_the_input():
    with pytest.raises(whence.InputError, match="Input 20: The text is empty"):
        list(BERT.stream([*["bad"] * 20, " "], batch_size=1))


def test_a_stream_of_one_string_is_not_a_stream_of_its_letters():
    with pytest.raises(whence.InputError):
        list(BERT.stream("film"))


# -- targets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [2, "good", "GOOD", lambda o: o.logits[:, 2]])
def test_a_target_for_all(target):
    for text, e in zip(TEXTS, BERT(TEXTS, target=target, batch_size=2), strict=True):
        assert torch.allclose(e.scores, BERT(text, target=2).scores, atol=1e-9)


@pytest.mark.parametrize("targets", [[2, 0, 1, 2, 0], torch.tensor([2, 0, 1, 2, 0])])
def test_a_target_per_input(targets):
    found = BERT(TEXTS, target=targets, batch_size=2)
    assert [int(e.target) for e in found] == [2, 0, 1, 2, 0]
    assert [e.target_names for e in found] == [(LABELS[i],) for i in (2, 0, 1, 2, 0)]


def test_a_target_that_is_none_stands_for_its_own_input_only():
    wanted = [None, *[int(e.logits.argmin()) for e in BERT(TEXTS[1:])]]
    found = BERT(TEXTS, target=wanted)
    assert [int(e.target) for e in found] == [int(found[0].prediction), *wanted[1:]]


def test_functions_per_input_each_explain_their_own():
    found = BERT(["bad", "bad"], target=[lambda o: o.logits[:, 0], lambda o: o.logits[:, 1]])
    for i, e in enumerate(found):
        assert torch.allclose(e.scores, BERT("bad", target=i).scores, atol=1e-9)


def test_wrong_targets_list_what_there_is():
    with pytest.raises(whence.TargetError, match=r"Did you mean 'good'\? Its labels: bad, so-so, good"):
        BERT("bad", target="goood")
    with pytest.raises(whence.TargetError, match="2 targets were given for 3 inputs"):
        BERT(TEXTS[:3], target=[0, 1])
    for count in (1, 3):  # of inputs whose number is not known before
        with pytest.raises(whence.TargetError, match="2 targets"):
            BERT(iter(TEXTS[:count]), target=[0, 1])
    with pytest.raises(whence.TargetError, match="out of range"):
        BERT("bad", target=3)


def test_labels_given_by_hand_name_the_classes():
    e = whence.Explainer(CLASSIFIER, WORDS, labels=["x", "y", "z"])("bad", target="y")
    assert e.target_names == ("y",)
    assert e.labels == {0: "x", 1: "y", 2: "z"}
    with pytest.raises(whence.WhenceError, match="4 labels"):  # and not the model's own names in their place
        whence.Explainer(CLASSIFIER, WORDS, labels=["w", "x", "y", "z"])("bad")


def test_a_masked_word_is_guessed_where_the_mask_stands():
    found = MASKED(["a [MASK] film", "it is [MASK]", "[MASK]!"], target=None)
    for e, at in zip(found, (2, 3, 1), strict=True):
        ids = torch.tensor([WORDS.convert_tokens_to_ids(e.tokens[0])])
        assert int(e.prediction) == int(FILLER(ids).logits[0, at].argmax())
        assert e.prediction_names == (WORDS.decode([int(e.prediction)]),)


def test_a_mask_in_the_text_of_a_classifier_is_a_word():
    assert [w.text for w in BERT("a [MASK] film").words[0]] == ["a", "[MASK]", "film"]


def test_without_a_mask_a_place_must_be_named():
    with pytest.raises(whence.TargetError, match=r"write \[MASK\] where"):
        MASKED("a film")
    good = WORDS.convert_tokens_to_ids("good")
    for target in (whence.At(2, good), whence.At(2, "good")):
        assert MASKED("a film", target=target).target_names == ("good",)


def test_a_place_is_a_target_for_many():
    found = MASKED(["a film", "bad plot"], target=whence.At(2))
    for text, e in zip(["a film", "bad plot"], found, strict=True):
        same(e, MASKED(text, target=whence.At(2)), 1e-5, entries=False)


def test_the_next_token_is_named_and_chosen_by_its_string():
    e = CAUSAL("the film is", target=" good")
    assert e.target_names == (" good",)
    assert int(e.target) == BYTES.convert_tokens_to_ids("Ġgood")
    assert e.prediction_names == (
        BYTES.decode([int(SPEAKER(**BYTES("the film is", return_tensors="pt"))[0][0, -1].argmax())]),
    )
    assert CAUSAL("the film is", target="good").target_names == (" good",)
    with pytest.raises(whence.TargetError, match="'terrible plot' is not one token"):
        CAUSAL("the film is", target="terrible plot")


@pytest.mark.parametrize("token", ["i", "Ġi", "a", "Ġa", ",", "s"])
def test_a_token_named_by_an_explanation_can_be_asked_for(token):
    wanted = BYTES.convert_tokens_to_ids(token)
    name = CAUSAL("the film is", target=wanted).target_names[0]
    assert int(CAUSAL("the film is", target=name).target) == wanted


@pytest.mark.parametrize("word", ["☃", "雪"])
def test_a_word_that_the_tokenizer_does_not_know_is_no_target(word):
    with pytest.raises(whence.TargetError, match="not one token"):
        MASKED("a [MASK] film", target=word)


def test_a_compiled_model_is_read_as_the_model_it_is():
    e = whence.Explainer(torch.compile(SPEAKER), BYTES)("the film is")
    same(e, CAUSAL("the film is"), 1e-5, entries=False)
    same(whence.Explainer(torch.compile(FILLER), WORDS)("a [MASK]"), MASKED("a [MASK]"), 1e-5, entries=False)


# -- characters ------------------------------------------------------------------------------------------------------


HARD = ["\x00", "\u0301", "\u200d", "a\u3000b\u00a0c\r\n\td", "ﬁlm ½ ① Å", "ﷺ İ ß ŉ", "good\ufeff [SEP] film", "\u00ad"]


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["wordpiece", "bytes"])
@settings(max_examples=60)
@given(text=st.sampled_from(HARD) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
@example("e\u0301te\u0301 👩‍👩‍👧 🇫🇷🇩🇪 \u202e\u05e9\u05dc\u05d5\u05dd\u202c 你好 \x00\x1b")
def test_every_character_and_every_score_is_kept(explainer, text):
    assume(text.strip())
    e = explainer(text)
    (origin,) = (o["text"] for o in e.origins)
    if origin.unread:
        return
    assert origin.texts == (text,)
    assert all(0 <= start <= end <= len(text) for start, end in e.offsets[0])
    for words in (True, False):
        pieces = origin.pieces(e.scores[0].tolist(), words)
        assert "".join(p.text for p in pieces) == text
        assert sorted(i for p in pieces for i in p.positions) == (~e.special[0]).nonzero().flatten().tolist()
    assert all(text[w.start : w.end] == w.text for w in e.words[0])
    own = float(e.scores[0][~e.special[0]].sum())
    assert sum(w.score for w in e.words[0]) == pytest.approx(own, abs=1e-6)


def test_words_of_both_tokenizers_are_the_words_of_the_text():
    text = "Don't  say it's a well-made FILM, it cost 3.50!"
    expected = ["Don't", "say", "it's", "a", "well-made", "FILM", ",", "it", "cost", "3.50", "!"]
    for explainer in (BERT, GPT2):
        assert [w.text for w in explainer(text).words[0]] == expected


class Placeless:
    """A tokenizer that says which tokens there are, but not where they stand."""

    pad_token_id = 0
    convert_ids_to_tokens = staticmethod(WORDS.convert_ids_to_tokens)

    def __call__(self, *texts, return_offsets_mapping=None, **options):
        return dict(WORDS(*texts, **options))


@pytest.mark.parametrize("text", [
    "A gripping FILM,  don't!", "film film ☃ film", "été good", "good\u0301 Film ☃☃ film", "a-b good_film",
    "İs good", ("is it good?", "it is bad"),
])  # fmt: skip
def test_tokens_without_a_place_are_found_by_reading_along(text):
    assert whence.Explainer(CLASSIFIER, Placeless())(text).words == BERT(text).words


def test_a_pair_is_two_texts():
    a, b = "is it good?", "it is bad"
    e = BERT((a, b))
    assert e.origins[0]["text"].texts == (a, b)
    assert [w.text for w in e.words[0]] == ["is", "it", "good", "?", "it", "is", "bad"]
    assert [w.part for w in e.words[0]] == [0, 0, 0, 0, 1, 1, 1]
    assert all((a, b)[w.part][w.start : w.end] == w.text for w in e.words[0])
    direct = whence.explain(CLASSIFIER, dict(WORDS(a, b, return_tensors="pt")))
    assert torch.allclose(e.scores, direct.scores, atol=1e-9)
    for one, many in zip([(a, b), (b, a), ("a", "bad")], BERT([(a, b), (b, a), ("a", "bad")]), strict=True):
        same(BERT(one), many, entries=False)


# -- texts that are too long, or none --------------------------------------------------------------------------------


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["wordpiece", "bytes"])
def test_what_was_not_read_is_said(explainer):
    text = "bad film " * 60
    with pytest.warns(whence.WhenceWarning, match=r"has \d+ tokens and the model takes 100: the rest was not read"):
        e = explainer(text)
    (unread,) = e.origins[0]["text"].unread
    assert e.scores.shape == (1, 100)
    assert unread.end == len(text)
    assert max(w.end for w in e.words[0]) == unread.start
    assert "".join(p.text for p in e.origins[0]["text"].pieces(e.scores[0].tolist())) == text


def test_a_long_text_is_refused_if_it_must_be_read_whole():
    explainer = whence.Explainer(CLASSIFIER, WORDS, truncate=False)
    with pytest.raises(whence.InputError, match=r"has 122 tokens and the model takes 100\. Shorten it"):
        explainer("bad film " * 60)
    assert explainer("bad film " * 49).scores.shape == (1, 100)


@pytest.mark.parametrize("text", ["", " ", "\n\t\u3000", ("a", ""), (" ", "a")])
def test_an_empty_text_is_refused(text):
    with pytest.raises(whence.InputError, match="empty"):
        BERT(text)


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["wordpiece", "bytes"])
def test_a_lone_surrogate_is_refused(explainer):
    with pytest.raises(whence.InputError, match="lone surrogates"):
        explainer("a \ud800 b")


# -- models and tokenizers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [50, 1000])
def test_a_tokenizer_of_another_model_is_refused(size):
    """Too few tokens: other words. Too many: numbers that the model has no embedding for."""
    with pytest.raises(whence.ModelError, match=r"tokenizer knows \d+ tokens and the model"):
        whence.Explainer(small(BertForSequenceClassification, bert_config(size)), WORDS)("terrible plot")


def test_a_model_that_takes_ids_alone_is_given_ids_alone():
    model = tiny.Handwritten()
    model.embed = torch.nn.Embedding(len(WORDS), 32)
    e = whence.Explainer(model.eval(), WORDS)("a gripping film")
    assert [w.text for w in e.words[0]] == ["a", "gripping", "film"]
    assert torch.allclose(e.logits, model(torch.tensor([WORDS("a gripping film")["input_ids"]])))


@pytest.mark.parametrize(("text", "target", "strongest"), [
    ("A terrible film with a good cast.", "NEGATIVE", "terrible"),
    ("What a wonderful, moving story!", "POSITIVE", "wonderful"),
])  # fmt: skip
def test_a_trained_model_points_at_the_word_that_says_it(text, target, strongest):
    explainer = whence.Explainer.from_pretrained(shared("weights", "minilm_l6_sst2"))
    e = explainer(text)
    assert e.prediction_names[0].upper() == e.target_names[0].upper() == target
    assert max(e.words[0], key=lambda w: w.score).text == strongest
    for method in ("generic-attention", "transformer-attribution"):
        assert strongest in [w.text for w in explainer(text, method, target=target).top(2)[0]], method
