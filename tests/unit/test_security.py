"""What SECURITY.md promises: nothing runs code from a file, nothing unpacks without bounds, text stays text."""

from __future__ import annotations

import ast
import base64
import gzip
import io
import json
import re
import struct
import tarfile
import tomllib
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import whence
from whence._utils.image_files import FORMATS, open_image
from whence.datasets import archives
from whence.datasets.directory import tables
from whence.datasets.named import load as load_data
from whence.inputs import audio
from whence.inputs.image import read_image

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "whence").rglob("*.py"))
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads", "pickle.Unpickler",
    "marshal.loads", "shelve.open", "torch.load", "numpy.load", "np.load", "joblib.load", "yaml.load", "subprocess.run",
    "subprocess.Popen", "subprocess.call", "subprocess.check_output", "tarfile.TarFile.extractall", "tar.extractall",
    "tar.extract", "zipfile.ZipFile", "urllib.request.urlopen", "requests.get", "image.open", "Image.open",
}  # fmt: skip
#: each with its reason
ALLOWED = {
    (
        "jobs/ray_engine.py",
        "pickle.loads",
    ): "parts of a job between its own processes, as Ray's own objects; never a file",
    (
        "inputs/sentence_directory.py",
        "torch.load",
    ): "weights of a sentence encoder: tensors only, if pickles are allowed",
    ("app/html_fragments.py", "Image.open"): "the examples that come with a model that the operator chose",
}


def called(tree):
    """The dotted name of everything that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func)


def test_the_source_calls_nothing_that_runs_code_from_data():
    found = {
        (path.relative_to(ROOT / "src" / "whence").as_posix(), name)
        for path in SOURCES
        for name in called(ast.parse(path.read_text()))
        if name in FORBIDDEN
    }
    opened_in_one_place = {("_utils/image_files.py", "image.open")}
    assert found == set(ALLOWED) | opened_in_one_place


def test_no_markup_is_made_by_the_pages_scripts():
    for path in (ROOT / "src" / "whence").rglob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", path.read_text()
        )


def test_every_dependency_has_a_lower_bound_and_an_upper_major():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    loose = [
        line
        for name, lines in groups.items()
        for line in lines
        if name != "dev" and not line.startswith("whence[") and not re.search(r">=[\d.]+,<\d+(\.\d+)?$", line)
    ]
    assert loose == []


# -- models ----------------------------------------------------------------------------------------------------------


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickled_weights_are_not_opened(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    torch.save({"weight": Trap(tmp_path / "sprung")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(whence.ModelError, match="pickled"):
        whence.Explainer.from_pretrained(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    config = {
        "model_type": "trap", "architectures": ["Trap"],
        "auto_map": {"AutoConfig": "trap.TrapConfig", "AutoModel": "trap.Trap"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    (tmp_path / "model.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(whence.ModelError, match="brings its own Python code"):
        whence.Explainer.from_pretrained(tmp_path)
    assert not (tmp_path / "sprung").exists()


# -- pictures --------------------------------------------------------------------------------------------------------


def png(width, height):
    """A small file that unpacks to a large picture."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    packer = zlib.compressobj(9)
    row = b"\0" * (1 + -(-width // 8))
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def bomb():
    """Between the size at which Pillow warns and that at which it refuses."""
    content = png(12_000, 8_000)
    assert len(content) < 50_000
    return content


def test_a_picture_that_unpacks_to_too_much_is_refused_wherever_it_comes_from(bomb, tmp_path):
    (tmp_path / "bomb.png").write_bytes(bomb)
    with pytest.raises(whence.InputError, match="decompression bomb"):
        read_image(tmp_path / "bomb.png")
    with pytest.raises(whence.InputError, match="cannot be read"):
        archives.trimap(tmp_path / "bomb.png")
    with pytest.raises(Image.DecompressionBombError):
        open_image(io.BytesIO(bomb))
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"image": [{"bytes": bomb, "path": None}]}), tmp_path / "bomb.parquet")
    with pytest.raises(whence.InputError, match="row 1: 'image' is not a picture that can be read"):
        next(iter(load_data(tmp_path / "bomb.parquet")))


def test_a_saved_explanation_with_a_bomb_in_it_is_refused(bomb, tmp_path):
    e = whence.explain(torch.nn.Linear(3, 2), torch.ones(1, 3), "gradient-x-input", 1)
    e.save(tmp_path / "e.json")
    document = json.loads((tmp_path / "e.json").read_text())
    document["explanations"][0]["scores"] = {"png": base64.b64encode(bomb).decode()}
    (tmp_path / "e.json").write_text(json.dumps(document))
    with pytest.raises(whence.FileError, match="DecompressionBombError"):
        whence.load(tmp_path / "e.json")


