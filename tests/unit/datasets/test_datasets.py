"""Datasets: every format, and what is wrong with a file is said in a sentence."""

from __future__ import annotations

import csv
import io
import json
import pickle
import random
import tracemalloc

import numpy as np
import pytest

from tests.support.datasets import triples, write
from whence.datasets import load, read
from whence.datasets import text_tables as tables
from whence.datasets.column_roles import to_label
from whence.errors import FileError, InputError

ROWS = [("a", "one, two", 0), ("b", 'she said "no"', 1), ("c", "zwei\nZeilen", 1), ("d", "café 🎬 ", 0)]
HUB = {b"huggingface": json.dumps({"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}})}


def write_csv(path, rows=ROWS, end="\r\n"):
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerows([("id", "text", "label"), *rows])
    return write(path, out.getvalue())


def write_jsonl(path, rows=ROWS):
    return write(path, "".join(json.dumps({"id": i, "text": t, "label": n}) + "\n" for i, t, n in rows))


def arrow_table(rows=ROWS, note=HUB):
    pa = pytest.importorskip("pyarrow")
    ids, texts, labels = map(list, zip(*rows, strict=True))
    return pa.table({"id": ids, "text": texts, "label": labels}).replace_schema_metadata(note)


def write_parquet(path, rows=ROWS, note=HUB):
    table = arrow_table(rows, note)
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=2)
    return path


def save_to_disk(directory, parts, note=HUB):
    """As HuggingFace's datasets writes a split: arrow streams, and a list of them."""
    ipc = pytest.importorskip("pyarrow.ipc")
    names = [f"data-{i:05}-of-{len(parts):05}.arrow" for i in range(len(parts))]
    directory.mkdir(parents=True)
    for name, rows in zip(names, parts, strict=True):
        table = arrow_table(rows, note)
        with ipc.new_stream(directory / name, table.schema) as stream:
            stream.write_table(table)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (directory / "dataset_info.json").write_text("{}")
    return directory


def picture(path, grey=128):
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("L", (4, 3), grey).save(path)
    return path


# -- files of rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("writer", [write_csv, write_jsonl])
def test_rows_come_back_as_they_were_written(tmp_path, writer, ending):
    kind = "csv" if writer is write_csv else "jsonl"
    assert triples(read(writer(tmp_path / f"x.{kind}{ending}"))) == ROWS


def test_tsv_takes_quotes_as_they_are(tmp_path):
    path = write(tmp_path / "x.tsv", 'sentence\tlabel\n"so" they say\t1\n\'s "open\t0\n')
    assert triples(read(path)) == [("1", '"so" they say', 1), ("2", "'s \"open", 0)]


def test_lines_of_a_text_file_are_its_samples_and_keep_their_numbers(tmp_path):
    path = write(tmp_path / "x.txt", "\ufeffone\r\n\r\ntwo\u2028still two\nthree")
    assert triples(read(path)) == [("1", "one", None), ("3", "two\u2028still two", None), ("4", "three", None)]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.tsv"])
def test_a_byte_order_mark_crlf_and_empty_lines_are_not_data(tmp_path, name):
    content = {
        "x.csv": "text,label\r\n\r\nhello,1\r\n\r\n", "x.tsv": "text\tlabel\r\n\r\nhello\t1\r\n",
        "x.jsonl": '{"text": "hello", "label": 1}\r\n\r\n \r\n',
    }[name]  # fmt: skip
    path = write(tmp_path / name, b"\xef\xbb\xbf" + content.encode())
    assert triples(read(path)) == [("1", "hello", 1)]


def test_huge_fields_are_read(tmp_path):
    long = "word " * 100_000
    assert [item.input for item in read(write_csv(tmp_path / "x.csv", [("a", long, 0)]))] == [long]


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path, monkeypatch):
    before = csv.field_size_limit()
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    try:
        csv.field_size_limit(1000)
        path = write(tmp_path / "x.csv", 'text\nfine\n"open\n' + "line\n" * 1000)
        rows = read(path)
        assert next(rows).input == "fine"
        with pytest.raises(InputError, match=r"x\.csv', row 2: .*quote"):
            next(rows)
    finally:
        csv.field_size_limit(before)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 1000)
    with pytest.raises(InputError, match="row 2: the line has more than 1,000 bytes"):
        list(read(write(tmp_path / "x.txt", "short\n" + "x" * 5000)))


