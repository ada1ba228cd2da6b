"""What the benchmarks keep, compare and write; the large models are not run here."""

import itertools
import json

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from tools.benchmarks import costs, limits, measure, report, stamp
from tools.benchmarks.measurements import Measurements
from tools.benchmarks.models import MODELS, plain

TODAY = {"date": "2026-02-03", "commit": "abc1234"}


@pytest.fixture(autouse=True)
def _today(monkeypatch):
    monkeypatch.setattr(stamp, "current", lambda: TODAY)


def test_a_measurement_is_kept_and_found_again(tmp_path):
    made = Measurements("costs", tmp_path)
    made.add("bert/1/lrp", {"value": 2.0})
    again = Measurements("costs", tmp_path)
    assert "bert/1/lrp" in again
    assert "bert/8/lrp" not in again
    assert again.rows["bert/1/lrp"] == {"value": 2.0, **TODAY}


@pytest.mark.parametrize("other", [{"date": "2026-02-02"}, {"commit": "abc1234-dirty-012345"}, {}])
def test_a_measurement_of_another_day_or_commit_is_made_anew(tmp_path, other):
    old = {"value": 2.0} | ({**TODAY, **other} if other else {})
    (tmp_path / "costs.json").write_text(json.dumps({"old": old}))
    made = Measurements("costs", tmp_path)
    made.add("new", {})
    assert "old" not in made
    assert "new" in made
    made.drop_outdated()
    assert list(Measurements("costs", tmp_path).rows) == ["new"]


def test_dates_and_commits_are_told():
    rows = [TODAY, TODAY, TODAY | {"commit": "fff"}]
    assert stamp.described(rows) == "Measured on 2026-02-03 at commit `abc1234`, 2026-02-03 at commit `fff`."
    assert stamp.described([]) == "Not measured yet."


def test_a_ratio_is_to_the_baseline_before_and_after(monkeypatch):
    """A machine that becomes slower with every call: 1, 4, 2, 8, 3 seconds."""
    times = iter([1.0, 4.0, 2.0, 8.0, 3.0])
    monkeypatch.setattr(measure, "timed", lambda run: next(times))
    found = measure.ratio(print, print, 2)
    assert (found.low, found.high) == (pytest.approx(8 / 3), pytest.approx(16 / 5))
    assert found.seconds == 6


def test_memory_is_what_a_call_grows_by():
    grown = measure.peak_memory(lambda: bytearray(b"1" * 50_000_000))
    assert grown != grown or 40 < grown < 200  # NaN where the system cannot say


def test_methods_that_run_the_model_often_are_measured_on_the_tiny_model():
    fits = {(m, name, b) for m, name, b in itertools.product(
        ("conservative-lrp", "integrated-gradients", "lime"), MODELS, (1, 8)) if costs.fits(m, name, b)}  # fmt: skip
    assert {key[1:] for key in fits if key[0] == "conservative-lrp"} == {
        ("tiny", 1), ("vit", 1), ("bert", 1), ("bert", 8), ("llama", 1)}  # fmt: skip
    assert {key[1:] for key in fits if key[0] == "integrated-gradients"} == {("tiny", 1), ("vit", 1), ("bert", 1)}
    assert {key[1:] for key in fits if key[0] == "lime"} == {("tiny", 1)}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return BertForSequenceClassification(BertConfig(vocab_size=50, **sizes)).eval().requires_grad_(False)


@pytest.fixture
def inputs():
    return {"input_ids": torch.arange(5)[None]}


def test_a_cell_has_the_first_explanation_its_capture_and_replays(model, inputs):
    row = costs.cell(model, inputs, "conservative-lrp", plain(model, inputs), 3)
    assert row["captured"]["value"] > row["first"]["value"] > row["warm"]["value"] > 0
    assert {"memory", "warm_memory", "constants"} <= row.keys()
    assert "refusal" not in row


def test_a_cell_says_why_there_is_no_replay(model, inputs):
    assert "warm" not in (row := costs.cell(model, inputs, "occlusion", plain(model, inputs), 1))
    assert row["refusal"]
    assert "pictures" in costs.cell(model, inputs, "dave", plain(model, inputs), 1)["error"]


def ratio(value):
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "seconds": 0.5}


def test_the_page_has_limits_and_marks_what_is_above(tmp_path):
    made = Measurements("costs", tmp_path)
    made.add("bert/1/plain", {"seconds": 0.3, "memory": 60.0, "step": 1.5, "threads": 2})
    row = {"first": ratio(1.2), "warm": ratio(0.97), "captured": ratio(3.0), "memory": 90.0, "warm_memory": 60.0}
    made.add("bert/1/attn-lrp", row | {"base": 60.0, "repeats": 7})
    made.add("bert/1/dave", {"error": "It explains pictures", "base": 60.0})
    page = report.write(tmp_path, tmp_path).read_text()
    name = report.NAMES["bert"]
    assert f"| {name} | `attn-lrp` | 1.6 | 1.20 (1.10 to 1.30) | 0.95 | **0.97 (0.87 to 1.07)** |" in page
    assert "| `attn-lrp` | 1.05 | **1.20 (1.10 to 1.30)** | 0.97 (0.87 to 1.07) | 3.0 | 1.50 | 1.00 | 2 | 2 |" in page
    assert "| `dave` |  | does not apply |" in page
    assert "Measured on 2026-02-03 at commit `abc1234`." in page


def test_every_limit_is_of_a_cell_that_is_measured():
    for one in limits.LIMITS:
        assert all(costs.fits(m, name, 1) for m, name in itertools.product(one.methods, one.models))
