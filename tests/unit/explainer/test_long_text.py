"""A text beyond the model's limit: every word is read, equally often, and the scores explain the merged answer."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
)

import whence
from tests.support import tiny
from tests.support.processors import LIMIT, bert, bert_config, bytes_bpe, gpt2, small, wordpiece
from whence.explainer.long_text import WindowLayout, windows
from whence.models import MODELS
from whence.results.word_segmentation import words

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")

WORDS, BYTES = wordpiece(), bytes_bpe(pad_token="<|endoftext|>")
BERT = whence.Explainer(bert(WORDS).double(), processor=WORDS)
GPT2 = whence.Explainer(
    gpt2(BYTES, GPT2ForSequenceClassification, num_labels=3, pad_token_id=0).double(), processor=BYTES
)
BART = whence.Explainer(
    small(BartForSequenceClassification, BartConfig(
        vocab_size=len(WORDS), d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, num_labels=3,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=LIMIT,
        pad_token_id=0, eos_token_id=3, bos_token_id=2, decoder_start_token_id=3, forced_eos_token_id=3, init_std=0.3,
    )).double(), processor=WORDS,
)  # fmt: skip
MODELS_OF = pytest.mark.parametrize("explainer", [BERT, GPT2, BART], ids=["bert", "gpt2", "bart"])
VOCABULARY = ["a", "bad", "gripping", "wonderful", "film", "plot", "is", "terrible", ",", "don't", "zzyzx", "😀"]
LONG = " ".join(VOCABULARY[(i * i + i // 7) % len(VOCABULARY)] for i in range(150))


def cut_of(explainer, text, length=LIMIT, stride=None):
    reader = whence.inputs.text.TextReader(explainer.processor, explainer.model)
    whole = reader.read_whole(text)
    return WindowLayout.of(whole.origins["text"], length, stride), whole


def own_of(cut):
    """The positions of the text itself."""
    return [i for i, span in enumerate(cut.origin.spans) if span is not None]


# -- how a text is cut -----------------------------------------------------------------------------------------------

LENGTHS = {"count": st.integers(20, 400), "length": st.integers(12, LIMIT), "part": st.floats(0.05, 1)}


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["bert", "gpt2"])
@settings(max_examples=12)
@given(**LENGTHS)
def test_every_word_is_read_by_the_same_number_of_windows_and_none_is_too_long(explainer, count, length, part):
    text = " ".join(VOCABULARY[(i * i) % len(VOCABULARY)] for i in range(count))
    kept = 2 if explainer is BERT else 0
    stride = max(1, int(part * (length - kept)))
    cut, _ = cut_of(explainer, text, length, stride)
    held = torch.zeros(len(cut.positions), len(cut.origin.tokens), dtype=torch.float64)
    for row, place in zip(held, cut.positions, strict=True):
        row[place] = 1.0
        assert len(place) <= length
    own, reads = own_of(cut), (length - kept) // stride
    assert (held[:, own].sum(0) == reads).all()
    weights = held[:, own] / reads
    assert torch.allclose(weights.sum(0), torch.ones(len(own), dtype=torch.float64))
    assert torch.allclose(weights.mean(1), cut.weights)  # the mean over tokens of the mean over their windows
    assert float(cut.weights.sum()) == pytest.approx(1)
    special = [i for i in range(held.shape[1]) if i not in own]
    assert held[:, special].all()


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["bert", "gpt2"])
@settings(max_examples=12)
@given(count=st.integers(60, 300), length=st.integers(30, LIMIT))
def test_a_window_is_a_text_of_its_own(explainer, count, length):
    text = " ".join(VOCABULARY[(i * i) % len(VOCABULARY)] for i in range(count))
    cut, whole = cut_of(explainer, text, length)
    starts = {start for start, _ in words(text)}
    for sample, place in zip(cut.samples(whole), cut.positions, strict=True):
        spans = [cut.origin.spans[i] for i in place.tolist() if cut.origin.spans[i] is not None]
        first = spans[0].start
        assert first + (text[first] == " ") in starts
        assert sample.tensors["input_ids"][0].tolist() == explainer.processor(text[first : spans[-1].end])["input_ids"]


def test_a_word_that_is_longer_than_a_window_is_cut():
    text = "film " + "a" * 400 + " is bad"
    cut, _ = cut_of(GPT2, text, 20)
    assert sorted({i for place in cut.positions for i in place.tolist()}) == list(range(len(cut.origin.tokens)))
    assert windows(GPT2, text, length=20).scores.isfinite().all()


# -- what comes out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, 1, "good", whence.contrast("good", None), lambda o: o.logits[:, 0] * 2])
@pytest.mark.parametrize("method", ["conservative-lrp", "generic-attention"])
def test_of_a_short_text_it_is_the_plain_result_exactly(method, target):
    text = "a gripping film, and a wonderful cast"
    plain = BERT(text, method, target)
    assert windows(BERT, text, method, target) == plain
    assert windows(BERT, text, method, target, length=len(plain.tokens[0]), stride=3) == plain
    assert "windows" not in plain.options


@MODELS_OF
def test_all_words_are_there_on_the_users_own_string(explainer):
    e = windows(explainer, LONG)
    assert [(w.start, w.end) for w in e.words[0]] == words(LONG)
    assert e.origins[0][next(iter(e.streams))].unread == ()
    assert e.scores.shape == e.special.shape == (1, len(e.tokens[0]))
    assert e.scores[0].abs().gt(0).float().mean() > 0.9


@pytest.mark.parametrize(
    ("explainer", "method"),
    [(BERT, "conservative-lrp"), (BERT, "attention"), (GPT2, "conservative-lrp"), (BART, "gradient-x-input")],
    ids=["bert", "bert-attention", "gpt2", "bart"],
)
def test_scores_and_answer_are_the_mean_of_the_windows_by_length(explainer, method):
    """Against windows that are explained one by one, as texts."""
    e = windows(explainer, LONG, method, target=1, length=75, stride=30)
    cut, _ = cut_of(explainer, LONG, 75, 30)
    scores, logits, value, total = torch.zeros_like(e.scores[0]), 0.0, 0.0, 0
    for place in cut.positions:
        spans = [cut.origin.spans[i] for i in place.tolist() if cut.origin.spans[i] is not None]
        alone = explainer(LONG[spans[0].start : spans[-1].end], method, target=1)
        size = len(spans)
        scores[place] += size * alone.scores[0]
        logits, value, total = logits + size * alone.logits, value + size * alone.value, total + size
    assert torch.allclose(e.scores[0], scores / total, atol=1e-12)
    assert torch.allclose(e.logits, logits / total)
    assert torch.allclose(e.value, value / total)
    assert e.prediction.tolist() == [int(logits.argmax())]


@MODELS_OF
def test_the_ledger_accounts_for_the_merged_answer(explainer):
    e = windows(explainer, LONG, length=60)
    assert torch.allclose(e.ledger.total, e.value)
    assert torch.allclose(e.value, e.logits[:, int(e.target[0])])
    assert torch.allclose(e.ledger.sums[:, 0], sum(s.sum(1) for s in e.streams.values()))
    assert e.ledger.imbalance.abs().max() < 1e-9 * e.value.abs().max()
    if len(e.streams) == 1:
        assert torch.allclose(e.layers[0].sum(-1), e.ledger.sums[0, : e.layers.shape[1]])


@pytest.mark.parametrize(("explainer", "size"), [(BERT, 2), (GPT2, 9), (BART, 3)], ids=["bert", "gpt2", "bart"])
def test_a_words_score_does_not_depend_on_the_batch(explainer, size):
    one, many = (windows(explainer, LONG, length=80, batch_size=n) for n in (1, size))
    assert torch.allclose(one.scores, many.scores, atol=1e-12)
    assert torch.allclose(one.logits, many.logits)
    assert one.origins == many.origins


class MeanOfWords(nn.Module):
    """Its answer to a text is the mean of its answers to the words: nothing is lost by reading in windows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(len(WORDS), 8)
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, input_ids, attention_mask):
        own = (attention_mask * (input_ids > 4))[..., None].to(self.head.weight.dtype)
        return self.head((self.embedding(input_ids) * own).sum(1) / own.sum(1))


