"""Whole datasets: rows that do not depend on who made them, and that nothing is lost of."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

import whence
from tests.support.jobs import DIGITS, SENTIMENT, rows, run, texts
from whence.datasets import Dataset, Item
from whence.jobs import engine as engines
from whence.jobs.dataset_parts import ChunkedDataset
from whence.jobs.malloc_env import memory_kept
from whence.jobs.worker_config import WorkerConfig

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.jsonl"
    rows = [{"id": f"r{i}", "text": t, "label": i % 2} for i, t in enumerate(texts(50))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def explainer():
    return whence.Explainer.from_pretrained(SENTIMENT, truncate=False)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_each_sample_has_the_row_that_its_explanation_says(reviews, explainer, tmp_path):
    job = run(reviews, explainer, tmp_path / "out")
    assert (job.samples, job.failed, job.new) == (50, 0, 50)
    found = rows(job.directory)
    assert [row["id"] for row in found] == [f"r{i}" for i in range(50)]
    for row, text in list(zip(found, texts(50), strict=True))[::7]:
        e = explainer(text)
        assert row["input"] == text
        assert row["tokens"] == e.tokens[0]
        assert row["prediction"] == e.prediction_names[0]
        assert row["target"] == e.target_names[0]
        np.testing.assert_allclose(row["scores"], e.scores[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            [w["score"] for w in row["words"]], [w.score for w in e.words[0]], rtol=1e-3, atol=1e-4
        )
        assert [(s["start"], s["end"]) for s in row["offsets"] if s] == [o for o in e.offsets[0] if o != (0, 0)]
        assert row["probability"] == pytest.approx(float(e.probabilities[0].max()), abs=1e-4)
        assert row["kept"] == pytest.approx(float(e.ledger.sums[0, 0] / e.ledger.total[0]), rel=1e-2)
        assert (row["method"], row["options"], row["error"]) == ("conservative-lrp", "{}", None)
        assert row["whence"] == whence.__version__


def test_pictures_have_maps(tmp_path):
    photos = tmp_path / "photos"
    shutil.copytree(DIGITS / "examples", photos)
    explainer = whence.Explainer.from_pretrained(DIGITS)
    job = whence.run(photos, explainer, "generic-attention", tmp_path / "out")
    found = rows(job.directory)
    assert len(found) == len(list(photos.rglob("*.png"))) > 2
    for row in found[:3]:
        e = explainer(Path(row["input"]), "generic-attention")
        assert (row["height"], row["width"]) == e.grid
        laid = np.array(row["map"], np.float64).reshape(e.grid) * row["scale"]
        np.testing.assert_allclose(laid, e.patches[0], atol=2e-3 * row["scale"])
        assert row["tokens"] is None


def test_several_methods_have_a_row_each(reviews, explainer, tmp_path):
    job = run(reviews, explainer, tmp_path / "out", method=["conservative-lrp", "rollout"], limit=5)
    assert [(row["id"], row["method"]) for row in rows(job.directory)] == [
        (f"r{i}", method) for i in range(5) for method in ("conservative-lrp", "rollout")
    ]


def test_targets(reviews, explainer, tmp_path):
    named = rows(run(reviews, explainer, tmp_path / "a", target="negative").directory)
    assert {row["target"] for row in named} == {"negative"}
    own = rows(run(reviews, explainer, tmp_path / "b", target="label").directory)
    assert [row["target_index"] for row in own] == [i % 2 for i in range(50)]


@pytest.mark.parametrize("size", [1, 3, 50])
def test_rows_do_not_depend_on_the_batch(reviews, explainer, tmp_path, size):
    plain = rows(run(reviews, explainer, tmp_path / "a").directory)
    other = rows(whence.run(reviews, explainer, out=tmp_path / "b", shard_size=8, batch_size=size).directory)
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_allclose(a["scores"], b["scores"], rtol=1e-4, atol=1e-4)
        drop = ("scores", "words", "probability", "target_probability", "value", "kept")
        assert {k: v for k, v in a.items() if k not in drop} == {k: v for k, v in b.items() if k not in drop}


def test_rows_are_the_same_to_the_bit_from_several_processes(reviews, tmp_path):
    one = rows(run(reviews, str(SENTIMENT), tmp_path / "a", workers=1).directory)
    two = rows(run(reviews, str(SENTIMENT), tmp_path / "b", workers=2).directory)
    assert one == two


# -- failures ----------------------------------------------------------------------------------------------------------


def test_rows_are_the_same_without_captures(reviews, explainer, tmp_path):
    captured = rows(run(reviews, explainer, tmp_path / "captured").directory)
    plain = rows(run(reviews, str(SENTIMENT), tmp_path / "plain", capture=False).directory)
    for one, other in zip(captured, plain, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["scores"] == other["scores"]


def test_what_fails_is_a_row_with_its_reason(explainer, tmp_path):
    path = tmp_path / "some.jsonl"
    good = [json.dumps({"text": t}) for t in texts(6)]
    lines = [*good[:2], "{no json", json.dumps({"text": "long " * 2000}), *good[2:], json.dumps({"text": ""})]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    job = run(path, explainer, tmp_path / "out")
    found = rows(job.directory)
    failed = {i: row["error"] for i, row in enumerate(found) if row["error"]}
    assert job.samples == len(found) == 9
    assert job.failed == len(failed)
    assert "3" in failed[2]
    assert "token" in failed[3]
    assert 0 not in failed
    assert found[4]["input"] == texts(6)[2]


def test_an_undecodable_picture_is_a_row(tmp_path):
    photos = tmp_path / "photos"
    shutil.copytree(DIGITS / "examples", photos)
    (photos / "broken.png").write_bytes(b"\x89PNG no picture")
    job = whence.run(photos, whence.Explainer.from_pretrained(DIGITS), "rollout", tmp_path / "out")
    errors = {Path(row["id"]).name: row["error"] for row in rows(job.directory) if row["error"]}
    assert list(errors) == ["broken.png"]
    assert job.failed == 1


def test_one_sample_that_the_model_cannot_take_does_not_fail_its_batch(explainer, tmp_path, monkeypatch):
    batch = whence.Explainer.batch

    def choosy(self, samples, *args):
        if any("sad" in s.origins["text"].texts[0] for s in samples):
            raise whence.NumericalError("Too sad.")
        return batch(self, samples, *args)

    monkeypatch.setattr(whence.Explainer, "batch", choosy)
    items = [Item(str(i), t) for i, t in enumerate(texts(20))]
    job = run(Dataset("made", "", None, "", None, lambda: iter(items), 20), explainer, tmp_path / "out")
    assert [row["error"] for row in rows(job.directory)] == ["Too sad." if "sad" in t else None for t in texts(20)]


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_what_is_missing(reviews, explainer, tmp_path):
    whole = run(reviews, explainer, tmp_path / "whole").directory
    out = run(reviews, explainer, tmp_path / "out").directory
    parts = sorted((out / "rows").glob("*.parquet"))
    kept = {p.name: p.stat().st_mtime_ns for p in parts}
    parts[1].unlink()
    parts[4].write_bytes(parts[4].read_bytes()[:100])  # damaged
    (out / "rows" / ".part-00000001.parquet.ab12").write_bytes(b"half")
    again = run(reviews, explainer, out, resume=True)
    assert (again.samples, again.new) == (50, 16)
    assert rows(out) == rows(whole)
    now = {p.name: p.stat().st_mtime_ns for p in (out / "rows").iterdir()}
    assert set(now) == set(kept)
    assert {name for name in kept if now[name] != kept[name]} == {parts[1].name, parts[4].name}


@pytest.mark.parametrize("change", ["edit", "insert", "shorten"])
def test_a_changed_dataset_is_refused(reviews, explainer, tmp_path, change):
    out = run(reviews, explainer, tmp_path / "out").directory
    lines = reviews.read_text().splitlines(keepends=True)
    if change == "edit":
        lines[20] = lines[20].replace('"text": "', '"text": "oh ')
    elif change == "insert":
        lines.insert(3, lines[5])
    else:
        lines = lines[:20]
    reviews.write_text("".join(lines))
    with pytest.raises(whence.FileError, match=r"dataset has (changed|become shorter)"):
        run(reviews, explainer, out, resume=True)


def test_another_run_is_refused_with_what_changed(reviews, explainer, tmp_path):
    out = run(reviews, explainer, tmp_path / "out", limit=10).directory
    with pytest.raises(whence.FileError, match="--resume"):
        run(reviews, explainer, out, limit=10)
    with pytest.raises(whence.FileError, match=r"methods: .*conservative-lrp.* then, .*rollout.* now"):
        run(reviews, explainer, out, method="rollout", limit=10, resume=True)
    with pytest.raises(whence.FileError, match="limit: 10 then, null now"):
        run(reviews, explainer, out, resume=True)
    plain = whence.Explainer.from_pretrained(SENTIMENT, truncate=False, capture=False)
    with pytest.raises(whence.FileError, match="capture: true then, false now"):
        run(reviews, plain, out, limit=10, resume=True)
    other = whence.Explainer.from_pretrained(SENTIMENT, truncate=False)
    other.model.classifier.bias.data += 1
    with pytest.raises(whence.FileError, match="model fingerprint: "):
        run(reviews, other, out, limit=10, resume=True)


def test_a_directory_of_other_files_is_left_alone(reviews, explainer, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(whence.FileError, match="other files"):
        run(reviews, explainer, tmp_path / "out")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "whence-run", "version": 9, "settings": {}}'])
def test_a_damaged_manifest_is_a_sentence(reviews, explainer, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(content)
    with pytest.raises(whence.FileError, match=r"manifest|version"):
        run(reviews, explainer, tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    "more", [{"engine": "spark"}, {"workers": 0}, {"limit": 0}, {"address": "auto"}, {"method": []}]
)
def test_wrong_words(reviews, explainer, tmp_path, more):
    with pytest.raises(whence.InputError):
        whence.run(reviews, explainer, **({"out": tmp_path / "out"} | more))


def test_several_workers_need_a_path(reviews, explainer, tmp_path):
    with pytest.raises(whence.InputError, match="path or id"):
        run(reviews, explainer, tmp_path / "out", workers=2)


def test_an_unwritable_directory_is_a_sentence(reviews, explainer, tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(whence.WriteError, match="cannot be written"):
        run(reviews, explainer, tmp_path / "file" / "out")


def test_a_full_disk_is_a_sentence_and_nothing_is_corrupt(reviews, explainer, tmp_path, monkeypatch):
    write, left = whence._utils.parquet_directory.write, [3]

    def full(path, content):
        if path.suffix == ".parquet":
            left[0] -= 1
            if left[0] < 0:
                raise whence.WriteError("the disk is full")
        write(path, content)

    monkeypatch.setattr("whence._utils.parquet_directory.write", full)
    with pytest.raises(whence.WriteError, match="full"):
        run(reviews, explainer, tmp_path / "out")
    monkeypatch.undo()
    assert len(rows(tmp_path / "out")) == 24
    run(reviews, explainer, tmp_path / "out", resume=True)
    assert rows(tmp_path / "out") == rows(run(reviews, explainer, tmp_path / "whole").directory)


# -- killed ------------------------------------------------------------------------------------------------------------


def begin(reviews, out, *more):
    command = [sys.executable, "-m", "whence", "run", str(reviews), "--model", str(SENTIMENT), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--shard-size", "4", "--batch-size", "2", *more], stderr=subprocess.PIPE, text=True
    )


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def parts(out):
    return len(list((out / "rows").glob("part-*")))


@pytest.fixture
def many(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n".join(texts(400)) + "\n", encoding="utf-8")
    return path


def whole(many, tmp_path):
    job = whence.run(many, str(SENTIMENT), out=tmp_path / "whole", shard_size=4, batch_size=2, workers=1)
    return rows(job.directory)


def test_a_driver_that_is_killed_has_lost_nothing(many, tmp_path):
    out = tmp_path / "out"
    running = begin(many, out, "--workers", "1")
    until(lambda: parts(out) > 2)
    running.kill()
    running.wait()
    assert 2 < parts(out) < 100
    again = begin(many, out, "--workers", "1", "--resume")
    assert again.wait() == 0, again.stderr.read()
    assert rows(out) == whole(many, tmp_path)


def test_a_worker_that_is_killed_is_replaced(many, tmp_path):
    out = tmp_path / "out"
    running = begin(many, out, "--workers", "2")
    until(lambda: parts(out) > 2)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    workers = [c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)
    assert running.wait() == 0, running.stderr.read()
    assert rows(out) == whole(many, tmp_path)


def test_an_interrupted_run_ends_its_part_and_says_how_to_go_on(many, tmp_path):
    out = tmp_path / "out"
    running = begin(many, out, "--workers", "1")
    until(lambda: parts(out) > 2)
    running.send_signal(signal.SIGINT)
    assert running.wait() == 130
    assert "--resume" in running.stderr.read()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert manifest["samples"] == 4 * parts(out) == len(rows(out))


def test_the_command_says_how_many_failed(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "a film"}\n{no json\n', encoding="utf-8")
    first = begin(path, tmp_path / "a", "--workers", "1")
    assert first.wait() == 1
    assert "1 rows failed" in first.stderr.read()
    second = begin(path, tmp_path / "b", "--workers", "1", "--allow-failures")
    assert second.wait() == 0, second.stderr.read()


# -- parts -------------------------------------------------------------------------------------------------------------


def test_a_dataset_is_read_as_it_is_asked_for():
    read = []

    def items():
        for i in range(10**9):
            read.append(i)
            yield Item(str(i), "a film")

    chunks = iter(ChunkedDataset(Dataset("endless", "", None, "", None, items), 4, skip=frozenset({1})))
    assert [next(chunks).number for _ in range(3)] == [0, 2, 3]
    assert len(read) == 16


class Breaking:
    """A pool that breaks now and then: when a part is given to it, or while it explains one."""

    def __init__(self, draw):
        self.draw = draw

    def submit(self, explain, chunk):
        future = Future()
        if self.draw.random() < 0.15:
            raise BrokenProcessPool
        future.set_exception(BrokenProcessPool()) if self.draw.random() < 0.15 else future.set_result(chunk.number)
        return future

    def shutdown(self, **_):
        pass


@pytest.mark.parametrize("seed", range(50))
def test_no_part_is_lost_or_doubled_whenever_a_pool_breaks(seed, monkeypatch):
    draw = random.Random(seed)
    monkeypatch.setattr("whence.jobs.process_pool._executor", lambda *_: Breaking(draw))
    monkeypatch.setattr("whence.jobs.process_pool.TRIES", 10**6)
    items = [Item(str(i), "a film") for i in range(40)]
    chunks = ChunkedDataset(Dataset("made", "", None, "", None, lambda: iter(items), 40), 1)
    found = list(engines.create_engine("local", workers=2).results(WorkerConfig("a-model", ()), chunks, lambda: False))
    assert sorted(found) == list(range(40))


def test_a_part_whose_worker_always_dies_ends_the_run(monkeypatch):
    class Dying(Breaking):
        def submit(self, explain, chunk):
            future = Future()
            future.set_exception(BrokenProcessPool())
            return future

    monkeypatch.setattr("whence.jobs.process_pool._executor", lambda *_: Dying(None))
    chunks = ChunkedDataset(Dataset("made", "", None, "", None, lambda: iter([Item("0", "a film")]), 1), 1)
    with pytest.raises(whence.ModelError, match="A worker died 6 times"):
        list(engines.create_engine("local", workers=2).results(WorkerConfig("a-model", ()), chunks, lambda: False))


def test_engines_by_name():
    assert type(engines.create_engine("local", workers=2)).__name__ == "ProcessPoolEngine"
    with pytest.raises(whence.InputError, match="local or ray"):
        engines.create_engine("spark")


def test_ray_makes_the_same_rows(reviews, explainer, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "ray"
    running = begin(reviews, out, "--engine", "ray", "--workers", "1")
    assert running.wait() == 0, running.stderr.read()
    again = whence.run(reviews, str(SENTIMENT), out=tmp_path / "here", shard_size=4, batch_size=2)
    assert rows(out) == rows(again.directory)


def test_ray_needs_a_path(reviews, explainer, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(whence.InputError, match="path or id"):
        run(reviews, explainer, tmp_path / "out", engine="ray")


def test_workers_are_told_to_keep_their_memory_and_others_are_not(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    before = dict(os.environ)
    with memory_kept():
        code = "import os; print(os.environ['MALLOC_MMAP_THRESHOLD_'], os.environ['MALLOC_TRIM_THRESHOLD_'])"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(2**30), "7"]  # what the user has set stays
    assert dict(os.environ) == before
