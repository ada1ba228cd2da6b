"""Datasets by name: what they hold, and where they are looked for."""

from __future__ import annotations

import csv
import json
import tarfile

import numpy as np
import pytest

from tests.support.datasets import triples, write
from tests.support.goldens import shared
from whence.datasets import NAMED, Item, load
from whence.datasets.archives import merged
from whence.errors import FileError, InputError


def test_where_a_named_set_is_looked_for_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("WHENCE_DATA", raising=False)
    with pytest.raises(FileError, match=r"Socher.*sst2/dev\.tsv.*WHENCE_DATA"):
        load("sst2")
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(FileError, match="is not in"):
        load("sst2")
    with pytest.raises(FileError, match=r"nor the name of a dataset: sst2, imdb"):
        load("sst3")
    with pytest.raises(InputError, match="train, heldout, dev, not 'test'"):
        load("sst2", split="test")
    with pytest.raises(InputError, match="are known"):
        load("sst2", text="sentence")
    with pytest.raises(InputError, match="'texts' is no kind of column"):
        load(tmp_path, texts="a")


COUNTS = {
    "sst2": {"heldout": 6735, "dev": 872}, "imdb": {"train": 5000, "test": 2000}, "mnist": {"test": 10_000},
    "bace": {"train": 1221, "val": 140, "test": 152}, "tweeteval-emotion": {"train": 3257, "val": 374, "test": 1421},
    "tweeteval-hate": {"val": 999, "test": 2970}, "tweeteval-sentiment": {"val": 2000, "test": 12_284},
    "meld-sentiment": {"train": 9989, "dev": 1109, "test": 2610},
    "eraser-movies": {"train": 1600, "val": 200, "test": 199}, "pets": {"all": 300},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_named_sets_are_whole_and_their_labels_are_classes(name):
    root = shared("data")
    for split, count in COUNTS[name].items():
        dataset = load(name, root=root, split=split)
        items = list(dataset)
        assert len({item.id for item in items}) == len(items) == count
        assert all(item.input is not None and len(item.input) for item in items)
        labels = {item.label for item in items}
        assert labels == set(dataset.labels) if dataset.labels else all(isinstance(label, int) for label in labels)


def test_molecules_are_in_one_split_only():
    splits = [{item.input for item in load("bace", root=shared("data"), split=s)} for s in ("train", "val", "test")]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 1513


def test_rationales_are_the_annotators_own_words():
    archive = shared("data", "eraser_movies.tar.gz")
    with tarfile.open(archive) as tar:
        row = json.loads(tar.extractfile("eraser_movies/test.jsonl").readline())
    item = next(i for i in load("eraser-movies", root=archive.parent) if f"{i.id}.txt" == row["annotation_id"])
    marked = " ".join(" ".join(item.input[a:b].split()) for a, b in item.rationale)
    assert all(e["text"] in marked for group in row["evidences"] for e in group)
    assert all(0 <= a < b <= len(item.input) for a, b in item.rationale)


def test_masks_of_pets_lie_on_their_pictures():
    image = pytest.importorskip("PIL.Image")
    for item in load("pets", root=shared("data")).sample(3):
        mask = item.mask()
        assert mask.dtype == np.int8
        assert set(np.unique(mask)) == {-1, 0, 1}
        assert image.open(item.input).size[::-1] == mask.shape
    index = {row["name"]: row for row in csv.DictReader(shared("data", "pets_seg", "index.csv").open())}
    assert abs((mask == 1).mean() - float(index[item.id]["fg_fraction"])) < 1e-3
    assert item.label == int(index[item.id]["imagenet_index"])


def test_digits_are_arrays_with_the_label_beside_them():
    items = load("mnist", root=shared("data")).sample(2000)
    assert items[0].input.shape == (28, 28)
    assert items[0].input.dtype == np.uint8
    ink = {digit: np.mean([i.input.mean() for i in items if i.label == digit]) for digit in "01"}
    assert ink["0"] > 1.8 * ink["1"]  # a zero has about twice the ink of a one


def test_quotes_that_were_misread_are_mended(tmp_path):
    rows = "Utterance,Sentiment,Emotion\nYou\x92re \x93late\x94,negative,anger\n"
    write(tmp_path / "meld" / "test_sent_emo.csv", rows)
    assert triples(load("meld-sentiment", root=tmp_path)) == [("1", "You\u2019re \u201clate\u201d", "negative")]


def test_texts_and_labels_must_be_as_many(tmp_path):
    write(tmp_path / "tweeteval" / "hate" / "test_text.txt", "a\n\nc\nd\n")
    labels = write(tmp_path / "tweeteval" / "hate" / "test_labels.txt", "0\n1\n1\n0\n")
    assert triples(load("tweeteval-hate", root=tmp_path)) == [
        ("1", "a", "not-hate"),
        ("3", "c", "hate"),
        ("4", "d", "not-hate"),
    ]
    labels.write_text("0\n1\n1\n")
    with pytest.raises(InputError, match="as many lines"):
        list(load("tweeteval-hate", root=tmp_path))
    labels.write_text("0\n1\n7\n0\n")
    with pytest.raises(InputError, match=r"test_labels.txt', row 3: the label is 7"):
        list(load("tweeteval-hate", root=tmp_path))


def test_archives_that_are_damaged_are_said_to_be(tmp_path):
    write(tmp_path / "movies.tar.gz", b"")
    (tmp_path / "movies.tar.gz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="damaged"):
        list(load("eraser-movies", root=tmp_path))
    write(tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz", np.array([2051, 9, 28, 28], ">i4").tobytes())
    write(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", np.array([2049, 9], ">i4").tobytes())
    with pytest.raises(InputError, match="damaged"):
        list(load("mnist", root=tmp_path))


def test_spans_are_merged():
    assert merged([(5, 9), (0, 3), (2, 4), (4, 4)]) == ((0, 4), (5, 9))
    assert Item("1", "a").rationale is None
