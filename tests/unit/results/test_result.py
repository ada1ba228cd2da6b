"""A result as a user handles it: cut, compared, ranked, rescaled, added and subtracted."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import tensor

import whence
from tests.support import tiny
from whence.explanations.view_builder import view
from whence.results.input_origin import ImageOrigin, Span, TextOrigin
from whence.results.result import Patch, Position
from whence.results.word_segmentation import Word
from whence.tracing.coverage import Coverage

TEXT = "bad film"


def made(scores, special=None, streams=None, **more):
    """An explanation by hand."""
    scores = tensor(scores, dtype=torch.float64)
    values = {
        "special": torch.zeros(scores.shape, dtype=torch.bool) if special is None else tensor(special),
        "method": "by-hand", "options": {}, "logits": torch.zeros(len(scores), 3), "coverage": Coverage(),
        "value": torch.zeros(len(scores)),
        "prediction": torch.zeros(len(scores), dtype=torch.long), "target": torch.zeros(len(scores), dtype=torch.long),
        "streams": {"input": scores} if streams is None else streams, "target_names": ("zero",) * len(scores),
    }  # fmt: skip
    return whence.Explanation(scores=scores, **(values | more))


def text_origin(text=TEXT):
    """[CLS], b, ##ad, film, [SEP]."""
    spans = (None, Span(0, 1), Span(1, 3), Span(4, 8), None)
    return {"text": TextOrigin((text,), ("[CLS]", "b", "##ad", "film", "[SEP]"), spans)}


@pytest.fixture(scope="module")
def batch():
    """Three texts of different length, with everything that an explanation can hold."""
    e = whence.explain(tiny.bert(), {k: v for k, v in tiny.padded([7, 4, 2]).items() if k != "position_ids"})
    origins = tuple({"text": TextOrigin((f"text {i}",), ("t",) * 7, (Span(0, 4),) * 7)} for i in range(3))
    return replace(e, origins=origins, heads=torch.rand(3, 2, 4), layers=torch.rand(3, 2, 7))


@pytest.fixture(scope="module")
def picture():
    return whence.explain(tiny.vit(), {"pixel_values": tiny.pixels()})


# -- a batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("i", [0, 1, 2, -1, -3])
def test_one_of_a_batch_holds_its_own_of_everything(batch, i):
    one, at = batch[i], i % 3
    assert len(one) == 1
    for name in ("scores", "special", "logits", "prediction", "target", "layers", "heads"):
        assert torch.equal(getattr(one, name)[0], getattr(batch, name)[at]), name
    assert torch.equal(one.streams["text"], one.scores)
    assert one.origins == (batch.origins[at],)
    assert one.target_names == (batch.target_names[at],)
    assert one.prediction_names == (batch.prediction_names[at],)
    assert torch.equal(one.ledger.sums[0], batch.ledger.sums[at])
    assert torch.equal(one.ledger.total[0], batch.ledger.total[at])


@pytest.mark.parametrize(("cut", "places"), [
    (slice(0, 2), [0, 1]), (slice(1, None), [1, 2]), (slice(None, None, -1), [2, 1, 0]), (slice(-1, None), [2]),
    (slice(3, 9), []),
])  # fmt: skip
def test_a_slice_of_a_batch(batch, cut, places):
    some = batch[cut]
    assert len(some) == len(places)
    assert [o["text"].texts[0] for o in some.origins] == [f"text {i}" for i in places]
    assert torch.equal(some.scores, batch.scores[places])
    assert torch.equal(some.ledger.sums, batch.ledger.sums[places])


@pytest.mark.parametrize("i", [3, -4])
def test_there_is_no_more_than_the_batch(batch, i):
    with pytest.raises(IndexError):
        batch[i]


def test_iterating_gives_each_sample(batch):
    each = list(batch)
    assert len(batch) == len(each) == 3
    assert all(one == batch[i] for i, one in enumerate(each))
    assert whence.Explanation.join(each).scores.equal(batch.scores)


def test_an_index_of_numpy_is_an_index(batch):
    assert batch[np.int64(1)] == batch[1]


# -- equality --------------------------------------------------------------------------------------------------------


def test_a_true_copy_is_equal(batch, picture):
    for e in (batch, picture):
        twin = copy.deepcopy(e)
        assert twin == e
        assert twin.scores is not e.scores
    assert batch != picture
    assert batch != "a string"


def other(value):
    """Something of the same kind that is not the same."""
    if value is None:
        return tensor([1])
    if isinstance(value, torch.Tensor):
        changed = value.clone()
        changed.view(-1)[-1] = ~changed.view(-1)[-1] if value.dtype == torch.bool else changed.view(-1)[-1] + 1
        return changed
    if isinstance(value, dict):
        return {**value, 99: "another"}
    if isinstance(value, Coverage):
        return Coverage()
    if isinstance(value, tuple):
        return (*value[:-1], "another")
    return value + type(value)(1) if isinstance(value, str | int) else None