@pytest.mark.parametrize("writer", [write_jsonl, write_csv, write_parquet])
def test_the_whole_is_never_in_memory(tmp_path, writer):
    rows = [(str(i), f"{i} is a text of some length " * 20, 0) for i in range(8000)]
    size = sum(len(text) for _, text, _ in rows)
    path = writer(tmp_path / {write_csv: "x.csv", write_jsonl: "x.jsonl"}.get(writer, "x.parquet"), rows)
    next(read(path))  # what is imported on first use
    tracemalloc.start()
    assert sum(1 for _ in read(path)) == 8000
    load(path).sample(5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 10


# -- damage ------------------------------------------------------------------------------------------------------------

DAMAGED = {
    "x.jsonl": b'{"text": "a"}\n{"text": \n{"text": "b"}\n',
    "array.jsonl": b'{"text": "a"}\n["b"]\n{"text": "b"}\n',
    "lacks.jsonl": b'{"text": "a"}\n{"txt": "x"}\n{"text": "b"}\n',
    "number.jsonl": b'{"text": "a"}\n{"text": 5}\n{"text": "b"}\n',
    "bytes.jsonl": b'{"text": "a"}\n{"text": "\xff"}\n{"text": "b"}\n',
    "bytes.csv": b"text\na\n\xff\nb\n",
    "bytes.txt": b"a\n\xff\nb\n",
    "few.csv": b"id,text\n1,a\n2\n3,b\n",
    "many.tsv": b"id\ttext\n1\ta\n2\tx\ty\n3\tb\n",
    "id.jsonl": b'{"id": 1, "text": "a"}\n{"id": null, "text": "x"}\n{"id": 3, "text": "b"}\n',
    "label.jsonl": b'{"text": "a", "label": 1}\n{"text": "x", "label": [1, 2]}\n{"text": "b", "label": 0}\n',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_row_is_named_and_the_others_are_still_read(tmp_path, name):
    rows = read(write(tmp_path / name, DAMAGED[name]))
    assert next(rows).input == "a"
    with pytest.raises(InputError, match=rf"{name}', row 2: "):
        next(rows)
    assert [item.input for item in rows] == ["b"]


def test_a_packed_file_that_is_cut_short_is_damaged(tmp_path):
    path = write_jsonl(tmp_path / "x.jsonl.gz", [(str(i), str(random.Random(i).random()), 0) for i in range(2000)])
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match="damaged after line"):
        list(read(path))
    with pytest.raises(InputError, match="damaged after line 0"):
        list(read(write(tmp_path / "y.jsonl", "no gzip").rename(tmp_path / "y.jsonl.gz")))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "", "is empty"),
        ("x.jsonl", "\n", "is empty"),
        ("x.json", '[\n{"text": "a"}\n]', "one JSON array"),
        ("x.csv", "text,text\na,b\n", "more than one column 'text'"),
        ("x.csv", "remark,label\na,b\n", "it has 'remark', 'label'"),
        ("x.csv", "text,sentence\na,b\n", "'text', 'sentence'"),
        ("x.csv", "text,image\na,b\n", "'text', 'image'"),
        ("x.csv", "text,sentiment,emotion\na,b,c\n", "may be the label: 'sentiment', 'emotion'"),
        ("x.parquet", "PAR1", "damaged"),
        ("x.arrow", "nothing", "damaged"),
    ],
)
def test_what_is_missing_or_ambiguous_is_said(tmp_path, name, content, said):
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    with pytest.raises(InputError, match=said):
        read(write(tmp_path / name, content))


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(FileError, match="There is no file"):
        read(tmp_path / "none.csv")
    with pytest.raises(FileError, match="of no kind"):
        read(write(tmp_path / "x.doc", "text"))
    with pytest.raises(FileError, match="of no kind"):
        read(write(tmp_path / "x.parquet.gz", "text"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no tables and no pictures"):
        read(tmp_path / "empty")
    with pytest.raises(InputError, match="no column 'body'; it has 'text'"):
        read(write(tmp_path / "x.csv", "text\na\n"), text="body")
    with pytest.raises(InputError, match="no splits"):
        read(tmp_path / "x.csv", split="train")


# -- columns -----------------------------------------------------------------------------------------------------------


def test_columns_are_found_by_usual_names_in_any_case_or_named(tmp_path):
    path = write(tmp_path / "x.csv", "Utterance,Remark,Sentiment,Emotion\nhi,there,positive,joy\n")
    with pytest.raises(InputError, match="may be the label"):
        read(path)
    assert triples(read(path, label="Emotion")) == [("1", "hi", "joy")]
    assert triples(read(path, label="", text="Remark", id="Emotion")) == [("joy", "there", None)]
    assert triples(read(path, label="", text=("Utterance", "Remark"))) == [("1", ("hi", "there"), None)]


def test_pairs_are_found_by_usual_names(tmp_path):
    path = write(tmp_path / "x.jsonl", '{"premise": "a", "hypothesis": "b", "label": 2}\n')
    assert triples(read(path)) == [("1", ("a", "b"), 2)]
    path = write(tmp_path / "y.jsonl", '{"question": "a", "sentence": "b"}\n')
    assert triples(read(path)) == [("1", ("a", "b"), None)]


def test_pictures_of_a_table_lie_beside_it(tmp_path):
    path = write(tmp_path / "metadata.csv", "file_name,label,text\na.png,3,a cat\n")
    assert triples(read(path, image="file_name")) == [("1", str(tmp_path / "a.png"), 3)]
    both = next(read(path, image="file_name", text="text"))
    assert both.input == {"image": str(tmp_path / "a.png"), "text": "a cat"}


def test_labels_are_names_numbers_or_nothing():
    assert [to_label(x) for x in ("1", " -2 ", "joy", 1.0, True, "", None, float("nan"), 2.5)] == [
        1, -2, "joy", 1, 1, None, None, None, "2.5",
    ]  # fmt: skip
    assert [to_label(x, ("no", "yes")) for x in (0, "1", "yes", -1)] == ["no", "yes", "yes", None]
    with pytest.raises(InputError, match="2, and there are 2 classes"):
        to_label(2, ("no", "yes"))


# -- parquet, arrow, directories ---------------------------------------------------------------------------------------

NAMED_ROWS = [(i, text, ("no", "yes")[label]) for i, text, label in ROWS]


def test_parquet_and_arrow_give_class_names_and_a_length(tmp_path):
    for path in (write_parquet(tmp_path / "x.parquet"), save_to_disk(tmp_path / "saved", [ROWS[:3], ROWS[3:]])):
        dataset = load(path)
        assert triples(dataset) == NAMED_ROWS
        assert (dataset.labels, len(dataset)) == (("no", "yes"), 4)
    pytest.importorskip("pyarrow.feather").write_feather(arrow_table(note={}), tmp_path / "x.arrow")
    assert triples(load(tmp_path / "x.arrow")) == ROWS
    assert load(tmp_path / "x.arrow").labels is None


def test_rows_without_id_are_numbered_in_their_file(tmp_path):
    for i in range(2):
        write_parquet(tmp_path / "data" / f"train-0000{i}-of-00002.parquet", ROWS[2 * i : 2 * i + 2])
    ids = [item.id for item in load(tmp_path, id="")]
    assert ids == [f"train-0000{i}-of-00002.parquet:{row}" for i in range(2) for row in (1, 2)]


def test_a_saved_dataset_with_splits_needs_one(tmp_path):
    for split, rows in (("train", ROWS[:1]), ("validation", ROWS[1:])):
        save_to_disk(tmp_path / split, [rows])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert triples(load(tmp_path, split="dev")) == NAMED_ROWS[1:]
    assert load(tmp_path, split="dev").split == "validation"
    with pytest.raises(InputError, match="train, validation, and none was chosen"):
        load(tmp_path)
    with pytest.raises(InputError, match="not 'test'"):
        load(tmp_path, split="test")
    (tmp_path / "train" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(FileError, match="incomplete"):
        load(tmp_path, split="train")


def test_splits_are_words_of_file_names(tmp_path):
    write_csv(tmp_path / "my_train.csv", ROWS[:1])
    write_csv(tmp_path / "my_test-v2.csv", ROWS[1:])
    write(tmp_path / "README.md", "about")
    assert triples(load(tmp_path, split="train")) == ROWS[:1]
    assert triples(load(tmp_path, split="test")) == ROWS[1:]
    write_jsonl(tmp_path / "more" / "test.jsonl")
    with pytest.raises(InputError, match="several folders"):
        load(tmp_path, split="test")
    write_jsonl(tmp_path / "train.jsonl")
    with pytest.raises(InputError, match=r"my_train.csv and train.jsonl"):
        load(tmp_path, split="train")


def test_files_of_one_split_must_have_the_same_columns(tmp_path):
    write_csv(tmp_path / "a.csv")
    write(tmp_path / "b.csv", "text\nhello\n")
    with pytest.raises(InputError, match="other columns"):
        load(tmp_path)


def test_folders_of_pictures_are_classes_or_splits(tmp_path):
    for name in ("test/cat/1.png", "test/cat/2.JPG", "test/train/3.png", "train/dog/4.png"):
        picture(tmp_path / name)
    write(tmp_path / "test" / "cat" / "notes.txt", "no picture")
    dataset = load(tmp_path, split="test")
    assert [(i.id, i.label) for i in dataset] == [("cat/1.png", "cat"), ("cat/2.JPG", "cat"), ("train/3.png", "train")]
    assert (dataset.labels, len(dataset), dataset.split) == (("cat", "train"), 3, "test")
    flat = load(tmp_path / "test" / "cat")
    assert (flat.labels, [(i.id, i.label) for i in flat]) == (None, [("1.png", None), ("2.JPG", None)])
    with pytest.raises(InputError, match="train, and none"):
        load(tmp_path)
    with pytest.raises(InputError, match="without splits"):
        load(tmp_path / "test", split="train")


def test_pictures_inside_a_parquet_file_are_opened(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = picture(tmp_path / "a.png", grey=77).read_bytes()
    stored = [{"bytes": content, "path": None}, {"bytes": None, "path": "a.png"}, {"bytes": b"no", "path": "b.png"}]
    parquet.write_table(pa.table({"image": stored, "label": [1, 0, 1]}), tmp_path / "x.parquet")
    rows = read(tmp_path / "x.parquet")
    assert np.asarray(next(rows).input)[0, 0] == 77
    assert next(rows).input == str(tmp_path / "a.png")
    with pytest.raises(InputError, match="row 3: 'image' is not a picture"):
        next(rows)


# -- datasets ----------------------------------------------------------------------------------------------------------


def test_a_sample_depends_on_ids_and_seed_alone(tmp_path):
    rows = [(f"r{i}", f"text {i}", 0) for i in range(200)]
    forward = load(write_jsonl(tmp_path / "a.jsonl", rows)).sample(20, seed=3)
    backward = load(write_csv(tmp_path / "b.csv", rows[::-1])).sample(20, seed=3)
    assert forward == backward
    assert len({item.id for item in forward}) == 20
    assert load(tmp_path / "a.jsonl").sample(30, seed=3)[:20] == forward
    assert load(tmp_path / "a.jsonl").sample(20, seed=4) != forward
    assert len(load(tmp_path / "a.jsonl").sample(1000)) == 200
    with pytest.raises(InputError, match="at least 1"):
        load(tmp_path / "a.jsonl").sample(0)


def test_a_dataset_is_read_again_from_the_start_and_can_be_sent_to_another_process(tmp_path):
    dataset = load(write_jsonl(tmp_path / "x.jsonl"))
    assert triples(dataset) == triples(dataset) == triples(pickle.loads(pickle.dumps(dataset))) == ROWS
    assert bool(dataset)
    with pytest.raises(TypeError, match="when all are read"):
        len(dataset)
