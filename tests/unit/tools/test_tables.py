"""The tables of docs/results.md: what they plan can be run, and what they quote is what the papers say."""

from __future__ import annotations

import re

import pytest
import torch

import whence
from tests.support.goldens import shared
from tools.tables import paper, plan, report
from whence.datasets import NAMED
from whence.evaluation import Evaluation
from whence.evaluation.measurement import Measurement
from whence.evaluation.method_spec import resolve_specs
from whence.models import MODELS


@pytest.mark.parametrize("table", plan.TABLES)
def test_every_run_names_methods_measures_and_datasets_that_are_there(table):
    runs = plan.TABLES[table]()
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        assert len(resolve_specs(run.methods)) == len(run.methods)
        assert set(run.measures) <= set(whence.list_measures())
        assert run.dataset in NAMED
        assert run.limit >= (199 if run.dataset in ("pets", "mnist", "eraser-movies") else 500)


def test_the_quoted_auac_is_that_of_the_paper():
    (path,) = shared("seeds").glob("004*")
    text = path.read_text(encoding="utf-8")
    head, *rows = re.search(r"Method\tIMDB.*?(?=\n\n)", text, re.DOTALL)[0].splitlines()
    columns = plan.DATASETS
    assert len(head.split("\t")) == len(columns) + 2  # the method, and Semaine
    for row in rows:
        method, *values = row.split("\t")
        method = method.replace("LRP(", "LRP (")
        for name, value in zip(columns, values, strict=False):
            assert paper.AUAC[name][method] == (None if value == "-" else float(value))


def evaluation(values):
    """AUAC of some methods on ten samples, each sample a little apart."""
    settings = {
        "measures": [{"name": "auac", "options": {"steps": 1}}], "seed": 0, "bootstrap": 100,
        "methods": [{"label": m} for m in values],
    }  # fmt: skip
    rows = [
        Measurement(str(i), m, "auac", (v + i / 1e4, v), 1, 1, 1, 0.1) for m, v in values.items() for i in range(10)
    ]
    return Evaluation(settings, rows)


def test_orders_are_compared_with_the_papers():
    found = evaluation({"Random": 0.4, "GI": 0.9, "LRP (AH+LN)": 0.8})  # the paper has LRP (AH+LN) before GI
    text = report._orders({"sst2": found}, ["sst2"])
    assert "sst2: 2 agree, 1 do not (GI over LRP (AH+LN))." in text
    same = evaluation({"Random": 0.4, "GI": 0.8})
    assert "sst2: 1 agree, 0 do not." in report._orders({"sst2": same}, ["sst2"])


def test_a_cell_has_its_interval_and_the_papers_value():
    found = evaluation({"Random": 0.5})
    assert re.fullmatch(r"0\.500 ± 0\.000 \(0\.664\)", report._cell(found, "Random", "auac", "sst2"))
    assert report._cell(found, "GI", "auac", "sst2") == "-"


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    shared("data", "sst2")
    monkeypatch.setattr(plan, "RESULTS", tmp_path)
    run = plan.Run("x", "sst2", MODELS / "sentiment", ["random"], ["auac"], 3)
    first = run.evaluate()
    assert first.samples == 3
    assert [row.vector for row in run.evaluate().rows] == [row.vector for row in first.rows]


# -- table D -----------------------------------------------------------------------------------------------------------


class Case:
    """A picture of four patches, of which the first matters; right as long as that one is seen."""

    name, answer, right = "case", 0, True
    patches = torch.tensor([True, False, False, False])
    region = torch.tensor([[1, 0], [0, 0]]).bool().repeat_interleave(4, 0).repeat_interleave(4, 1)

    @staticmethod
    def correct(outputs):
        return outputs > 0


def seen(visual_feats, visual_attention_mask):
    return (visual_feats[:, :, 0] * visual_attention_mask)[:, 0]


def test_patches_are_hidden_from_the_strongest_or_the_weakest():
    from tools.tables.scenes import View, hits
    from whence.evaluation.feature_removal import SequenceRemoval

    given = {"visual_feats": torch.ones(1, 4, 2), "visual_attention_mask": torch.ones(1, 4)}
    rows = SequenceRemoval(given, "visual_attention_mask", 0, torch.arange(4), "image")
    one = View(rows, Case.patches.numpy(), (2, 2), Case.region.numpy())
    scores = torch.tensor([5.0, 1.0, 2.0, 2.0]).numpy()
    found = hits(seen, Case, one, scores, 0)
    assert found[1].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]  # a quarter of four patches is one: gone from 30 % on
    assert found[-1].tolist() == [1] * 9  # it is the last to go
    measured = one.measured(scores, found)
    assert measured["relevance-mass"] == pytest.approx([0.5])
    assert measured["pointing-game"] == [1.0]
    inside, union, *_ = measured["miou"]
    assert 0 < inside <= union
    assert whence.list_measures()["miou"]().finish(measured["miou"]) > 0.5
