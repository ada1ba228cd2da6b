"""Table files: JSON lines, CSV, TSV and plain text, read line by line, with gzip or without."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..errors import FileError, InputError

#: a row's number, from 1, and its values by column
Row = tuple[int, Mapping[str, Any]]
Line = tuple[int, bytes]

LONGEST_LINE = 1 << 28  # bytes; a file without line ends would fill memory
LONGEST_FIELD = 1 << 24  # characters; an unclosed quote would span the rest of a file
BOM = b"\xef\xbb\xbf"
NO_TEXT = "it is not UTF-8; convert the file"


@dataclass(frozen=True)
class TableFile:
    """A file of rows and columns.

    Attributes:
        path: the file.
        columns: their names; for JSON lines those of the first row.
        rows: returns a new iterator over the requested columns, and possibly others. A damaged row raises
            :class:`InputError`; the iterator continues after it.
        classes: the class names, for columns of which the file stores them.
        count: the number of rows, if it is known without reading them.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    count: int | None = None


def damaged(path: Path, row: int, why: str) -> InputError:
    """Return the error for one row."""
    return InputError(f"'{path}', row {row}: {why}.")


def lines(path: Path) -> Iterator[Line]:
    """Yield numbered lines of a file, with gzip or without, including line ends; constant memory."""
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    raise damaged(path, number, f"the line has more than {LONGEST_LINE:,} bytes; is it a text file")
                yield number, line.removeprefix(BOM) if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"'{path}' is damaged after line {number}: it cannot be unpacked ({error}).") from error
    except OSError as error:
        raise FileError(f"'{path}' cannot be read: {error.strerror or error}.") from error


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _as_text(line: Line) -> str:
    return line[1].decode("utf-8")


def decoded(path: Path, number: int, line: bytes) -> str:
    """Return a line as text."""
    try:
        return _as_text((number, line))
    except UnicodeDecodeError as error:
        raise damaged(path, number, f"{NO_TEXT} ({error.reason})") from error


# -- plain text ----------------------------------------------------------------------------------------------------


def text(path: Path) -> TableFile:
    """Open a file of one text per line, in the column ``text``; empty lines are left out."""
    return TableFile(path, ("text",), partial(_text_rows, path))


def _text_rows(path: Path, _: Sequence[str]) -> Iterator[Row]:
    return map(partial(_text_row, path), _nonempty_lines(path))


def _text_row(path: Path, line: Line) -> Row:
    return line[0], {"text": decoded(path, *line).rstrip("\r\n")}


def _nonempty_lines(path: Path) -> Iterator[Line]:
    return filter(_is_nonempty, lines(path))


def _is_nonempty(line: Line) -> bool:
    return bool(line[1].strip())


# -- JSON lines ----------------------------------------------------------------------------------------------------


def json_lines(path: Path) -> TableFile:
    """Open a file of one JSON object per line; empty lines are left out."""
    first = next(_json_rows(path), None)
    return TableFile(path, tuple(first[1]) if first else (), partial(_json_rows, path))


def _json_rows(path: Path, _: Sequence[str] = ()) -> Iterator[Row]:
    return map(partial(_json_row, path), _nonempty_lines(path))


def _json_row(path: Path, line: Line) -> Row:
    number = line[0]
    content = decoded(path, *line)
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        if number == 1 and content.lstrip().startswith("["):
            raise InputError(
                f"'{path}' is one JSON array, which cannot be streamed. Write one object a line."
            ) from error
        raise damaged(path, number, f"it is no JSON ({error})") from error
    if not isinstance(row, dict):
        raise damaged(path, number, f"it is a JSON {type(row).__name__}, and must be an object with named values")
    return number, row


# -- CSV and TSV ---------------------------------------------------------------------------------------------------


def comma_separated(path: Path) -> TableFile:
    """Open a CSV file: the first row names the columns; values with commas, quotes or line ends are quoted."""
    return _separated(path, {"delimiter": ",", "strict": True})


def tab_separated(path: Path) -> TableFile:
    """Open a TSV file: the first row names the columns; quotes are ordinary characters."""
    return _separated(path, {"delimiter": "\t", "quoting": csv.QUOTE_NONE})


def _separated(path: Path, dialect: Mapping[str, Any]) -> TableFile:
    first = next(_CsvRecords(path, dialect), None)
    columns = tuple(name.strip() for name in first[1]) if first else ()
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise InputError(f"'{path}' has more than one column '{twice[0]}'. Rename them in its first row.")
    return TableFile(path, columns, partial(_separated_rows, path, dialect, columns))


def _separated_rows(
    path: Path, dialect: Mapping[str, Any], columns: tuple[str, ...], _: Sequence[str]
) -> Iterator[Row]:
    records = _CsvRecords(path, dialect)
    next(records, None)
    return map(partial(_separated_row, path, columns), records)


def _separated_row(path: Path, columns: tuple[str, ...], record: tuple[int, list[str]]) -> Row:
    number, values = record
    if len(values) != len(columns):
        raise damaged(path, number, f"it has {len(values)} values and the first row names {len(columns)} columns")
    return number, dict(zip(columns, values, strict=True))


class _CsvRecords:
    """An iterator over numbered, non-empty records of a CSV file; the header is number 0. It continues after errors."""

    def __init__(self, path: Path, dialect: Mapping[str, Any]) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))  # the limit is global to the process
        self.path = path
        self.number = -1
        self.reader = csv.reader(map(_as_text, lines(path)), **dialect)

    def __iter__(self) -> _CsvRecords:
        return self

    def __next__(self) -> tuple[int, list[str]]:
        while True:
            self.number += 1
            try:
                values = next(self.reader)
            except UnicodeDecodeError as error:
                raise damaged(self.path, self.number, f"{NO_TEXT} ({error.reason})") from error
            except csv.Error as error:
                raise damaged(self.path, self.number, f"{error}; is a quote not closed, or not doubled") from error
            if values:
                return self.number, values
            self.number -= 1
