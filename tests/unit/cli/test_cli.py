"""The command line: what it prints where, what it writes, and how it fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import whence
from tests.support import tiny
from tests.support.command_line import command_refused, run
from tests.support.processors import WORDS, bert, image_processor, saved
from whence import cli

TEXT = "a gripping film"
COMMANDS = {
    "explain": ["--model", "--method", "--target", "--text", "--out", "--json", "--option", "--batch-size", "--device",
                "--dtype", "--trust-remote-code", "--allow-pickle", "--truncate", "--windows"],
    "compare": ["--model", "--methods", "--targets", "--text", "--out", "--json", "--truncate"],
    "counterfactual": ["--model", "--method", "--target", "--remove", "--replace-with", "--budget", "--out", "--json"],
    "probe": ["--model", "--terms", "--slot", "--target", "--out"],
    "generate": ["--model", "--image", "--audio", "--continuation", "--tokens", "--chat", "--method", "--out", "--json",
                 "--option"],
    "locate": ["--model", "--method", "--target", "--threshold", "--largest", "--confidence", "--cut", "--out",
               "--option"],
    "check": ["--model", "--input", "--device", "--dtype", "--allow-pickle"],
    "methods": ["--json"],
    "demo": ["--out", "--no-open"],
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(saved(tmp_path_factory.mktemp("models") / "bert", bert(WORDS), WORDS))


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    network = tiny.vit()
    labels = {0: "tabby, tabby cat", 1: "dog", 2: "Egyptian cat"}
    network.config.id2label, network.config.label2id = labels, {v: k for k, v in labels.items()}
    directory = tmp_path_factory.mktemp("models") / "vit"
    return str(saved(directory, network, image_processor("ViTImageProcessor")(size={"height": 12, "width": 12})))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def explanations(text, tmp_path):
    (tmp_path / "printed.json").write_text(text)
    found = whence.load(tmp_path / "printed.json")
    return [found] if isinstance(found, whence.Explanation) else found


# -- explaining ------------------------------------------------------------------------------------------------------


def test_an_explanation_is_printed(model):
    result = run("explain", TEXT, "--model", model)
    for word in ("gripping", "film", "conservative-lrp"):
        assert word in result.stdout
    assert result.stderr == ""


def test_json_is_the_explanation(model, tmp_path):
    result = run("explain", TEXT, "bad plot", "--model", model, "--json", "--method", "generic-attention")
    assert json.loads(result.stdout)["format"] == "whence-explanations"
    assert result.stderr == ""
    explainer = whence.Explainer.from_pretrained(model)
    assert explanations(result.stdout, tmp_path) == explainer([TEXT, "bad plot"], "generic-attention")


@pytest.mark.parametrize("ending", ["html", "png", "svg", "pdf", "tex", "json", "safetensors"])
def test_every_format_is_written(model, tmp_path, ending):
    out = tmp_path / "new" / f"why.{ending}"
    result = run("explain", TEXT, "--model", model, "--out", out)
    assert result.stdout == ""
    assert str(out) in result.stderr
    assert out.stat().st_size > 200
    assert os.listdir(out.parent) == [out.name]
    if ending in ("json", "safetensors"):
        assert whence.load(out).origins[0]["text"].texts == (TEXT,)


def test_stdin_is_read_line_by_line(model, tmp_path):
    result = run("explain", "-", "--model", model, "--json", stdin="good film\r\n\n  \nbad plot\nétrange 👍")
    found = explanations(result.stdout, tmp_path)
    assert [e.origins[0]["text"].texts[0] for e in found] == ["good film", "bad plot", "étrange 👍"]
    command_refused(2, "no input", "explain", "-", "--model", model, stdin="\n")


def test_bytes_that_are_no_text_are_refused(model):
    said = command_refused(2, "whence: ", "explain", "-", "--model", model, stdin=b"good \xff film\n")
    assert "Traceback" not in said


def test_files_are_read_as_text(model, tmp_path):
    (tmp_path / "a.txt").write_text("good film", encoding="utf-8")
    (tmp_path / "b.txt").write_text("bad plot", encoding="utf-8")
    result = run("explain", tmp_path / "a.txt", "and a text", "--model", model, "--json")
    assert "a.txt" in result.stderr
    assert [e.origins[0]["text"].texts[0] for e in explanations(result.stdout, tmp_path)] == ["good film", "and a text"]
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00")
    command_refused(2, "c.txt", "explain", tmp_path / "c.txt", "--model", model)


def test_patterns_of_text_files_are_expanded(model, tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text(f"good film {i}")
    result = run("explain", tmp_path / "*.txt", "is it good?", "--model", model, "--json")
    found = [e.origins[0]["text"].texts[0] for e in explanations(result.stdout, tmp_path)]
    assert found == ["good film 0", "good film 1", "is it good?"]


def test_patterns_of_pictures_are_expanded(vit, pictures, tmp_path):
    result = run("explain", pictures / "*.png", pictures / "1.png", "--model", vit, "--json", "--batch-size", 2)
    found = explanations(result.stdout, tmp_path)
    assert [e.origins[0]["image"].name for e in found] == ["0.png", "1.png", "2.png", "1.png"]
    assert found[1] == found[3]
    command_refused(2, "No file fits", "explain", pictures / "*.gif", "--model", vit)
    command_refused(2, "no file", "explain", pictures / "9.png", "--model", vit)


def test_pairs_of_texts(model, tmp_path):
    result = run("explain", "is it good?", "--text", "it is bad", "--model", model, "--json")
    assert explanations(result.stdout, tmp_path)[0].origins[0]["text"].texts == ("is it good?", "it is bad")


@pytest.mark.parametrize(("given", "target"), [("2", 2), ("good", 2), ("BAD", 0), ("-1", 2), ("so-so", 1)])
def test_a_target_by_number_or_label(model, tmp_path, given, target):
    result = run("explain", TEXT, "--model", model, "--json", "--target", given)
    assert explanations(result.stdout, tmp_path)[0].target.tolist() == [target]


def test_a_label_may_have_a_comma(vit, pictures, tmp_path):
    result = run("explain", pictures / "0.png", "--model", vit, "--json", "--target", "tabby, tabby cat")
    assert explanations(result.stdout, tmp_path)[0].target_names == ("tabby, tabby cat",)


def test_options_reach_the_method(model, tmp_path):
    plain, other = (
        run("explain", TEXT, "--model", model, "--json", *more).stdout for more in ([], ["--option", "at=token"])
    )
    (found,) = explanations(other, tmp_path)
    assert found.options == {"at": "token"}
    assert found != explanations(plain, tmp_path)[0]


def test_methods_and_targets_are_compared(model, tmp_path):
    words = ["compare", TEXT, "--model", model, "--json"]
    found = explanations(run(*words, "--targets", "good,bad").stdout, tmp_path)
    assert {e.method for e in found} == set(whence.list_methods()) - {"dave"}  # which explains pictures
    assert {e.target_names for e in found} == {("good",), ("bad",)}
    two = explanations(run(*words, "--methods", "generic-attention, gradient-x-input").stdout, tmp_path)
    assert [e.method for e in two] == ["generic-attention", "gradient-x-input"]
    report = tmp_path / "report.html"
    assert run(*words[:-1], "--out", report).stdout == ""
    assert all(e.method in report.read_text() for e in found)


# -- calls that are wrong --------------------------------------------------------------------------------------------


def test_an_unknown_label_lists_the_labels(model):
    said = command_refused(2, "no label 'goood'", "explain", TEXT, "--model", model, "--target", "goood")
    assert "bad, so-so, good" in said
    command_refused(2, "out of range", "explain", TEXT, "--model", model, "--target", "7")


@pytest.mark.parametrize(("words", "said"), [
    (["explain", ""], "empty"), (["explain", "bad film " * 60], "Shorten it"),
    (["explain", TEXT, "--method", "conservative_lrp"], "Did you mean 'conservative-lrp'?"),
    (["explain", TEXT, "--option", "depth=3"], "no option 'depth'"),
    (["explain", TEXT, "--option", "depth"], "name=value"),
    (["explain", TEXT, "--dtype", "float7"], "no precision"), (["explain", TEXT, "--dtype", "int64"], "precision"),
    (["explain", TEXT, "--device", "abacus"], "no device"), (["explain", TEXT, "--out", "why.doc"], "known endings"),
    (["compare", TEXT, "--methods", "magic"], "no method 'magic'"), (["explain", TEXT, "--device", "cuda:7"], "device"),
])  # fmt: skip
def test_a_wrong_call_is_told_what_is_wrong(model, words, said):
    command_refused(2, said, *words, "--model", model)


@pytest.mark.parametrize("words", [
    [], ["explain", TEXT], ["explain"], ["explian"], ["explain", TEXT, "--batch-size", "0"],
])  # fmt: skip
def test_an_incomplete_call(words):
    result = run(*words, code=2)
    assert "Usage" in result.output


def test_a_long_text_is_cut_if_allowed(model):
    result = run("explain", "bad film " * 60, "--model", model, "--truncate")
    assert "has 122 tokens and the model takes 100: the rest was not read" in result.stderr
    assert "the rest was not read" not in result.stdout


# -- work that fails -------------------------------------------------------------------------------------------------


def test_a_missing_model(tmp_path):
    command_refused(2, "does not exist", "explain", TEXT, "--model", tmp_path / "nowhere")


def test_corrupt_weights(model, tmp_path):
    copied = shutil.copytree(model, tmp_path / "copied")
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    command_refused(1, "could not be loaded", "explain", TEXT, "--model", copied)


def test_a_place_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "why.html", tmp_path / "file" / "deeper" / "why.json"):
        command_refused(1, "cannot be written", "explain", TEXT, "--model", model, "--out", out)
    (tmp_path / "folder.html").mkdir()
    command_refused(1, "cannot be written", "explain", TEXT, "--model", model, "--out", tmp_path / "folder.html")


@pytest.mark.parametrize("before", [None, "what was there"])
def test_a_full_disk_leaves_no_trace(model, tmp_path, monkeypatch, before):
    out = tmp_path / "why.json"
    if before is not None:
        out.write_text(before)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(os, "replace", full)
    said = command_refused(1, "the disk is full", "explain", TEXT, "--model", model, "--out", out)
    assert "wrote" not in said
    assert os.listdir(tmp_path) == ([] if before is None else ["why.json"])
    assert before is None or out.read_text() == before


# -- what there is ---------------------------------------------------------------------------------------------------


def test_methods_are_listed():
    printed = run("methods").stdout
    rows = json.loads(run("methods", "--json").stdout)
    assert {row["name"] for row in rows} == set(whence.list_methods())
    assert all(row["name"] in printed and row["paper"] in printed for row in rows)
    assert {"at"} <= set(next(row for row in rows if row["name"] == "conservative-lrp")["options"])
    described = {"name", "class_specific", "conservative", "lrp", "forwards", "backwards", "needs", "paper", "options"}
    assert all(set(row) == {*described, "shows", "beware"} for row in rows)
    assert all(row["shows"].endswith(".") and row["beware"].endswith(".") for row in rows)


def test_a_pipe_gets_one_line_a_method_and_a_terminal_what_fits(monkeypatch):
    lines = run("methods").stdout.splitlines()
    head = "method per-class conserves LRP forwards backwards needs paper"
    assert lines[0].split() == head.split()
    assert [line.split()[0] for line in lines[1:]] == list(whence.list_methods())
    monkeypatch.setattr(cli.inspect, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    for columns in (80, 300):
        result = CliRunner().invoke(cli.app, ["methods"], env={"COLUMNS": str(columns)})
        assert "patented" in result.stderr
        assert result.stdout.rstrip("\n") == whence.list_methods().table(columns)
        assert max(map(len, result.stdout.splitlines())) <= columns


def test_a_model_is_checked(model, vit, pictures):
    result = run("check", "--model", model, "--input", TEXT)
    assert result.stdout == str(whence.check(whence.Explainer.from_pretrained(model), TEXT)) + "\n"
    assert result.stderr == ""
    assert "2 layers, 4 heads" in run("check", "--model", vit).stdout
    assert "image (10 positions)" in run("check", "--model", vit, "--input", pictures / "0.png").stdout


def test_the_version():
    assert run("--version").stdout == f"whence {whence.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option(command):
    for flag in ("--help", "-h"):
        shown = run(command, flag).stdout
        assert [name for name in COMMANDS[command] if name not in shown] == []
    assert command in run("--help").stdout


# -- a process of its own --------------------------------------------------------------------------------------------


def test_the_true_command(model, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "whence", "explain", "-", "--model", model, "--json", "--truncate"],
        input=b"good film\n" + b"bad " * 200, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    found = explanations(done.stdout.decode(), tmp_path)
    assert [e.scores.shape for e in found] == [(1, 4), (1, 100)]
    assert done.stderr.decode() == "whence: The text has 202 tokens and the model takes 100: the rest was not read.\n"


def test_a_reader_that_stops_reading(model):
    command = f"{sys.executable} -m whence explain '{TEXT}' --model {model} --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_long_text_is_read_in_windows(model):
    long = "the film is good " * 30
    command_refused(2, "Shorten it", "explain", long, "--model", model)
    shown = json.loads(run("explain", long, "--model", model, "--windows", "--json").stdout)
    assert len(shown["explanations"]) == 1
    assert '"windows"' in json.dumps(shown)
