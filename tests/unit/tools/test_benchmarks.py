"""What the benchmarks keep and compare; they themselves are not run here."""

import itertools

import pytest

from tools.benchmarks import costs, measure
from tools.benchmarks.kept import Kept


def test_a_measurement_is_kept_and_found_again(tmp_path):
    kept = Kept("costs", tmp_path)
    kept.add("bert/1/lrp", {"value": 2.0})
    again = Kept("costs", tmp_path)
    assert "bert/1/lrp" in again
    assert "bert/8/lrp" not in again
    assert again.rows["bert/1/lrp"] == {"value": 2.0}


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


def test_methods_that_run_the_model_often_are_measured_once():
    fits = {(m, name, b): costs.fits(m, name, b) for m, name, b in itertools.product(
        ("conservative-lrp", "integrated-gradients", "occlusion"), ("vit", "bert", "llama"), (1, 8))}  # fmt: skip
    assert all(fits["conservative-lrp", name, b] for name in ("vit", "bert", "llama") for b in (1, 8))
    assert [key for key, value in fits.items() if value and key[0] == "integrated-gradients"] == [
        ("integrated-gradients", "vit", 1), ("integrated-gradients", "bert", 1)]  # fmt: skip
    assert [key for key, value in fits.items() if value and key[0] == "occlusion"] == [("occlusion", "bert", 1)]