@pytest.mark.parametrize("stride", [None, 7, 98])
def test_where_windows_lose_nothing_the_result_is_that_of_the_whole_text(stride):
    model, endless = MeanOfWords().double(), copy.deepcopy(WORDS)
    endless.model_max_length = 10_000
    text = LONG.replace("zzyzx", "film").replace("😀", "plot")  # no unknown words
    whole = whence.Explainer(model, endless)(text, "gradient-x-input")
    e = windows(whence.Explainer(model, WORDS), text, "gradient-x-input", stride=stride)
    assert e.options["windows"] > 1
    assert torch.allclose(e.logits, whole.logits)
    assert torch.allclose(e.scores, whole.scores, atol=1e-12)
    assert whole.scores.abs().max() > 1e-3
    assert e.tokens == whole.tokens
    assert e.offsets == whole.offsets


def test_all_windows_are_explained_for_the_class_of_the_whole():
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    good, bad = "A wonderful, warm and funny film. " * 25, "Dull, tedious and far too long. " * 12
    cut, whole = cut_of(explainer, good + bad, 128)
    said = {e.prediction_names[0] for s in cut.samples(whole) for e in explainer.batch([s], "random", None, {})}
    assert said == {"negative", "positive"}  # the windows disagree
    e = windows(explainer, good + bad)
    assert e.prediction_names == e.target_names == ("positive",)
    assert int(e.logits.argmax()) == int(e.target[0]) == int(e.prediction[0]) == 1
    asked = windows(explainer, good + bad, target="positive")
    assert torch.allclose(e.scores, asked.scores, atol=1e-6)
    assert sum(w.score for w in e.words[0] if w.text in ("Dull", "tedious")) < 0
    assert sum(w.score for w in e.words[0] if w.text in ("wonderful", "warm", "funny")) > 0
    against = windows(explainer, good + bad, target=whence.contrast(None, "negative"))
    assert against.target_names == ("positive rather than negative",)
    other = windows(explainer, good + bad, target="negative")
    assert torch.allclose(against.scores, e.scores - other.scores, atol=1e-5)