@pytest.mark.parametrize("name", [f.name for f in fields(whence.Explanation)])
def test_a_difference_in_any_field_is_a_difference(batch, picture, name):
    e = picture if name in ("grid", "patch_start", "image_size") else batch
    assert replace(e, **{name: other(getattr(e, name))}) != e


@pytest.mark.parametrize(("a", "b", "same"), [
    (torch.nan, torch.nan, True), (torch.nan, 0.0, False), (torch.inf, torch.inf, True), (torch.inf, -torch.inf, False),
    (torch.inf, torch.finfo(torch.float64).max, False),
])  # fmt: skip
def test_equality_knows_numbers_that_are_none(a, b, same):
    assert (made([[1.0, a]]) == made([[1.0, b]])) is same


def test_precision_is_part_of_equality(batch):
    assert replace(batch, scores=batch.scores.double()) != batch


# -- the strongest ---------------------------------------------------------------------------------------------------


def test_top_words_are_ordered_by_magnitude_and_sum_their_tokens():
    e = made([[9.0, -2.0, -1.0, 2.5, 9.0]], origins=(text_origin(),))
    e = replace(e, streams={"text": e.scores})
    assert e.top(2) == [[Word("bad", -3.0, 0, 3), Word("film", 2.5, 4, 8)]]
    assert e.top(1) == [[Word("bad", -3.0, 0, 3)]]
    assert e.top(50) == e.top(2)
    assert "'bad' -3" in repr(e)


def test_top_patches_say_where_they_lie():
    scores = [[9.0, 0.1, -0.8, 0.3, 0.2]]  # [CLS] and 2 x 2 patches
    e = made(scores, grid=(2, 2), patch_start=1, image_size=(8, 8))
    e = replace(e, streams={"image": e.scores})
    assert e.top(2) == [[Patch(0, 1, -0.8, None), Patch(1, 0, 0.3, None)]]
    origin = ImageOrigin(np.zeros((20, 40, 3), np.uint8), (8 / 20, 8 / 40), (0.0, 0.0), (8, 8))
    placed = replace(e, origins=({"image": origin},))
    assert placed.top(2)[0] == [Patch(0, 1, -0.8, (20, 0, 40, 10)), Patch(1, 0, 0.3, (0, 10, 20, 20))]


def test_top_positions_leave_out_special_ones():
    e = made([[9.0, -2.0, 1.0, 0.0], [1.0, 1.0, 2.0, 0.0]], special=[[True, False, False, False], [False] * 3 + [True]])
    assert e.top(2) == [[Position(1, -2.0), Position(2, 1.0)], [Position(2, 2.0), Position(0, 1.0)]]
    assert [len(found) for found in e.top(9)] == [3, 3]


def test_top_of_models_agrees_with_their_scores(batch, picture):
    patches = picture.patches.flatten(1)
    for i, found in enumerate(picture.top(3)):
        assert sorted((abs(p.score) for p in found), reverse=True) == patches[i].abs().topk(3).values.tolist()
        assert all(float(picture.patches[i, p.row, p.column]) == p.score for p in found)


def test_words_and_patches_are_refused_where_there_are_none(batch, picture):
    for look in (lambda: picture.words, lambda: picture.tokens, lambda: picture.offsets, lambda: batch.patches):
        with pytest.raises(whence.WhenceError, match="This explanation"):
            look()


# -- scales ----------------------------------------------------------------------------------------------------------

PADDED = ([[4.0, -2.0, 1.0, 0.0]], [[True, False, False, True]])  # [CLS], two of the user's, padding


@pytest.mark.parametrize(("by", "expected"), [
    ("max", [1.0, -0.5, 0.25, 0.0]), ("sum", [4 / 7, -2 / 7, 1 / 7, 0.0]),
    ("l2", [4 / 21**0.5, -2 / 21**0.5, 1 / 21**0.5, 0.0]), ("minmax", [0.0, 0.0, 1.0, 0.0]),
])  # fmt: skip
def test_normalised_by_hand(by, expected):
    e = made(*PADDED).normalised(by)
    assert torch.allclose(e.scores, tensor([expected], dtype=torch.float64))
    assert torch.equal(e.streams["input"], e.scores)
    assert e.ledger is None


@pytest.mark.parametrize("by", ["max", "sum", "l2", "minmax"])
@pytest.mark.parametrize("scores", [[[0.0, 0.0]], [[3.0, 3.0]], [[-1e-300, 1e-300]], [[5.0, 0.0], [0.0, 0.0]]])
def test_normalised_stays_finite(by, scores):
    e = made(scores).normalised(by)
    assert e.scores.isfinite().all()
    assert float(e.scores.abs().max()) <= 1
    zero = tensor(scores, dtype=torch.float64).abs().sum(1) == 0
    assert (e.scores[zero] == 0).all()


