"""The lines of Python that the page offers are run, and come to the numbers that the page shows."""

from __future__ import annotations

import io
import shutil

import pytest
import torch

import whence
from tests.support.modalities import clip, vilt
from tests.support.visits import DIGIT, finder, writer
from whence.app.code_snippet import code
from whence.app.log import Log
from whence.app.model_registry import ModelRegistry
from whence.app.query import PREDICTION, Query
from whence.app.service import ExplanationService
from whence.models import MODELS

TEXT = 'A gripping film, though it\'s "far" too long.\\n'


def answered(models, query):
    service = ExplanationService(models, log=Log(io.StringIO()))
    return service.start("me", lambda task: service.answer("me", query, task)).result()


def ran(program, folder, monkeypatch):
    """What a program saves, read back: it is run as it stands, but for the kind of its file."""
    monkeypatch.chdir(folder)
    exec(program.replace(".html'", ".json'"), {})
    found = [whence.load(path) for path in sorted(folder.glob("why*.json"))]
    return [e for one in found for e in (one if isinstance(one, whence.Explanations) else [one])]


def same_scores(found, expected):
    assert len(found) == len(expected)
    for mine, shown in zip(found, expected, strict=True):
        assert mine.method == shown.method
        rounding = 1e-5 * float(shown.scores.abs().max())  # of float32, which differs from one CPU to another
        torch.testing.assert_close(mine.scores, shown.scores, rtol=1e-4, atol=rounding)


@pytest.fixture(scope="module")
def shipped():
    return ModelRegistry.shipped()


@pytest.mark.parametrize(
    "query",
    [
        Query("sentiment", TEXT),
        Query("sentiment", TEXT, methods=("generic-attention", "rollout"), targets=(PREDICTION, "negative")),
        Query("sentiment", "A film.", "Another."),
        Query("digits", picture=DIGIT.name, targets=("digit 6",)),
    ],
)
def test_the_code_gives_the_numbers_of_the_page(shipped, query, tmp_path, monkeypatch):
    result = answered(shipped, query)
    program = code(result, shipped[query.model])
    assert len(program.splitlines()) == 4
    same_scores(ran(program, tmp_path, monkeypatch), result.explanations)


def test_a_picture_that_was_uploaded_is_named_as_its_owner_did(shipped, tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    upload = tmp_path / "inside" / "it's mine.png"
    shutil.copyfile(DIGIT, upload)
    shutil.copyfile(DIGIT, tmp_path / upload.name)
    result = answered(shipped, Query("digits", upload=str(upload)))
    program = code(result, shipped["digits"])
    assert str(tmp_path) not in program
    same_scores(ran(program, tmp_path, monkeypatch), result.explanations)


def test_a_model_of_ones_own_is_named_by_its_directory(tmp_path, monkeypatch):
    shutil.copytree(MODELS / "digits", tmp_path / "mine")
    models = ModelRegistry.load([str(tmp_path / "mine")])
    result = answered(models, Query("mine", picture=DIGIT.name))
    program = code(result, models["mine"])
    assert "from_pretrained('mine')" in program
    assert str(tmp_path) not in program
    same_scores(ran(program, tmp_path, monkeypatch), result.explanations)


@pytest.mark.parametrize("methods", [("generic-attention",), ("generic-attention", "gradient-x-input")])
@pytest.mark.parametrize("kind", ["writer", "finder"])
def test_tokens_and_objects_are_in_the_code(kind, methods, tmp_path, monkeypatch):
    explainer = {"writer": writer, "finder": finder}[kind]()
    monkeypatch.setattr(whence.Explainer, "from_pretrained", lambda _: explainer)
    models = ModelRegistry.from_explainers({kind: explainer})
    upload = "" if kind == "writer" else str(DIGIT)
    query = Query(kind, "the good film" * (not upload), upload=upload, methods=methods, chosen=1)
    result = answered(models, query)
    assert len(result.explanations) == len(methods)
    if upload:
        shutil.copyfile(DIGIT, tmp_path / DIGIT.name)
    same_scores(ran(code(result, models[kind]), tmp_path, monkeypatch), result.explanations)


def test_all_that_was_written_is_in_the_code_where_no_token_was_chosen(tmp_path, monkeypatch):
    explainer = writer()
    monkeypatch.setattr(whence.Explainer, "from_pretrained", lambda _: explainer)
    models = ModelRegistry.from_explainers({"writer": explainer})
    result = answered(models, Query("writer", "the good film"))
    same_scores(ran(code(result, models["writer"]), tmp_path, monkeypatch), list(result.generation))


@pytest.mark.parametrize("make", [clip, vilt])
def test_the_chosen_word_is_in_the_code(make, tmp_path, monkeypatch):
    explainer = make()
    monkeypatch.setattr(whence.Explainer, "from_pretrained", lambda _: explainer)
    models = ModelRegistry.from_explainers({"pair": explainer})
    shutil.copyfile(DIGIT, tmp_path / DIGIT.name)
    result = answered(models, Query("pair", "a good film", upload=str(DIGIT), chosen=1))
    assert result.word_explanation is not None
    same_scores(ran(code(result, models["pair"]), tmp_path, monkeypatch), [result.word_explanation])
