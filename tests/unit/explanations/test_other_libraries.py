"""Explanations as arrays, plain values, data frames and pickles: nothing is lost, and every place is right."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

import whence
from tests.support import tiny
from whence.errors import InputError, MissingError
from whence.explanations.explanation import Explanations
from whence.models import MODELS
from whence.results.input_origin import AudioOrigin, SeriesOrigin, Span, TextOrigin
from whence.results.rows import to_array
from whence.tracing.coverage import Coverage

TEXT = "A warm, funny café film 👍, though far too long: $5."


@pytest.fixture(scope="module")
def sentiment():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")


@pytest.fixture(scope="module")
def text(sentiment):
    return sentiment(TEXT)


@pytest.fixture(scope="module")
def image():
    return whence.Explainer.from_pretrained(MODELS / "digits")(MODELS / "digits" / "examples" / "3-6.png")


def made(scores, stream="input", origin=None, **more):
    """An explanation by hand."""
    scores = torch.as_tensor(scores)
    count = len(scores)
    values = {
        "special": torch.zeros(scores.shape, dtype=torch.bool), "method": "by-hand", "options": {},
        "logits": torch.zeros(count, 3), "coverage": Coverage(), "value": torch.zeros(count),
        "prediction": torch.zeros(count, dtype=torch.long), "target": torch.zeros(count, dtype=torch.long),
        "streams": {stream: scores}, "target_names": ("zero",) * count,
        "origins": () if origin is None else ({stream: origin},) * count,
    }  # fmt: skip
    return whence.Explanation(scores=scores, **(values | more))


# -- arrays ----------------------------------------------------------------------------------------------------------


def test_an_array_is_the_scores_of_the_main_stream(text, image):
    for e in (text, image):
        assert np.asarray(e).shape == (1, e.scores.shape[1])
        assert np.array_equal(np.asarray(e), e.scores.numpy())


def test_an_array_takes_the_dtype_and_copy_of_numpy(text):
    assert np.asarray(text, dtype=np.float64).dtype == np.float64
    assert np.asarray(text, dtype="float16").dtype == np.float16
    assert np.shares_memory(np.asarray(text), text.scores.numpy())
    copied = np.array(text)
    assert not np.shares_memory(copied, text.scores.numpy())
    assert np.array_equal(copied, text.scores.numpy())


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="copy=False is of numpy 2's protocol")
def test_no_copy_is_made_where_none_is_allowed(text):
    assert np.shares_memory(np.array(text, copy=False), text.scores.numpy())
    with pytest.raises(ValueError, match="only by a copy"):
        np.array(text, dtype=np.float64, copy=False)
    with pytest.raises(ValueError, match="only by a copy"):
        np.array(made(torch.ones(1, 2, dtype=torch.bfloat16)), copy=False)
    with pytest.raises(ValueError, match="only by a copy"):
        np.array(Explanations([text]), copy=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_scores_of_every_type_become_an_array(dtype):
    e = made(torch.tensor([[0.5, -1.25, 3.0]], dtype=dtype))
    array = np.asarray(e)
    assert array.tolist() == [[0.5, -1.25, 3.0]]
    assert array.dtype == (np.float32 if dtype == torch.bfloat16 else e.scores.numpy().dtype)


def test_scores_that_require_gradients_become_an_array():
    assert to_array(torch.ones(1, 2, requires_grad=True)).tolist() == [[1.0, 1.0]]


def test_several_explanations_are_one_array_padded_with_zeros(sentiment):
    several = Explanations(sentiment(["bad", "a good, long film"]))
    array = np.asarray(several)
    short, long = (e.scores.shape[1] for e in several)
    assert array.shape == (2, long)
    assert np.array_equal(array[0, :short], several[0].scores[0].numpy())
    assert not array[0, short:].any()
    assert np.array_equal(array[1], several[1].scores[0].numpy())
    assert np.asarray(several, dtype=np.float64).dtype == np.float64


def test_a_number_of_numpy_scales_an_explanation(text):
    assert np.float64(2) * text == 2 * text
    assert isinstance(np.float64(2) * text, whence.Explanation)
    assert np.array_equal(np.abs(text), np.abs(text.scores.numpy()))


# -- data frames -----------------------------------------------------------------------------------------------------


def test_rows_of_positions_add_up_to_the_scores(text, image):
    for e in (text, image):
        frame = e.to_pandas()
        assert len(frame) == e.scores.shape[1]
        assert np.array_equal(frame["score"].to_numpy(np.float32), e.scores[0].numpy())
        assert frame["special"].tolist() == e.special[0].tolist()


def test_offsets_cut_the_words_from_the_users_own_string(text):
    for by in ("position", "word"):
        frame = text.to_pandas(by=by).dropna(subset=["start"])
        assert [TEXT[a:b] for a, b in zip(frame.start, frame.end, strict=True)] == frame.text.tolist()
    words = text.to_pandas(by="word")
    assert words.text.tolist() == [word.text for word in text.words[0]]
    assert words.score.tolist() == [word.score for word in text.words[0]]


def test_a_row_of_a_token_has_the_token_and_special_ones_have_no_place(text):
    frame = text.to_pandas()
    assert frame.token.tolist() == text.tokens[0]
    assert frame.start.isna().tolist() == frame.special.tolist()
    assert str(frame.start.dtype) == "Int64"


def test_rows_of_patches_have_their_place_in_the_image(image):
    frame = image.to_pandas()
    patches = frame[~frame.special]
    height, width = image.grid
    assert len(patches) == height * width
    assert patches.pivot(index="row", columns="column", values="score").to_numpy() == pytest.approx(
        image.patches[0].numpy()
    )
    best = image.top(1)[0][0]
    row = patches[(patches.row == best.row) & (patches.column == best.column)].iloc[0]
    assert (row.left, row.top, row.right, row.bottom) == best.box


def test_several_samples_and_streams_are_numbered_and_named(sentiment):
    several = Explanations(sentiment(["bad film", "a good film"]))
    frame = several.to_pandas()
    sums = frame.groupby("sample")["score"].sum()
    assert sums.to_numpy() == pytest.approx([float(e.scores.sum()) for e in several], abs=1e-5)
    assert frame.groupby("sample")["target"].first().tolist() == [e.target_names[0] for e in several]
    assert set(frame.method) == {"conservative-lrp"}
    second = torch.tensor([[4.0, 5.0]])
    two = made([[1.0, 2.0, 3.0]])
    streams = replace(two, streams={**two.streams, "queries": second}).to_pandas()
    assert streams.groupby("stream")["score"].sum().to_dict() == {"input": 6.0, "queries": 9.0}


def test_padding_behind_a_text_is_special():
    spans = (None, Span(0, 3), None)
    origin = TextOrigin(("bad",), ("[CLS]", "bad", "[SEP]"), spans)
    padded = made([[0.5, 1.0, 0.25, 0.0]], "text", origin).to_pandas()
    assert padded.special.tolist() == [True, False, True, True]
    assert padded.score.tolist() == [0.5, 1.0, 0.25, 0.0]
    assert pandas.isna(padded.token.iloc[3])


def test_a_pair_says_which_string_a_word_is_of():
    texts = ("Is it good?", "It is.")
    spans = (None, Span(0, 2), Span(3, 5, 0), None, Span(0, 2, 1), Span(3, 5, 1))
    origin = TextOrigin(texts, ("[CLS]", "is", "it", "[SEP]", "it", "is"), spans)
    frame = made([[0.0, 1, 2, 3, 4, 5]], "text", origin).to_pandas(by="word").dropna(subset=["score"])
    cut = [texts[p][a:b] for p, a, b in zip(frame.part, frame.start, frame.end, strict=True)]
    assert cut == frame.text.tolist() == ["Is", "it", "It", "is"]


def test_audio_has_seconds_and_a_series_steps():
    audio = made(torch.rand(1, 10), "audio", AudioOrigin(np.zeros(16000, np.float32), 16000, 1.0)).to_pandas()
    assert audio.start_second.to_numpy() == pytest.approx(np.arange(10) / 10)
    assert audio.end_second.to_numpy() == pytest.approx(np.arange(1, 11) / 10)
    series = made(torch.rand(1, 6), "series", SeriesOrigin(np.zeros((12, 1)), ("load",))).to_pandas()
    assert series.start_step.tolist() == [0, 2, 4, 6, 8, 10]
    spectrogram = made(torch.rand(1, 8), "audio", AudioOrigin(np.zeros(4, np.float32), 4, 1.0), grid=(2, 4)).to_pandas()
    assert spectrogram.row.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert spectrogram.start_second.tolist() == [0, 0.25, 0.5, 0.75] * 2


def test_columns_that_no_row_has_are_left_out():
    assert list(made([[1.0, 2.0]]).to_pandas()) == [
        "sample", "method", "target", "stream", "position", "special", "score",
    ]  # fmt: skip


def test_rows_of_something_else_are_refused(text):
    with pytest.raises(InputError, match="by position and by word, not by 'token'"):
        text.to_pandas(by="token")


def test_without_pandas_the_error_names_the_extra(text, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingError, match=r"pip install 'whence\[pandas\]'"):
        text.to_pandas()


# -- plain values ----------------------------------------------------------------------------------------------------


def test_plain_values_survive_json(text, image):
    for e in (text, image, made(torch.rand(2, 3, dtype=torch.float64))):
        plain = e.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_plain_values_say_what_was_explained(text):
    plain = text.to_dict()
    sample = plain["samples"][0]
    assert (plain["method"], plain["task"]) == ("conservative-lrp", "single-label")
    assert sample["target"] == sample["prediction"] == text.target_names[0]
    assert sample["target_index"] == int(text.target[0])
    assert sample["probability"] == pytest.approx(float(text.probabilities.max()))
    assert sample["value"] == pytest.approx(float(text.value[0]))
    stream = sample["streams"]["text"]
    assert stream["texts"] == [TEXT]
    assert [t["score"] for t in stream["tokens"]] == text.scores[0].tolist()
    assert [(w["text"], w["score"], w["start"], w["end"]) for w in stream["words"]] == [w[:4] for w in text.words[0]]
    assert sample["ledger"]["total"] == pytest.approx(float(text.ledger.total[0]))
    shares = (text.ledger.sums[0] / text.ledger.total[0]).tolist()
    assert sample["ledger"]["block_relevance"] == pytest.approx(shares)
    assert plain["coverage"]["plain"] == dict(text.coverage.plain)
    assert plain["coverage"]["share"] == text.coverage.share


def test_plain_values_of_an_image_have_the_patches_and_their_boxes(image):
    stream = image.to_dict()["samples"][0]["streams"]["image"]
    assert stream["grid"] == list(image.grid)
    assert (stream["height"], stream["width"]) == tuple(image.heatmap().shape[1:])
    patches = [p for p in stream["patches"] if "row" in p]
    assert [p["score"] for p in patches] == image.patches[0].flatten().tolist()
    box = image.top(1)[0][0]
    strongest = max(patches, key=lambda p: abs(p["score"]))
    assert tuple(strongest[side] for side in ("left", "top", "right", "bottom")) == box.box


def test_options_that_are_tensors_and_functions_become_plain():
    options = {"baseline": torch.tensor([1.0, 2.0]), "steps": 4, "norm": None, "of": len, "nested": {1: (True, "a")}}
    plain = made([[1.0]], options=options).to_dict()["options"]
    assert plain == {
        "baseline": [1.0, 2.0], "steps": 4, "norm": None, "of": str(len), "nested": {"1": [True, "a"]},
    }  # fmt: skip
    json.dumps(plain)


def test_a_regression_has_no_probability():
    e = whence.explain(tiny.bert(), {"input_ids": torch.tensor([[1, 2, 3]])}, target=lambda out: out.logits.sum(-1))
    sample = e.to_dict()["samples"][0]
    assert sample["target_index"] is None
    assert sample["target_probability"] is None
    json.dumps(e.to_dict())


def test_several_explanations_are_a_list_in_plain_values(text, image):
    plain = Explanations([text, image]).to_dict()
    assert plain == {"explanations": [text.to_dict(), image.to_dict()]}


# -- pickles and torch.load ------------------------------------------------------------------------------------------


def test_pickles_and_deep_copies_are_equal(text, image):
    for e in (text, image, Explanations([text, image])):
        assert pickle.loads(pickle.dumps(e)) == e
        assert copy.deepcopy(e) == e
    copied = copy.deepcopy(text)
    copied.scores[0, 0] += 1
    assert copied != text


def test_plain_values_and_scores_load_with_weights_only(text):
    """torch.load refuses classes by default; plain values and tensors it takes."""
    kept = {"scores": text.scores, "explanation": text.to_dict()}
    file = io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    found = torch.load(file)
    assert torch.equal(found["scores"], text.scores)
    assert found["explanation"] == text.to_dict()


def test_an_explanation_loads_only_without_weights_only(text):
    file = io.BytesIO()
    torch.save(text, file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Explanation"):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, weights_only=False) == text


# -- generated text --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generation():
    origin = TextOrigin(("to be or",), ("to", "be", "or"), (Span(0, 2), Span(3, 5), Span(6, 8)))
    scores = ([[2.0, 0.0, 0.0]], [[1.0, 3.0, 0.0]])
    from whence.explainer.generation import Generation

    found = [made(s, "text", origin, target_names=(name,)) for s, name in zip(scores, (" be", " or"), strict=True)]
    return Generation(found)


def test_generated_text_is_an_array_a_dictionary_and_a_data_frame(generation):
    assert np.asarray(generation).tolist() == generation.matrix.tolist() == [[2, 0, 0], [1, 3, 0]]
    plain = generation.to_dict()
    assert plain["tokens"] == [" be", " or"]
    assert len(plain["explanations"]) == 2
    json.dumps(plain)
    frame = generation.to_pandas()
    assert frame.groupby("target", sort=False)["score"].sum().to_dict() == {" be": 2, " or": 4}
    assert isinstance(generation[:1], Explanations)