@pytest.mark.parametrize("by", ["max", "sum", "l2", "minmax"])
def test_normalised_leaves_padding_at_zero(batch, by):
    e = batch.normalised(by)
    assert (e.scores[1, 4:] == 0).all()
    assert (e.scores[2, 2:] == 0).all()
    assert [one == e[i] for i, one in enumerate(one.normalised(by) for one in batch)] == [True] * 3


@pytest.mark.parametrize("by", ["max", "sum", "l2", "minmax"])
def test_streams_keep_one_scale_and_their_padding(by):
    """A text of two words, [CLS] and padding, then two patches, as in ViLT: streams are parts of the scores."""
    e = made([[9.0, 2.0, 6.0, 0.0, 4.0, -1.0]], special=[[True, False, False, True, False, False]])
    e = replace(e, streams={"text": e.scores[:, :4], "image": e.scores[:, 4:]}).normalised(by)
    assert torch.allclose(torch.cat([e.streams["text"], e.streams["image"]], 1), e.scores)
    assert float(e.streams["text"][0, 3]) == 0


def test_minmax_of_a_second_stream_uses_no_mask_of_the_first():
    """Two streams that happen to be as long as each other, as in CLIP: [CLS] of the one is no patch of the other."""
    image = tensor([[5.0, 7.0, 6.0]], dtype=torch.float64)
    e = made([[1.0, 2.0, 3.0]], special=[[True, False, False]])
    e = replace(e, streams={"text": e.scores, "image": image}).normalised("minmax")
    assert float(e.streams["image"][0, 0]) != 0


def test_unknown_scale_is_refused():
    with pytest.raises(whence.InputError, match="max, sum, l2 or minmax, not by 'mean'"):
        made(*PADDED).normalised("mean")


# -- sums and differences --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "expected"), [
    (lambda a, b: a - b, [0.0, -3.0, 1.0]), (lambda a, b: a + b, [2.0, -1.0, 1.0]),
    (lambda a, b: -a, [-1.0, 2.0, -1.0]), (lambda a, b: a / 2, [0.5, -1.0, 0.5]),
    (lambda a, b: 2 * a, [2.0, -4.0, 2.0]), (lambda a, b: a * 2, [2.0, -4.0, 2.0]),
])  # fmt: skip
def test_arithmetic_by_hand(how, expected):
    a, b = made([[1.0, -2.0, 1.0]]), made([[1.0, 1.0, 0.0]])
    found = how(a, b)
    assert found.scores.tolist() == found.streams["input"].tolist() == [expected]
    assert a.scores.tolist() == [[1.0, -2.0, 1.0]]  # left alone
    assert found.ledger is found.layers is found.heads is None


def test_a_difference_of_targets_is_the_contrast_of_targets():
    model, inputs = tiny.bert().double(), {"input_ids": tiny.ids()}
    method = "gradient-x-input"
    one, two = (whence.explain(model, inputs, method, target=t) for t in (0, 1))
    both = whence.explain(model, inputs, method, target=lambda o: o.logits[:, 0] - o.logits[:, 1])
    assert torch.allclose((one - two).scores, both.scores, atol=1e-12)
    assert (one - two).target is None
    assert (one - two).target_names == ("LABEL_0 - LABEL_1",) * 3
    assert (one - one).scores.abs().max() == 0


@pytest.mark.parametrize("how", [lambda a, b: a - b, lambda a, b: a + b, lambda a, b: a.agreement(b)])
def test_different_inputs_are_refused(how):
    a = made([[1.0] * 5], origins=(text_origin(),))
    longer = made([[1.0] * 6])
    with pytest.raises(whence.InputError, match="different positions"):
        how(a, longer)
    with pytest.raises(whence.InputError, match="different inputs"):
        how(a, made([[1.0] * 5], origins=(text_origin("mad film"),)))
    with pytest.raises(whence.InputError, match="different positions"):
        how(a, made([[1.0] * 5], streams={"image": torch.ones(1, 5)}))


@pytest.mark.parametrize("how", [lambda e: e + 1, lambda e: e - 1])
def test_a_number_is_not_added_to_padding(how):
    """Padding scores exactly 0, whatever is done to the rest."""
    try:
        found = how(made(*PADDED))
    except (TypeError, whence.InputError):
        return
    assert float(found.scores[0, 3]) == 0