def test_nothing_longer_than_the_limit_reaches_the_model(monkeypatch):
    lengths = []
    forward = BERT.model.forward

    def watched(input_ids=None, **more):
        lengths.append(input_ids.shape[1])
        return forward(input_ids=input_ids, **more)

    explainer = whence.Explainer(BERT.model, processor=WORDS)
    monkeypatch.setattr(BERT.model, "forward", watched)
    windows(explainer, LONG * 3)
    assert lengths
    assert max(lengths) <= LIMIT


def test_the_other_text_of_a_pair_is_in_every_window():
    question, context = "is it good", LONG
    for pair in ((question, context), (context, question)):
        cut, whole = cut_of(BERT, pair)
        part = pair.index(question)
        for sample in cut.samples(whole):
            assert [s.part for s in sample.origins["text"].spans if s is not None].count(part) >= 3
            kinds = sample.tensors["token_type_ids"][0]
            assert kinds.tolist() == sorted(kinds.tolist())
            assert len(kinds) <= LIMIT
        e = windows(BERT, pair)
        assert [(w.start, w.end) for w in e.words[0] if w.part == 1 - part] == words(context)
        assert torch.allclose(e.scores.sum(1), e.ledger.sums[:, 0])


def test_it_says_that_it_was_made_from_windows(tmp_path):
    cut, _ = cut_of(BERT, LONG)
    count = len(cut.positions)
    said = rf"{len(cut.origin.tokens)} tokens, more than the 100 of a window: it was read in {count} windows"
    with pytest.warns(whence.WhenceWarning, match=said):
        e = windows(BERT, LONG)
    assert e.options["windows"] == count > 2
    assert e.options["length"] == LIMIT
    assert windows(BERT, LONG, stride=20).options["stride"] == 20
    e.save(tmp_path / "why.json")
    assert whence.load(tmp_path / "why.json") == e
    e.save(tmp_path / "why.html")
    assert f"windows={count}" in (tmp_path / "why.html").read_text(encoding="utf-8")


