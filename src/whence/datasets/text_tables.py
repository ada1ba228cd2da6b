"""Files of rows: JSON lines, CSV, TSV and plain text, read line by line, packed or not."""

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

#: a row's number, from 1, and its values by the names of the columns
Row = tuple[int, Mapping[str, Any]]
Line = tuple[int, bytes]

LONGEST_LINE = 1 << 28  # bytes; a file without line ends would fill the memory
LONGEST_FIELD = 1 << 24  # characters; a quote that is never closed would swallow the rest of a file
BOM = b"\xef\xbb\xbf"
NO_TEXT = "it is not UTF-8; convert the file"


@dataclass(frozen=True)
class Table:
    """Rows of a file.

    Attributes:
        path: the file.
        columns: their names; of JSON lines those of the first row.
        rows: begins to read; it is given the columns that are wanted, and may give more. A damaged row raises
            :class:`InputError`; the iterator can go on after it.
        classes: the names of the classes, for columns of which the file says them.
        count: the number of rows, if it is known without reading them.
    """

    path: Path
    columns: tuple[str, ...]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    count: int | None = None


def damaged(path: Path, row: int, why: str) -> InputError:
    """The error for one row."""
    return InputError(f"'{path}', row {row}: {why}.")


def lines(path: Path) -> Iterator[Line]:
    """Numbered lines of a file, packed with gzip or not, with their ends; constant memory."""
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
    """A line as text."""
    try:
        return _as_text((number, line))
    except UnicodeDecodeError as error:
        raise damaged(path, number, f"{NO_TEXT} ({error.reason})") from error


# -- plain text ----------------------------------------------------------------------------------------------------


def text(path: Path) -> Table:
    """One text a line, in the column ``text``; empty lines are left out."""
    return Table(path, ("text",), partial(_text_rows, path))


def _text_rows(path: Path, _: Sequence[str]) -> Iterator[Row]:
    return map(partial(_text_row, path), _filled(path))


def _text_row(path: Path, line: Line) -> Row:
    return line[0], {"text": decoded(path, *line).rstrip("\r\n")}


def _filled(path: Path) -> Iterator[Line]:
    return filter(_is_filled, lines(path))


def _is_filled(line: Line) -> bool:
    return bool(line[1].strip())


# -- JSON lines ----------------------------------------------------------------------------------------------------


def json_lines(path: Path) -> Table:
    """One JSON object a line; empty lines are left out."""
    first = next(_json_rows(path), None)
    return Table(path, tuple(first[1]) if first else (), partial(_json_rows, path))


def _json_rows(path: Path, _: Sequence[str] = ()) -> Iterator[Row]:
    return map(partial(_json_row, path), _filled(path))


def _json_row(path: Path, line: Line) -> Row:
    number, content = line[0], decoded(path, *line)
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


def comma_separated(path: Path) -> Table:
    """CSV: the first row names the columns; values with commas, quotes or line ends stand in double quotes."""
    return _separated(path, {"delimiter": ",", "strict": True})


def tab_separated(path: Path) -> Table:
    """TSV: the first row names the columns; quotes are characters like any other."""
    return _separated(path, {"delimiter": "\t", "quoting": csv.QUOTE_NONE})


def _separated(path: Path, dialect: Mapping[str, Any]) -> Table:
    first = next(_Records(path, dialect), None)
    columns = tuple(name.strip() for name in first[1]) if first else ()
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise InputError(f"'{path}' has more than one column '{twice[0]}'. Rename them in its first row.")
    return Table(path, columns, partial(_separated_rows, path, dialect, columns))


def _separated_rows(
    path: Path, dialect: Mapping[str, Any], columns: tuple[str, ...], _: Sequence[str]
) -> Iterator[Row]:
    records = _Records(path, dialect)
    next(records, None)
    return map(partial(_separated_row, path, columns), records)


def _separated_row(path: Path, columns: tuple[str, ...], record: tuple[int, list[str]]) -> Row:
    number, values = record
    if len(values) != len(columns):
        raise damaged(path, number, f"it has {len(values)} values and the first row names {len(columns)} columns")
    return number, dict(zip(columns, values, strict=True))


class _Records:
    """Numbered records of a CSV file that are not empty; the header is number 0. It can go on after a damaged one."""

    def __init__(self, path: Path, dialect: Mapping[str, Any]) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))  # the module's limit, for all of the process
        self.path = path
        self.number = -1
        self.reader = csv.reader(map(_as_text, lines(path)), **dialect)

    def __iter__(self) -> _Records:
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