# -- agreement -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [
    ([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]), ([1.0, 1.0, 2.0, 0.5], [3.0, 3.0, 3.0, -7.0]),
    ([0.3, -0.2, 0.0, 9.0], [-0.3, 0.2, 0.0, -9.0]), ([5.0, 5.0, 1.0, 1.0], [1.0, 5.0, 5.0, 1.0]),
])  # fmt: skip
def test_agreement_is_that_of_the_textbooks(a, b):
    found = made([a]).agreement(made([b]), k=2)
    assert float(found["pearson"]) == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-6)
    assert float(found["spearman"]) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-6)
    assert float(found["cosine"]) == pytest.approx(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)


def test_agreement_of_the_strongest():
    a, b = made([[4.0, -3.0, 2.0, 1.0]]), made([[1.0, 5.0, 0.0, -4.0]])
    assert [float(a.agreement(b, k)["top"]) for k in (1, 2, 4, 9)] == [0.0, 0.5, 1.0, 1.0]
    assert float(a.agreement(a)["top"]) == 1


def test_agreement_does_not_count_padding():
    short = made([[1.0, 2.0, 4.0]]).agreement(made([[2.0, 1.0, 3.0]]))
    mask = [[False, False, False, True, True]]
    long = made([[1.0, 2.0, 4.0, 0.0, 0.0]], mask).agreement(made([[2.0, 1.0, 3.0, 0.0, 0.0]], mask))
    assert {k: v.tolist() for k, v in short.items()} == {k: v.tolist() for k, v in long.items()}


def test_agreement_with_nothing_is_none():
    found = made([[0.0, 0.0]]).agreement(made([[1.0, 2.0]]))
    assert [float(found[k]) for k in ("pearson", "spearman", "cosine")] == [0.0, 0.0, 0.0]


# -- probabilities ---------------------------------------------------------------------------------------------------


def test_probabilities_follow_the_task():
    logits = tensor([[0.0, float(np.log(3)), 0.0]])
    assert torch.allclose(made([[1.0]], logits=logits, task="single-label").probabilities, tensor([[0.2, 0.6, 0.2]]))
    assert torch.allclose(made([[1.0]], logits=logits, task="multi-label").probabilities, tensor([[0.5, 0.75, 0.5]]))
    assert made([[1.0]], logits=logits[:, :1], task="regression").probabilities is None
    assert made([[1.0]], logits=logits[0, :1], prediction=None).probabilities is None


@pytest.mark.parametrize(("problem", "labels", "sums"), [
    ("single_label_classification", 3, True), ("multi_label_classification", 3, False), ("regression", 2, None),
    (None, 1, None), (None, 3, True),
])  # fmt: skip
def test_probabilities_of_models(problem, labels, sums):
    model = tiny.bert(problem_type=problem)
    model.classifier = torch.nn.Linear(32, labels)
    found = whence.explain(model, {"input_ids": tiny.ids()}).probabilities
    if sums is None:
        assert found is None
    else:
        assert torch.allclose(found.sum(1), torch.ones(3)) is sums
        assert ((found > 0) & (found < 1)).all()


def test_the_value_that_is_shown_is_that_of_the_target():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids(1)}
    logits = model(**inputs).logits[0].tolist()
    for target, value in [
        (1, logits[1]),
        (lambda o: o.logits[:, 2], logits[2]),
        (lambda o: 5 * o.logits[:, 2], 5 * logits[2]),
    ]:
        assert view(whence.explain(model, inputs, target=target)).value == pytest.approx(value, abs=1e-5)
    one, two = (whence.explain(model, inputs, target=t) for t in (1, 2))
    assert view(one - two).value == pytest.approx(logits[1] - logits[2], abs=1e-5)


@pytest.mark.parametrize(("plain", "note"), [
    ({"tanh": 3}, "Coverage: 7 of 10 operations have a rule; tanh uses its plain gradient."),
    ({"tanh": 2, "cos": 1}, "Coverage: 7 of 10 operations have a rule; tanh, cos use their plain gradient."),
    (Counter("abcdef"), "Coverage: 4 of 10 operations have a rule; a, b, c, d, 2 more use their plain gradient."),
])  # fmt: skip
def test_operations_without_a_rule_are_noted(plain, note):
    coverage = Coverage({"linear": 10 - sum(plain.values()), **plain}, {"linear": "epsilon"}, plain)
    assert view(made([[1.0]], coverage=coverage)).notes == (note,)


def test_the_ledger_that_is_shown_is_in_shares_of_the_target():
    e = whence.explain(tiny.bert(), {"input_ids": tiny.ids(1)}, target=1)
    shown = view(e)
    total = float(e.ledger.total)
    assert shown.block_relevance == pytest.approx([float(s) / total for s in e.ledger.sums[0]])
    assert [share * total for _, share in shown.absorbed] == pytest.approx([x[3] for x in e.ledger.largest(5)])
