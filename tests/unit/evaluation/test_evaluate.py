"""Evaluations: the same whatever the order and the batch, taken up where they stopped, and nothing lost in silence."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import whence
from whence import cli, evaluation
from whence.datasets import Dataset, Item
from whence.evaluation.class_mapping import ClassMapping
from whence.evaluation.evaluator import Evaluator
from whence.evaluation.feature_removal import blank, removal_for
from whence.evaluation.method_spec import MethodSpec, parse_spec
from whence.evaluation.weight_randomisation import shuffled
from whence.methods.base import Method, Reading
from whence.methods.registry import REGISTRY
from whence.models import MODELS

TEXTS = [
    "a gripping film",
    "dull and far too long",
    "I laughed and I cried, twice",
    "bad",
    "warm, funny, a delight to watch",
]
LABELS = ["positive", "negative", "positive", "negative", "positive"]
ITEMS = [Item(str(i), text, label) for i, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))]
MEASURES = [
    "auac",
    "positive-perturbation",
    "abpc",
    "saco",
    "class-sensitivity",
    "randomisation",
    "conservation-error",
    "agreement",
]
METHODS = ["conservative-lrp", "rollout", "random"]


@pytest.fixture(scope="module")
def sentiment():
    return whence.Explainer.from_pretrained(MODELS / "sentiment", dtype=torch.float64)


@pytest.fixture(scope="module")
def digits():
    return whence.Explainer.from_pretrained(MODELS / "digits", dtype=torch.float64)


def chequered():
    """A mask of some kind."""
    return (np.indices((64, 64)).sum(0) % 2).astype(np.int8)


def picture_items():
    paths = sorted((MODELS / "digits" / "examples").glob("*.png"))[:3]
    return [Item(path.stem, str(path), i, mask=chequered) for i, path in enumerate(paths)]


def evaluated(explainer, items=ITEMS, methods=METHODS, measures=MEASURES, **options):
    return whence.evaluate(explainer, items, methods, measures, bootstrap=200, **options)


def same_cells(a, b, tolerance=1e-9):
    assert [(c.method, c.measure, c.samples) for c in a.cells] == [(c.method, c.measure, c.samples) for c in b.cells]
    for one, two in zip(a.cells, b.cells, strict=True):
        for name in ("value", "low", "high"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), rel=tolerance, abs=tolerance)


# -- what it depends on ------------------------------------------------------------------------------------------------


def test_neither_order_nor_batch_size_matters(sentiment):
    expected = evaluated(sentiment)
    assert len(expected.cells) == 3 * 8 - 2  # of two methods there is no ledger, and no conservation
    mixed = random.Random(0).sample(ITEMS, len(ITEMS))
    same_cells(evaluated(sentiment, mixed, batch_size=2), expected)
    same_cells(evaluated(sentiment, ITEMS, batch_size=1), expected)


def test_neither_order_nor_batch_size_matters_for_pictures(digits):
    measures = ["srg", "insertion", "miou", "map", "pointing-game"]
    expected = evaluated(digits, picture_items(), measures=measures, baseline="mean")
    assert len(expected.cells) == 3 * 5
    same_cells(evaluated(digits, picture_items()[::-1], measures=measures, baseline="mean", batch_size=3), expected)


def test_a_value_is_that_of_the_samples_alone(sentiment):
    whole = evaluated(sentiment, measures=["auac"])
    alone = [evaluated(sentiment, [item], measures=["auac"]).cell("rollout", "auac").value for item in ITEMS]
    assert whole.cell("rollout", "auac").value == pytest.approx(np.mean(alone), rel=1e-9)


def test_a_dataset_is_drawn_by_the_seed_and_not_by_its_order(sentiment):
    def listed(items):
        return Dataset("mine", "test", ("negative", "positive"), "", None, lambda: iter(items), len(items))

    found = evaluated(sentiment, listed(ITEMS), measures=["auac"], limit=3, seed=4)
    assert found.samples == 3
    same_cells(evaluated(sentiment, listed(ITEMS[::-1]), measures=["auac"], limit=3, seed=4), found)
    other = evaluated(sentiment, listed(ITEMS), measures=["auac"], limit=3, seed=5)
    assert other.settings["dataset"]["ids"] != found.settings["dataset"]["ids"]


def test_the_class_that_is_explained_is_the_predicted_or_the_true_one(sentiment):
    wrong = [Item("0", TEXTS[0], "negative")]
    assert {row.target for row in evaluated(sentiment, wrong, measures=["auac"]).rows} == {1}
    assert {row.target for row in evaluated(sentiment, wrong, measures=["auac"], target="label").rows} == {0}


def test_the_model_is_left_as_it_was(sentiment):
    before = {name: t.clone() for name, t in sentiment.model.state_dict().items()}
    evaluated(sentiment, measures=["randomisation"])
    assert all(torch.equal(t, before[name]) for name, t in sentiment.model.state_dict().items())
    other = shuffled(sentiment.model, 0)
    changed = [n for n, t in other.state_dict().items() if not torch.equal(t, before[n])]
    assert len(changed) > 20
    for name in changed:
        assert torch.equal(other.state_dict()[name].flatten().sort().values, before[name].flatten().sort().values)


# -- what is beside the values -----------------------------------------------------------------------------------------


def test_good_methods_are_told_from_random_ones(sentiment):
    found = evaluated(sentiment, measures=["abpc"])
    assert found.accuracy == 1.0
    ahead = found.difference("abpc", "conservative-lrp", "random")
    assert (ahead.samples, ahead.low > 0) == (5, True)
    assert len(found.differences("abpc")) == 3
    table = found.table()
    assert "conservative-lrp" in table
    assert "5 samples; the model's accuracy on them: 100.0%" in table
    assert "abpc: higher is better" in table
    assert found.seconds("conservative-lrp") > 0


def test_a_method_has_its_options_and_its_name(sentiment):
    found = evaluated(
        sentiment, methods=["LRP (AH)=conservative-lrp:norms=false", "conservative-lrp"], measures=["auac"]
    )
    assert found.methods == ["LRP (AH)", "conservative-lrp"]
    assert found.settings["methods"][0] == {
        "label": "LRP (AH)",
        "method": "conservative-lrp",
        "options": {"norms": False},
    }
    assert parse_spec("rollout:start_layer=1,residual=false") == MethodSpec(
        "rollout:start_layer=1,residual=false", "rollout", {"start_layer": 1, "residual": False}
    )
    for wrong, said in [("rolout", "rolout"), ("rollout:layer=1", "layer"), ("rollout:layer", "no option")]:
        with pytest.raises(whence.MethodError, match=said):
            parse_spec(wrong)
    with pytest.raises(whence.MethodError, match="Two methods are called 'a'"):
        evaluated(sentiment, methods=["a=rollout", "a=random"])


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_results_are_written_and_read_again(sentiment, tmp_path):
    found = evaluated(sentiment, out=tmp_path)
    same_cells(evaluation.load(tmp_path), found, 0)
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["settings"]["seed"] == 0
    assert {c["measure"] for c in told["cells"]} == set(MEASURES)
    assert len(told["curves"]["auac"]["axis"]) == 11
    assert told["settings"]["model"]["fingerprint"]
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "samples.parquet").num_rows == len(found.rows)


def test_what_was_interrupted_is_taken_up(sentiment, tmp_path, monkeypatch):
    expected = evaluated(sentiment)
    rows, calls = Evaluator.rows, []

    def interrupted(self, items):
        calls.append([item.id for item in items])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rows(self, items)

    monkeypatch.setattr(Evaluator, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluated(sentiment, batch_size=2, out=tmp_path)
    assert evaluation.load(tmp_path).samples == 2
    same_cells(evaluated(sentiment, batch_size=2, out=tmp_path), expected)
    assert calls == [["0", "1"], ["2", "3"], ["2", "3"], ["4"]]
    evaluated(sentiment, batch_size=2, out=tmp_path)  # all is done
    assert len(calls) == 4


def test_a_part_that_was_removed_is_made_again_and_no_other_is_lost(sentiment, tmp_path):
    expected = evaluated(sentiment, measures=["auac"], batch_size=2, out=tmp_path)
    (tmp_path / "parts" / "000001.parquet").unlink()
    same_cells(evaluated(sentiment, measures=["auac"], batch_size=2, out=tmp_path), expected)
    assert len(list((tmp_path / "parts").iterdir())) == 3


def test_other_results_are_not_overwritten(sentiment, tmp_path):
    evaluated(sentiment, measures=["auac"], out=tmp_path)
    with pytest.raises(whence.FileError, match=r"holds another evaluation \(.*baseline: null then, \"mask\" now"):
        evaluated(sentiment, measures=["auac"], baseline="mask", out=tmp_path)
    other = whence.Explainer(shuffled(sentiment.model, 1), sentiment.processor)
    with pytest.raises(whence.FileError, match="fingerprint"):
        evaluated(other, measures=["auac"], out=tmp_path)


def test_a_damaged_part_is_named(sentiment, tmp_path):
    evaluated(sentiment, measures=["auac"], out=tmp_path)
    (tmp_path / "parts" / "000000.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(whence.FileError, match=r"000000\.parquet' is damaged"):
        evaluation.load(tmp_path)
    (tmp_path / "parts" / "000000.parquet").unlink()
    assert evaluated(sentiment, measures=["auac"], out=tmp_path).samples == len(ITEMS)
    with pytest.raises(whence.FileError, match="no evaluation in"):
        evaluation.load(tmp_path / "parts")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class NotFinite(Method):
    """Scores of which one is no number, for texts of more than four tokens."""

    name = "not-finite"
    paper = "-"

    def rulebook(self):
        return whence.Rulebook(maps=True)

    def read(self, run):
        scores = torch.ones(1, int(run.trace.attentions[0].shape[1]), dtype=torch.float64)
        if scores.shape[1] > 6:
            scores[:, 2] = float("nan")
        return Reading(scores.expand(run.trace.batch.size, -1))


def test_samples_that_fail_are_counted_and_named(sentiment):
    items = [*ITEMS[:2], Item("broken", "\ud800", "positive"), Item("odd", "a film", None)]
    found = evaluated(sentiment, items, ["rollout"], ["auac", "positive-perturbation"])
    assert found.cell("rollout", "auac").samples == 3
    assert found.cell("rollout", "positive-perturbation").samples == 2
    said = {(row.id, row.measure): row.error for row in found.failures}
    assert set(said) == {("broken", ""), ("odd", "positive-perturbation")}
    assert "tokenizer cannot read" in said["broken", ""]
    assert "has no label" in said["odd", "positive-perturbation"]
    assert "2 explanations failed or could not be measured" in found.table()


class Breaking(NotFinite):
    """A method with a fault, which shows on some inputs."""

    name = "breaking"

    def read(self, run):
        if run.trace.attentions[0].shape[1] > 6:
            raise RuntimeError("index 9 is out of bounds")
        return super().read(run)


def test_what_goes_wrong_in_a_method_ends_its_sample_and_not_the_evaluation(sentiment, monkeypatch):
    monkeypatch.setitem(REGISTRY, "breaking", dataclass(Breaking))
    found = evaluated(sentiment, methods=["breaking", "rollout"], measures=["auac"])
    assert found.cell("rollout", "auac").samples == len(ITEMS)
    assert 0 < found.cell("breaking", "auac").samples < len(ITEMS)
    assert {row.error for row in found.failures} == {"RuntimeError: index 9 is out of bounds"}


def test_rows_that_cannot_be_read_are_counted_and_named(sentiment, tmp_path):
    path = tmp_path / "reviews.jsonl"
    path.write_text(
        '{"text": "a gripping film", "label": "positive"}\nno json\n{"text": "dull", "label": "negative"}\n'
    )
    for limit in (None, 5):
        found = evaluated(sentiment, path, ["rollout"], ["auac"], limit=limit, out=tmp_path / f"out{limit}")
        assert found.samples == 2
        assert [row.id for row in found.failures] == ["damaged 1"]
        assert "2" in found.failures[0].error  # its row
        assert (
            len(evaluated(sentiment, path, ["rollout"], ["auac"], limit=limit, out=tmp_path / f"out{limit}").failures)
            == 1
        )


def test_scores_that_are_no_numbers_are_named(sentiment, monkeypatch):
    monkeypatch.setitem(REGISTRY, "not-finite", dataclass(NotFinite))
    found = evaluated(sentiment, methods=["not-finite"], measures=["auac"])
    assert 0 < len(found.failures) < len(ITEMS)
    assert all("finite" in row.error or "NaN" in row.error for row in found.failures)


def test_warnings_are_counted_and_not_repeated(sentiment, recwarn):
    long = [Item(str(i), "a long film " * (60 + i), "positive") for i in range(3)]
    found = evaluated(sentiment, long, ["random"], ["auac"])
    assert not [w for w in recwarn if issubclass(w.category, whence.WhenceWarning)]
    ((message, times),) = found.warned.items()
    assert "The text has … tokens and the model takes …" in message
    assert times >= 3
    assert f"Warned of {times} times: The text has" in found.table()


def test_a_method_that_does_not_apply_is_named_and_left_out(sentiment):
    found = evaluated(sentiment, methods=["rollout", "dave"], measures=["auac"])
    assert found.methods == ["rollout"]
    assert "dave does not apply: " in found.table()
    with pytest.raises(whence.ModelError):
        evaluated(sentiment, methods=["dave"], measures=["auac"])


def test_what_the_dataset_lacks_is_named_at_once(sentiment):
    bare = [Item(item.id, item.input) for item in ITEMS]
    for measure, what in [("positive-perturbation", "labels"), ("miou", "masks"), ("token-f1", "rationales")]:
        with pytest.raises(whence.InputError, match=f"The dataset has no {what}, which the measure '{measure}' needs"):
            evaluated(sentiment, bare, measures=[measure])
    with pytest.raises(whence.InputError, match="target='label'"):
        evaluated(sentiment, bare, measures=["auac"], target="label")
    assert evaluated(sentiment, bare, measures=["auac"]).accuracy is None


@pytest.mark.parametrize(("options", "said"), [
    ({"items": []}, "no samples"),
    ({"items": [ITEMS[0], ITEMS[0]]}, "same id"),
    ({"target": "best"}, "'prediction' or 'label'"),
    ({"unit": "word"}, "'patch' or 'pixel'"),
    ({"baseline": "black"}, "no baseline 'black'.*unk, mask, pad, hide, zero, mean, blur"),
    ({"baseline": "blur"}, "Nothing could be measured: A token cannot be replaced by 'blur'"),
    ({"items": [Item("0", "\ud800")]}, "Nothing could be measured: The tokenizer cannot read"),
])  # fmt: skip
def test_bad_input_is_named(sentiment, options, said):
    with pytest.raises(whence.InputError, match=said):
        evaluated(sentiment, **{"measures": ["auac"], **options})


def test_labels_are_the_models_classes():
    names = {0: "NEGATIVE", 1: "POSITIVE"}
    assert [ClassMapping(names, 2).of(x) for x in ("negative", "Positive", 1, None)] == [0, 1, 1, None]
    assert ClassMapping({0: "LABEL_0", 1: "LABEL_1"}, 2, ("bad", "good")).of("good") == 1
    assert ClassMapping(names, 2, given={"good": "positive", "bad": 0}).of("good") == 1
    with pytest.raises(whence.InputError, match=r"'good' is none of the model's classes \(NEGATIVE, POSITIVE\)"):
        ClassMapping(names, 2).of("good")
    with pytest.raises(whence.InputError, match="out of range"):
        ClassMapping(names, 2).of(7)
    with pytest.raises(whence.InputError, match="has 3 classes"):
        ClassMapping({}, 2, ("a", "b", "c"))


def test_a_dataset_of_other_classes_is_refused(sentiment):
    with pytest.raises(whence.InputError, match=r"'joy' is none of the model's classes \(negative, positive\)"):
        evaluated(sentiment, [Item("0", "a film", "joy")], measures=["positive-perturbation"])


# -- what stands in for what is removed --------------------------------------------------------------------------------


@pytest.mark.parametrize(("baseline", "name", "token"), [
    (None, "input_ids", "[UNK]"), ("mask", "input_ids", "[MASK]"), ("pad", "input_ids", "[PAD]"),
    ("hide", "attention_mask", None),
])  # fmt: skip
def test_a_token_is_replaced(sentiment, baseline, name, token):
    sample = sentiment.read("a gripping film")
    e = sentiment("a gripping film")
    how = removal_for(sentiment, sample, e, baseline, "patch", False)
    assert len(how.scores(e)) == e.scores.shape[1] - 2  # without [CLS] and [SEP]
    removed = np.zeros((2, len(how.at)), bool)
    removed[1, 0] = True
    after = how.apply(removed)
    assert torch.equal(after[name][0], sample.tensors[name][0])
    changed = (after[name][1] != sample.tensors[name][0]).nonzero().flatten().tolist()
    assert changed == [1]
    value = 0 if token is None else sentiment.processor.convert_tokens_to_ids(token)
    assert int(after[name][1, 1]) == value
    every = removal_for(sentiment, sample, e, baseline, "patch", True)
    assert len(every.at) == e.scores.shape[1]


def test_a_patch_is_replaced(digits):
    path = picture_items()[0].input
    sample, e = digits.read(path), digits(path)
    how = removal_for(digits, sample, e, "zero", "patch", False)
    assert how.grid == e.grid
    removed = np.zeros((1, e.grid[0] * e.grid[1]), bool)
    removed[0, e.grid[1] + 2] = True  # second row, third column
    pixels, after = (t["pixel_values"][0] for t in (sample.tensors, how.apply(removed)))
    changed = (pixels != after).any(0)
    side = pixels.shape[-1] // e.grid[1]
    assert not changed[:side].any()
    assert not changed[:, : 2 * side].any()
    black = -np.array(digits.processor.image_mean) / np.array(digits.processor.image_std)
    assert after[:, side + 1, 2 * side + 1].numpy() == pytest.approx(black)
    pixelwise = removal_for(digits, sample, e, "zero", "pixel", False)
    assert len(pixelwise.scores(e)) == 64 * 64


def test_pixels_without_a_picture():
    torch.manual_seed(0)
    pixels = torch.rand(1, 3, 20, 30, dtype=torch.float64)
    assert not blank(pixels, "zero").any()
    assert torch.allclose(blank(pixels, "mean")[0, :, 3, 4], pixels.mean((0, 2, 3)))
    blurred = blank(pixels, "blur")
    assert blurred.std() < 0.3 * pixels.std()
    assert torch.allclose(blank(torch.ones_like(pixels), "blur"), torch.ones_like(pixels))
    with pytest.raises(whence.InputError, match="choose zero, mean, blur"):
        blank(pixels, "grey")


# -- the command line --------------------------------------------------------------------------------------------------


def run(*words):
    return CliRunner().invoke(cli.app, [str(w) for w in words], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps({"text": item.input, "label": item.label}) + "\n" for item in ITEMS))
    return path


def test_the_command_prints_a_table_and_writes_results(reviews, tmp_path):
    out = tmp_path / "results"
    words = ["evaluate", reviews, "--model", MODELS / "sentiment", "--methods", "conservative-lrp,random"]
    result = run(*words, "--metrics", "auac,abpc", "--out", out)
    assert result.exit_code == 0, result.output
    assert "the model's accuracy on them: 100.0%" in result.stdout
    assert {p.name for p in out.iterdir()} >= {
        "results.json",
        "samples.parquet",
        "curves.png",
        "curves.svg",
        "table.txt",
    }
    again = run(*words, "--metrics", "auac,abpc", "--out", out)
    assert again.stdout == result.stdout
    other = run(*words, "--metrics", "auac", "--out", out)
    assert (other.exit_code, "holds another evaluation" in other.stderr) == (2, True)


def test_options_and_labels_on_the_command_line(reviews):
    words = ["evaluate", reviews, "--model", MODELS / "sentiment", "--limit", "2", "--metrics", "auac"]
    result = run(*words, "--methods", "AH=conservative-lrp:norms=false", "--methods", "rollout,random")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[1:4]] == ["AH", "rollout", "random"]
    swapped = run(*words, "--methods", "random", "--label", "positive=0", "--label", "negative=1")
    assert "the model's accuracy on them: 0.0%" in swapped.stdout


def test_columns_of_a_file_are_named(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("said,verdict\na gripping film,not-bad\ndull,bad\n")
    words = ["evaluate", path, "--model", MODELS / "sentiment", "--metrics", "auac", "--methods", "random"]
    named = ["--column", "text=said", "--column", "label=verdict"]
    result = run(*words, *named, "--label", "not-bad=positive", "--label", "bad=negative")
    assert "2 samples; the model's accuracy on them: 100.0%" in result.stdout, result.output
    wrong = run(*words, *named, "--label", "positive")
    assert (wrong.exit_code, "no pair" in wrong.stderr) == (2, True)


def test_wrong_calls_are_told_in_a_sentence(reviews):
    model = ["--model", MODELS / "sentiment"]
    for words, said in [
        (["no-such-set", *model], "no-such-set"),
        (["sst2", *model, "--data", "nowhere"], "sst2"),
        ([reviews, *model, "--metrics", "best"], "no measure 'best'"),
        ([reviews, *model, "--metrics", "miou"], "has no masks"),
    ]:
        result = run("evaluate", *words)
        assert (result.exit_code, said in result.stderr) == (2, True), result.output


def test_measures_are_listed():
    lines = run("measures").stdout.splitlines()
    assert len(lines) == 1 + len(whence.list_measures())
    assert any(line.split()[:3] == ["au-mse", "lower", "-"] for line in lines)
