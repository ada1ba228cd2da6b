"""What drives a model over a dataset: words with intervals, mean maps, samples to look at."""

from __future__ import annotations

import math
import statistics

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import whence
from tests.support.html import read
from tests.support.jobs import DIGITS, SENTIMENT, rows, run
from whence.datasets import Dataset, Item
from whence.jobs.aggregation import Tally

scipy_stats = pytest.importorskip("scipy.stats")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def explainer():
    return whence.Explainer.from_pretrained(SENTIMENT, truncate=False)


@pytest.fixture(scope="module")
def reviews(explainer, tmp_path_factory):
    texts = [
        f"a {a} film and a {b} story"
        for a in ("gripping", "dull", "warm", "sad")
        for b in ("wonderful", "tedious", "long")
    ]
    texts += ["xylophonic brilliance " * 3, "wonderful but mislabelled"]
    items = [Item(str(i), t, "negative" if t.endswith("mislabelled") else None) for i, t in enumerate(texts)]
    source = Dataset("made", "", None, "", None, lambda: iter(items), len(items))
    return run(
        source, explainer, tmp_path_factory.mktemp("reviews") / "out", method=["conservative-lrp", "rollout"]
    ).directory


@pytest.fixture(scope="module")
def found(reviews):
    return whence.summarize(reviews, min_count=3)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=60))
def test_means_and_intervals_are_those_of_the_textbook(values):
    tally = Tally()
    for value in values:
        tally.add(value)
    assert tally.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    half = scipy_stats.t.ppf(0.975, len(values) - 1) * scipy_stats.sem(values)
    assert tally.half == pytest.approx(half, rel=5e-3, abs=1e-4)
    assert abs(tally.sure) <= abs(tally.mean) + 1e-12
    assert tally.sure * tally.mean >= 0


def test_one_alone_is_not_sure():
    tally = Tally()
    tally.add(5.0)
    assert math.isinf(tally.half)
    assert tally.sure == 0


def test_a_words_mean_is_over_the_samples_it_is_in(reviews, found):
    own = [row for row in rows(reviews) if row["method"] == "conservative-lrp" and row["target"] == "positive"]
    for entry in found.words:
        if (entry["method"], entry["class"]) == ("conservative-lrp", "positive"):
            sums = [
                sum(w["score"] for w in row["words"] if w["text"].lower() == entry["word"])
                for row in own
                if any(w["text"].lower() == entry["word"] for w in row["words"])
            ]
            assert entry["count"] == len(sums) >= 3
            assert entry["mean"] == pytest.approx(statistics.fmean(sums), rel=1e-5)
            assert entry["low"] <= entry["mean"] <= entry["high"]


def test_rare_words_do_not_lead(found):
    assert "xylophonic" not in {row["word"] for row in found.words}
    for group in found.groups():
        leading = found.top(group, 50)
        assert [row["sure"] for row in leading] == sorted((row["sure"] for row in leading), reverse=True)
        assert all(row["low"] > 0 for row in leading)
        assert all(row["high"] < 0 for row in found.top(group, 50, against=True))


def test_the_sure_and_wrong_are_named(found):
    wrong = [row for row in found.examples if row["kind"] == "wrong and sure" and row["method"] == "conservative-lrp"]
    assert [row["input"] for row in wrong] == ["wonderful but mislabelled"]


def test_the_strongest_and_the_weakest(reviews, found):
    own = sorted((r for r in rows(reviews) if r["method"] == "rollout"), key=lambda r: r["probability"])
    strongest = [r["id"] for r in found.examples if r["kind"] == "strongest" and r["method"] == "rollout"]
    weakest = [r["id"] for r in found.examples if r["kind"] == "weakest" and r["method"] == "rollout"]
    assert strongest == [r["id"] for r in reversed(own)][:5]
    assert weakest == [r["id"] for r in own[:5]]


def test_what_is_unlike_its_class_disagrees_most_with_its_words(reviews, found):
    unlike = [r for r in found.examples if r["kind"] == "unlike its class" and r["method"] == "conservative-lrp"]
    assert [r["measure"] for r in unlike] == sorted((r["measure"] for r in unlike), reverse=True)
    assert all(-1 - 1e-9 <= r["measure"] <= 1 + 1e-9 for r in unlike)


def test_tables_and_a_page_that_needs_nothing_else(reviews, found):
    folder = reviews / "summary"
    assert pq.read_table(folder / "words.parquet").to_pylist() == found.words
    assert pq.read_table(folder / "examples.parquet").num_rows == len(found.examples)
    page = (folder / "report.html").read_text(encoding="utf-8")
    tree = read(page)
    assert len(list(tree.all("table"))) >= 2
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "mislabelled" in page


def test_words_are_escaped(explainer, tmp_path):
    items = [Item(str(i), f"<script>alert({i})</script> <b>wonderful</b> film") for i in range(6)]
    source = Dataset("made", "", None, "", None, lambda: iter(items), 6)
    whence.summarize(run(source, explainer, tmp_path / "out").directory)
    page = (tmp_path / "out" / "summary" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b>wonderful" not in page


def test_mean_maps_of_pictures(tmp_path):
    job = whence.run(
        DIGITS / "examples", whence.Explainer.from_pretrained(DIGITS), "generic-attention", tmp_path / "out"
    )
    found = whence.summarize(job.directory)
    assert sum(row["count"] for row in found.maps) == job.samples
    first = found.maps[0]
    own = [r for r in rows(job.directory) if r["target"] == first["class"]]
    mean = np.mean([np.array(r["map"], np.float64) * r["scale"] for r in own], 0)
    np.testing.assert_allclose(first["map"], mean, rtol=1e-6)
    assert "The mean of" in (job.directory / "summary" / "report.html").read_text(encoding="utf-8")


def test_failures_are_counted_and_left_out(explainer, tmp_path):
    items = [Item("a", "a film"), Item("b", "long " * 3000)]
    source = Dataset("made", "", None, "", None, lambda: iter(items), 2)
    found = whence.summarize(run(source, explainer, tmp_path / "out").directory)
    assert (found.samples, found.failed) == (1, 1)


def test_no_run_is_a_sentence(tmp_path):
    with pytest.raises(whence.FileError, match=r"manifest\.json"):
        whence.summarize(tmp_path)