def test_what_happens_inside_is_laid_on_the_whole_text_too():
    e = windows(BERT, LONG, length=60, inside=True)
    tokens = len(e.tokens[0])
    assert e.branches.shape[-1] == tokens
    assert e.pairs.shape[-2:] == (tokens, tokens)
    cut, whole = cut_of(BERT, LONG, 60)
    each = [BERT.batch([s], "conservative-lrp", int(e.target[0]), {"inside": True})[0] for s in cut.samples(whole)]
    total = sum(float(share) * x.pairs.sum() for share, x in zip(cut.weights, each, strict=True))
    assert float(e.pairs.sum()) == pytest.approx(float(total))
    assert e.pairs[0, 0, 1, tokens - 2] == 0  # never in one window


def test_a_value_in_place_of_a_class():
    explainer = whence.Explainer(small(BertForSequenceClassification, bert_config(len(WORDS), num_labels=1)), WORDS)
    e = windows(explainer, LONG)
    assert e.prediction_names == (f"{float(e.logits):.4g}",)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said", "options"),
    [
        (whence.InputError, "from 1 to 98", {"stride": 99}),
        (whence.InputError, "from 1 to 98", {"stride": 0}),
        (whence.InputError, "from 1 to 100, the tokens that the model takes, not 101", {"length": 101}),
        (whence.InputError, "no room", {"length": 2}),
        (whence.TargetError, "not for Every", {"target": whence.every([0, 1])}),
        (whence.TargetError, "not for At", {"target": whence.At(3)}),
        (whence.TargetError, "goood", {"target": "goood"}),
        (whence.TargetError, "not for float", {"target": 1.5}),
        (whence.TargetError, "not for list", {"target": [1]}),
        (whence.InputError, "The stride is a whole number from 1 to 98, .* not 10.0", {"stride": 10.0}),
        (whence.InputError, "length of a window is a whole number .* not 50.0", {"length": 50.0}),
        (whence.InputError, "batch_size must be a whole number, at least 1, not 0", {"batch_size": 0}),
        (whence.InputError, "batch_size must be a whole number, at least 1, not -1", {"batch_size": -1}),
        (whence.MethodError, "'span' of the method 'flash-trace' names", {"method": "flash-trace", "span": (3, 5)}),
        (whence.MethodError, "'token' of the method 'gen", {"method": "generic-attention", "token": 0}),
    ],
)
def test_wrong_calls_are_sentences(error, said, options):
    with pytest.raises(error, match=said):
        windows(BERT, LONG, **options)


def test_positions_can_be_named_in_a_text_that_fits():
    text = "a gripping film, and a wonderful cast"
    assert windows(BERT, text, "generic-attention", token=2) == BERT(text, "generic-attention", token=2)
    with pytest.raises(whence.InputError, match="batch_size"):
        windows(BERT, text, batch_size=0)


def test_models_that_do_not_answer_once_for_a_text_are_refused():
    masked = whence.Explainer(bert(WORDS, BertForMaskedLM), WORDS)
    with pytest.raises(whence.ModelError, match="at a position"):
        windows(masked, LONG + " [MASK]")
    speaker = whence.Explainer(gpt2(BYTES, GPT2LMHeadModel), BYTES)
    with pytest.raises(whence.ModelError, match="comes next"):
        windows(speaker, LONG)
    seer = whence.Explainer(tiny.vit(), processor=lambda picture: torch.zeros(3, 12, 12), modality="image")
    with pytest.raises(whence.InputError, match="reads image"):
        windows(seer, LONG)


def test_no_warning_where_the_text_fits():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windows(BERT, "a film")
