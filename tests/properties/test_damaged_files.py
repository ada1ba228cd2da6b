"""Damaged files: each loads, or is refused with a sentence; none brings a traceback, hangs, or fills the memory."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import random
import resource
import shutil
import time
import zlib
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from typing_extensions import TypeAliasType

import whence
from tests.support import processors, tiny
from tools.fuzz.damage import DEEP, bytes_damaged, json_damaged
from whence._utils.type_checks import fits
from whence.datasets.formats import open_path
from whence.inputs.image import read_image
from whence.models import MODELS
from whence.results.validation import first_fault

SECONDS, MEGABYTES = 20, 300


def survived(path, content, use, count, damage=bytes_damaged):
    """How many damaged files were loaded, and how many refused; anything else is an error."""
    path.write_bytes(content)
    use(path)  # undamaged it is fine
    outcomes = {"loaded": 0, "refused": 0}
    for number in range(count):
        damaged = damage(content, random.Random(f"{path.name}:{number}"))
        path.write_bytes(damaged)
        start, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            use(path)
            outcomes["loaded"] += 1
        except whence.WhenceError:
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"damage {number} of {path.name}: {type(error).__name__}: {error}") from error
        assert time.process_time() - start < SECONDS, f"damage {number} of {path.name} takes long"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
        assert grown < MEGABYTES, f"damage {number} of {path.name} takes {grown:.0f} MB"
    path.write_bytes(content)
    return outcomes


# -- explanations ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explanations():
    text = whence.Explainer.from_pretrained(MODELS / "sentiment")("a gripping film")
    digit = sorted((MODELS / "digits" / "examples").glob("*.png"))[0]
    picture = whence.Explainer.from_pretrained(MODELS / "digits")(str(digit))
    batch = whence.explain(tiny.bert(), tiny.padded([5, 3]), "conservative-lrp")
    return {"text": text, "picture": picture, "batch": batch, "several": whence.Explanations([text, picture])}


def load_and_show(path):
    found = whence.load(path)
    for e in found if isinstance(found, list) else [found]:
        assert repr(e)
        assert e[0].scores.shape[0] == 1
        assert "<" in e._repr_html_()
        assert repr(e.ledger)


@pytest.mark.parametrize("kind", ["text", "picture", "batch", "several"])
@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_a_damaged_explanation_can_be_shown_or_is_refused(tmp_path, explanations, kind, ending):
    path = tmp_path / f"{kind}.{ending}"
    explanations[kind].save(path)
    damage = json_damaged if ending == "json" else bytes_damaged
    outcomes = survived(path, path.read_bytes(), load_and_show, 25, damage)
    assert outcomes["refused"] > 5


def test_a_picture_inside_an_explanation_is_no_bomb(tmp_path, explanations):
    path = tmp_path / "bomb.json"
    explanations["picture"].save(path)
    header = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", (50_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00")
    bomb = header + _chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + _chunk(b"IEND", b"")
    content = path.read_text()
    start = content.index('"png": "') + 8
    path.write_text(content[:start] + base64.b64encode(bomb).decode() + content[content.index('"', start) :])
    with pytest.raises(whence.FileError, match="damaged"):
        whence.load(path)


def _chunk(name: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


@pytest.mark.parametrize(("field", "value"), [
    ("scores", torch.zeros(2)), ("scores", torch.full((1, 5), torch.nan)), ("special", torch.zeros(1, 2)),
    ("value", torch.zeros(1, 1)), ("labels", {0: 1}), ("target_names", ("a", "b", "c")), ("grid", (400, 400)),
    ("layers", torch.zeros(1, 2)), ("patch_start", -1.5), ("method", 3), ("streams", {"text": torch.zeros(1)}),
    ("options", ()), ("image_size", (0, 4)), ("origins", ({"text": "text"},)),
])  # fmt: skip
def test_what_is_wrong_with_an_explanation_is_said(explanations, field, value):
    e = explanations["text"]
    assert first_fault(e) == ""
    assert first_fault(dataclasses.replace(e, **{field: value}))


def test_values_are_held_against_annotations():
    assert fits((1, 2), tuple[int, ...])
    assert not fits((1, "2"), tuple[int, ...])
    assert not fits((1, 2, 3), tuple[int, int])
    assert not fits(True, int)
    assert fits(1, float)
    assert fits(None, int | None)
    assert fits({"a": 1}, dict[str, int])
    assert not fits([("a", 1)], dict[str, int])
    T = TypeVar("T")
    alias = TypeAliasType("alias", dict[str, T], type_params=(T,))  # as NumPy's, from Python 3.12 on
    assert fits({"a": 1}, alias[int])
    assert not fits({"a": "1"}, alias[int])


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "tiff", "webp", "ppm"])
def test_a_damaged_picture_is_read_or_refused(tmp_path, ending):
    path = tmp_path / f"p.{ending}"
    Image.fromarray((np.random.default_rng(0).random((20, 30, 3)) * 255).astype(np.uint8)).save(path)
    assert survived(path, path.read_bytes(), read_image, 60)["refused"] > 5


# -- tables ----------------------------------------------------------------------------------------------------------

DATA = {"text": [f'a text {i}, "é"' for i in range(40)], "label": [i % 3 for i in range(40)]}


def every_row(path):
    """All rows, going on after damaged ones; a file without end would be found out by its time."""
    rows, damaged = iter(open_path(path)), 0
    while damaged < 60:
        try:
            if next(rows, None) is None:
                return
        except whence.WhenceError as error:
            damaged += 1
            last = error
    raise last


def write_table(path):
    table = pa.table(DATA)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, compression=path.stem)
    elif path.suffix == ".arrow":
        make = pa.ipc.new_file if path.stem == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as out, make(out, table.schema) as writer:
            writer.write_table(table)
    else:
        rows = [dict(zip(DATA, values, strict=True)) for values in zip(*DATA.values(), strict=True)]
        lines = {
            ".jsonl": [json.dumps(row) for row in rows],
            ".csv": ["text,label", *(f'"{row["text"].replace(chr(34), chr(34) * 2)}",{row["label"]}' for row in rows)],
            ".tsv": ["text\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)],
        }[path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix]
        content = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("name", [
    "snappy.parquet", "zstd.parquet", "stream.arrow", "file.arrow", "t.jsonl", "t.csv", "t.tsv", "t.csv.gz",
    "t.jsonl.gz",
])  # fmt: skip
def test_a_damaged_table_is_read_or_refused(tmp_path, name):
    write_table(tmp_path / name)
    outcomes = survived(tmp_path / name, (tmp_path / name).read_bytes(), every_row, 120)
    assert sum(outcomes.values()) == 120


def test_rows_nested_too_deep_are_refused(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text('{"text": "a"}\n{"text": ' + "[" * DEEP + "]" * DEEP + "}\n")
    rows = iter(open_path(path))
    assert next(rows).input == "a"
    with pytest.raises(whence.InputError, match="row 2"):
        next(rows)


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return processors.saved(tmp_path_factory.mktemp("m") / "bert", processors.bert(processors.WORDS), processors.WORDS)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_model_explains_or_is_refused(tmp_path, directory, name):
    copied = shutil.copytree(directory, tmp_path / "copied")
    damage = json_damaged if name.endswith(".json") else bytes_damaged

    def explained(_):
        assert whence.Explainer.from_pretrained(copied)("a good film").scores.isfinite().all()

    outcomes = survived(copied / name, (copied / name).read_bytes(), explained, 25, damage)
    assert outcomes["refused"] > 5


@pytest.mark.parametrize(("changes", "match"), [
    ({"num_hidden_layers": 1 << 40}, "no model has more"), ({"num_labels": 1e12}, "no model has more"),
    ({"x": "deep"}, "damaged"),
])  # fmt: skip
def test_a_configuration_that_would_never_end_is_refused(tmp_path, directory, changes, match):
    copied = shutil.copytree(directory, tmp_path / "copied")
    config = json.loads((copied / "config.json").read_text())
    written = json.dumps(config | changes).replace('"deep"', "[" * DEEP + "]" * DEEP)
    (copied / "config.json").write_text(written)
    with pytest.raises(whence.FileError, match=match):
        whence.Explainer.from_pretrained(copied)