def test_a_format_that_starts_another_program_is_no_picture(tmp_path, monkeypatch):
    """EPS under the name of a PNG: Pillow would hand it to Ghostscript."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert Image.open(tmp_path / "a.png").format == "EPS"  # the file is one
    with pytest.raises(whence.InputError, match="not a picture"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("AVIF", "MPO")])
def test_the_usual_formats_are_read(name, tmp_path):
    path = tmp_path / "picture"
    Image.new("RGB", (20, 10), (200, 30, 30)).save(path, name)
    assert read_image(path)[0].size == (20, 10)


# -- archives, tables, recordings ------------------------------------------------------------------------------------


def eraser(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content)
            info.linkname = "/etc/hostname" if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(content))


NOTE = {"annotation_id": "a.txt", "evidences": [], "classification": "POS"}


def test_members_that_lead_out_of_an_archive_are_neither_followed_nor_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = [
        ("movies/test.jsonl", json.dumps(NOTE).encode(), tarfile.REGTYPE),
        ("../../escaped.txt", b"out", tarfile.REGTYPE),
        ("movies/docs/a.txt", b"", tarfile.SYMTYPE),
    ]
    eraser("movies.tar.gz", members)
    with pytest.raises(whence.InputError, match=r"the document a.txt is not in it"):
        list(archives.reviews(Path("movies.tar.gz"), "test"))
    assert [p.name for p in tmp_path.iterdir()] == ["movies.tar.gz"]
    assert not (tmp_path.parent.parent / "escaped.txt").exists()


def test_a_member_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 1000)
    eraser(tmp_path / "movies.tar.gz", [("movies/test.jsonl", b" " * 1001, tarfile.REGTYPE)])
    with pytest.raises(whence.InputError, match="more than 1,000"):
        list(archives.reviews(tmp_path / "movies.tar.gz", "test"))


@pytest.mark.parametrize(("height", "width"), [(2**31 - 1, 2**31 - 1), (-1, 1), (0, 28), (5000, 1)])
def test_sizes_that_a_file_only_claims_are_not_believed(height, width, tmp_path):
    images, labels = tmp_path / "images.gz", tmp_path / "labels.gz"
    images.write_bytes(gzip.compress(np.array([2051, 1, height, width], ">i4").tobytes() + b"\0" * 10_000))
    labels.write_bytes(gzip.compress(np.array([2049, 1], ">i4").tobytes() + b"\1"))
    with pytest.raises(whence.InputError, match="its pictures would be"):
        next(archives.digits(images, labels))


def test_a_line_that_never_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("whence.datasets.text_tables.LONGEST_LINE", 1 << 16)
    path = tmp_path / "long.txt.gz"
    path.write_bytes(gzip.compress(b"a" * (1 << 20)))
    assert path.stat().st_size < 5000
    with pytest.raises(whence.InputError, match="more than 65,536 bytes"):
        list(load_data(path))


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/hostname", "inner/data.arrow"])
def test_a_dataset_reads_no_file_outside_its_directory(name, tmp_path):
    directory = tmp_path / "set"
    directory.mkdir()
    (tmp_path / "secret.arrow").write_bytes(b"secret")
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(whence.FileError, match="a file elsewhere, which is not read"):
        tables(directory, None)


def test_a_recording_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "silence.flac", np.zeros((5000, 2), np.float32), 16000)
    assert audio.read_waveform(tmp_path / "silence.flac", 16000)[0].shape == (5000,)
    monkeypatch.setattr(audio, "LONGEST", 9999)
    with pytest.raises(whence.InputError, match=r"5,000 samples of 2 channels"):
        audio.read_waveform(tmp_path / "silence.flac", 16000)


# -- what is written -------------------------------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize("ending", ["html", "svg"])
def test_text_stays_text_in_files(ending, tmp_path):
    """More of it in test_html.py, test_figure.py and, in a browser, test_browser.py."""
    pytest.importorskip("matplotlib")
    folder = ROOT / "src" / "whence" / "models" / "sentiment"
    e = whence.Explainer.from_pretrained(folder)(f'{SCRIPT} "onload=alert(1) a good film &amp; more')
    e.save(tmp_path / f"why.{ending}")
    text = (tmp_path / f"why.{ending}").read_text()
    assert "<script>alert" not in text
    assert not re.search(r"<[^>]*\sonload=", text)
