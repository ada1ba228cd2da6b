"""Datasets in common formats: table files, and directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from ..errors import FileError, InputError
from .arrow import arrow, parquet
from .column_roles import ColumnRoles, choose, to_item
from .dataset import Dataset
from .directory import kind, picture_items, pictures, tables
from .item import Item
from .text_tables import TableFile, comma_separated, json_lines, tab_separated, text

OPENERS = {
    ".jsonl": json_lines, ".ndjson": json_lines, ".json": json_lines, ".csv": comma_separated, ".tsv": tab_separated,
    ".txt": text, ".parquet": parquet, ".arrow": arrow,
}  # fmt: skip


def read(
    path: str | Path,
    *,
    split: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    image: str | None = None,
    id: str | None = None,
) -> Iterator[Item]:
    """Read the samples of a file or a directory as a stream.

    Args:
        path: JSON lines, CSV, TSV or plain text (one text per line), each with gzip or without; parquet; arrow; a
            folder of images, with one subfolder per class or none; a directory of HuggingFace's ``save_to_disk``; or
            one of tables whose names have a split in them, as on the hub.
        split: of a directory.
        text: the column of the text; two for pairs. Found by the usual names if not given.
        label: the column of the class; empty: none is read.
        image: the column of the image: a path relative to the table's directory, or bytes.
        id: the column of the id; empty: rows are numbered.

    A damaged row raises :class:`InputError` with the file and the number of the row; the iterator continues after it.

    Example:
        >>> for item in read("reviews.csv.gz", text="review"):
        ...     print(item.id, item.label, item.input[:40])
    """
    return iter(open_path(path, split=split, text=text, label=label, image=image, id=id))


def open_path(
    path: str | Path,
    *,
    split: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    image: str | None = None,
    id: str | None = None,
) -> Dataset:
    """Open the dataset of a path; arguments as for :func:`read`.

    Example:
        >>> open_path("pictures", split="test").labels
        ('cat', 'dog')
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileError(f"There is no file or directory '{path}'.")
    if path.is_dir():
        files, part = tables(path, split)
        if not files:
            return _pictures(path, split)
    elif split is not None:
        raise InputError(f"'{path}' is one file, which has no splits: give it without a split.")
    else:
        files, part = [path], ""
    opened = [_opened(file) for file in files]
    columns = choose(opened[0], text, label, image, id)
    for other in opened[1:]:
        if not set(columns.used) <= set(other.columns):
            raise InputError(f"'{other.path}' has other columns than '{opened[0].path}' beside it.")
    counts = [table.count for table in opened]
    return Dataset(
        str(path), part, opened[0].classes.get(columns.label or ""), str(path), None,
        partial(_items, opened, columns), None if None in counts else sum(count or 0 for count in counts),
    )  # fmt: skip


def _opened(path: Path) -> TableFile:
    opener = OPENERS.get(kind(path))
    if opener is None or (path.suffix.lower() == ".gz" and opener in (parquet, arrow)):
        raise FileError(
            f"'{path}' is of no kind that Whence reads: {' '.join(OPENERS)} (those of text also with .gz), or a "
            "directory."
        )
    return opener(path)


def _items(opened: Sequence[TableFile], columns: ColumnRoles) -> Iterator[Item]:
    """Yield the items of all files; with several files, the name of the file precedes the row number."""
    prefixes = [f"{table.path.name}:" if len(opened) > 1 else "" for table in opened]
    return chain.from_iterable(
        map(partial(to_item, table, columns, prefix), table.rows(columns.used))
        for table, prefix in zip(opened, prefixes, strict=True)
    )


def _pictures(path: Path, split: str | None) -> Dataset:
    directory, split, classes = pictures(path, split)
    count = sum(1 for _ in picture_items(directory))
    if not count:
        raise FileError(f"'{path}' holds no tables and no pictures: give a file, or a directory that holds some.")
    return Dataset(str(path), split, classes, str(path), None, partial(picture_items, directory), count)
