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
from whence.app.model_registry import Shelf
from whence.app.query import SAID, Question
from whence.app.service import Desk
from whence.models import MODELS

TEXT = 'A gripping film, though it\'s "far" too long.\\n'


def answered(shelf, question):
    desk = Desk(shelf, log=Log(io.StringIO()))
    return desk.start("me", lambda work: desk.answer("me", question, work)).result()


def ran(program, folder, monkeypatch):
    """What a program saves, read back: it is run as it stands, but for the kind of its file."""
    monkeypatch.chdir(folder)
    exec(program.replace(".html'", ".json'"), {})
    found = [whence.load(path) for path in sorted(folder.glob("why*.json"))]
    return [e for one in found for e in (one if isinstance(one, whence.Explanations) else [one])]


def same(found, expected):
    assert len(found) == len(expected)
    for mine, shown in zip(found, expected, strict=True):
        assert mine.method == shown.method
        torch.testing.assert_close(mine.scores, shown.scores, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def shipped():
    return Shelf.shipped()


@pytest.mark.parametrize(
    "question",
    [
        Question("sentiment", TEXT),
        Question("sentiment", TEXT, methods=("generic-attention", "rollout"), targets=(SAID, "negative")),
        Question("sentiment", "A film.", "Another."),
        Question("digits", picture=DIGIT.name, targets=("digit 6",)),
    ],
)
def test_the_code_gives_the_numbers_of_the_page(shipped, question, tmp_path, monkeypatch):
    outcome = answered(shipped, question)
    program = code(outcome, shipped[question.model])
    assert len(program.splitlines()) == 4
    same(ran(program, tmp_path, monkeypatch), outcome.explanations)


def test_a_picture_that_was_uploaded_is_named_as_its_owner_did(shipped, tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    upload = tmp_path / "inside" / "it's mine.png"
    shutil.copyfile(DIGIT, upload)
    shutil.copyfile(DIGIT, tmp_path / upload.name)
    outcome = answered(shipped, Question("digits", upload=str(upload)))
    program = code(outcome, shipped["digits"])
    assert str(tmp_path) not in program
    same(ran(program, tmp_path, monkeypatch), outcome.explanations)


def test_a_model_of_ones_own_is_named_by_its_directory(tmp_path, monkeypatch):
    shutil.copytree(MODELS / "digits", tmp_path / "mine")
    shelf = Shelf.load([str(tmp_path / "mine")])
    outcome = answered(shelf, Question("mine", picture=DIGIT.name))
    program = code(outcome, shelf["mine"])
    assert "from_pretrained('mine')" in program
    assert str(tmp_path) not in program
    same(ran(program, tmp_path, monkeypatch), outcome.explanations)


@pytest.mark.parametrize("methods", [("generic-attention",), ("generic-attention", "gradient-x-input")])
@pytest.mark.parametrize("kind", ["writer", "finder"])
def test_tokens_and_objects_are_in_the_code(kind, methods, tmp_path, monkeypatch):
    explainer = {"writer": writer, "finder": finder}[kind]()
    monkeypatch.setattr(whence.Explainer, "from_pretrained", lambda _: explainer)
    shelf = Shelf.of({kind: explainer})
    upload = "" if kind == "writer" else str(DIGIT)
    question = Question(kind, "the good film" * (not upload), upload=upload, methods=methods, chosen=1)
    outcome = answered(shelf, question)
    assert len(outcome.explanations) == len(methods)
    if upload:
        shutil.copyfile(DIGIT, tmp_path / DIGIT.name)
    same(ran(code(outcome, shelf[kind]), tmp_path, monkeypatch), outcome.explanations)


def test_all_that_was_written_is_in_the_code_where_no_token_was_chosen(tmp_path, monkeypatch):
    explainer = writer()
    monkeypatch.setattr(whence.Explainer, "from_pretrained", lambda _: explainer)
    shelf = Shelf.of({"writer": explainer})
    outcome = answered(shelf, Question("writer", "the good film"))
    same(ran(code(outcome, shelf["writer"]), tmp_path, monkeypatch), list(outcome.generation))


@pytest.mark.parametrize("make", [clip, vilt])
def test_the_chosen_word_is_in_the_code(make, tmp_path, monkeypatch):
    explainer = make()
    monkeypatch.setattr(whence.Explainer, "from_pretrained", lambda _: explainer)
    shelf = Shelf.of({"pair": explainer})
    shutil.copyfile(DIGIT, tmp_path / DIGIT.name)
    outcome = answered(shelf, Question("pair", "a good film", upload=str(DIGIT), chosen=1))
    assert outcome.word is not None
    same(ran(code(outcome, shelf["pair"]), tmp_path, monkeypatch), [outcome.word])
