"""Explanations on disk come back equal; what is damaged, older or newer is said to be so."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whence
from tests.support import cards, tiny
from whence._utils import atomic_files
from whence.errors import FileError, InputError, WriteError
from whence.results import serialization
from whence.results.input_origin import ImageOrigin, TextOrigin


@pytest.fixture(scope="module")
def explained():
    batch = tiny.padded([5, 3])
    return whence.explain(tiny.bert(), batch, "conservative-lrp")


def with_origin(e, origin):
    """A score for each of its tokens."""
    count = len(origin.tokens) if isinstance(origin, TextOrigin) else e.scores.shape[1]
    scores = torch.linspace(-1, 1, count)[None]
    fitting = {"scores": scores, "special": scores > 2, "streams": {"text": scores}, "layers": None}
    return replace(e[0], origins=({"text": origin},), **fitting)


@pytest.mark.parametrize("ending", ["json", "safetensors"])
@pytest.mark.parametrize("method", tiny.METHODS)
def test_every_method_comes_back_equal(tmp_path, method, ending):
    e = whence.explain(tiny.bert(), tiny.padded([5, 3]), method)
    e.save(tmp_path / f"e.{ending}")
    back = whence.load(tmp_path / f"e.{ending}")
    assert isinstance(back, whence.Explanation)
    assert back == e
    assert repr(back.ledger) == repr(e.ledger)
    assert repr(back.coverage) == repr(e.coverage)


@pytest.mark.parametrize("ending", ["json", "safetensors"])
@pytest.mark.parametrize("origin", cards.origins(), ids=lambda o: type(o).__name__)
def test_every_kind_of_input_comes_back_equal(tmp_path, explained, origin, ending):
    e = with_origin(explained, origin)
    e.save(tmp_path / f"e.{ending}")
    assert whence.load(tmp_path / f"e.{ending}") == e


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_several_come_back_as_several(tmp_path, explained, ending):
    several = whence.Explanations(explained)
    several.save(tmp_path / f"e.{ending}")
    back = whence.load(tmp_path / f"e.{ending}")
    assert isinstance(back, whence.Explanations)
    assert back == several


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_precision_and_odd_numbers_survive(tmp_path, explained, dtype):
    logits = torch.tensor([[1 / 3, -torch.inf, torch.inf], [torch.nan, 1e-30, -0.0]], dtype=dtype)
    e = replace(explained, logits=logits, scores=explained.scores.to(dtype))
    for ending in ("json", "safetensors"):
        e.save(tmp_path / f"e.{ending}")
        assert whence.load(tmp_path / f"e.{ending}") == e


def test_equal_means_all_of_it(explained):
    assert explained == replace(explained)
    for change in (
        {"scores": explained.scores + 1e-6}, {"method": "other"}, {"labels": {0: "x"}}, {"target_names": ("a", "b")},
        {"logits": explained.logits.double()}, {"streams": {"image": explained.scores}}, {"ledger": None},
    ):  # fmt: skip
        assert replace(explained, **change) != explained


# -- files that are not right ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(explained):
    return json.loads(serialization.to_json([explained.record()]))


def load(tmp_path, document, name="e.json"):
    (tmp_path / name).write_text(json.dumps(document))
    return whence.load(tmp_path / name)


@pytest.mark.parametrize(("version", "said"), [(2, "newer.*Upgrade"), (0, "no valid schema"), ("x", "no valid schema")])
def test_another_schema_version_is_refused_with_a_message(tmp_path, document, version, said):
    with pytest.raises(FileError, match=said):
        load(tmp_path, {**document, "version": version})


def test_a_file_from_an_older_schema_is_refused_with_a_message(tmp_path, document, monkeypatch):
    monkeypatch.setattr(serialization, "VERSION", 2)
    with pytest.raises(FileError, match="version 1 by an older Whence; this one reads version 2"):
        load(tmp_path, document)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"format": "other"}', b"\xff\xfe\x00"])
@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_what_is_no_explanation_is_said_to_be_none(tmp_path, content, ending):
    path = tmp_path / f"e.{ending}"
    path.write_bytes(content)
    with pytest.raises(FileError, match=path.name):
        whence.load(path)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_gives_a_clear_error_or_an_explanation(tmp_path_factory, data):
    """Cut short anywhere, or a byte changed anywhere: never another exception than ours."""
    e = whence.explain(tiny.bert(), tiny.ids(1, 3), "conservative-lrp")
    ending = data.draw(st.sampled_from(["json", "safetensors"]))
    content = bytearray(serialization.WRITERS[f".{ending}"]([e.record()]))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / f"e.{ending}"
    path.write_bytes(bytes(content))
    with contextlib.suppress(FileError):
        assert isinstance(whence.load(path), whence.Explanation)


@pytest.mark.parametrize("field", serialization.REQUIRED)
def test_a_missing_field_is_named(tmp_path, document, field):
    short = {k: v for k, v in document["explanations"][0].items() if k != field}
    with pytest.raises(FileError, match=field):
        load(tmp_path, {**document, "explanations": [short]})


def test_scores_that_do_not_fit_are_refused(tmp_path, document):
    one = dict(document["explanations"][0])
    one["special"] = {"dtype": "bool", "shape": [1, 2], "data": [True, False]}
    with pytest.raises(FileError, match="do not belong together"):
        load(tmp_path, {**document, "explanations": [one]})


def test_a_missing_file_and_an_unknown_ending_are_sentences(tmp_path, explained):
    with pytest.raises(FileError, match="no file"):
        whence.load(tmp_path / "none.json")
    with pytest.raises(FileError, match=r"only \.json and \.safetensors"):
        whence.load(tmp_path / "e.html")
    with pytest.raises(InputError, match=r"endings .html"):
        explained.save(tmp_path / "e.docx")


# -- written whole or not at all -------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    atomic_files.write(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WriteError, match="disk is full"):
        atomic_files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_no_half_written_file(explained):
    """A real one: the device that is always full."""
    with pytest.raises(WriteError):
        atomic_files.write("/dev/full/e.json", b"x")


@pytest.mark.parametrize("place", ["file/e.json", "folder"])
def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteError, match="could not be written"):
        atomic_files.write(tmp_path / place, b"x")


def test_pixels_are_kept_to_the_bit(tmp_path, explained):
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    origin = ImageOrigin(image, (1.0, 1.0), (0.0, 0.0), (7, 9))
    e = replace(explained[0], origins=({"image": origin},))
    e.save(tmp_path / "e.json")
    assert np.array_equal(whence.load(tmp_path / "e.json").origins[0]["image"].image, image)
