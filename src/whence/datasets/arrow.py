"""Parquet and arrow files, read in small batches of rows, with the class names of HuggingFace's metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._utils.optional_imports import need
from ..errors import FileError, InputError
from .text_tables import Row, TableFile

ROWS = 64  # of one batch, which may hold images
MAGIC = b"ARROW1"  # of an arrow file with an index; a file without it is a stream of batches


def parquet(path: Path) -> TableFile:
    """Open a parquet file."""
    with _translated_errors(path), _parquet(path) as file:
        schema = file.schema_arrow
        count = file.metadata.num_rows
    return _table(path, schema, count, _parquet_batches)


def arrow(path: Path) -> TableFile:
    """Open an arrow file, as HuggingFace's ``save_to_disk`` writes it, or one with an index (feather)."""
    with _translated_errors(path), _arrow(path) as (schema, batches):
        count = sum(batch.num_rows for batch in batches)  # the file is memory-mapped, not read
    return _table(path, schema, count, _arrow_batches)


def _table(path: Path, schema: Any, count: int, batches: Callable[[Path, Sequence[str]], Iterator[Any]]) -> TableFile:
    return TableFile(path, tuple(schema.names), partial(_rows, path, batches), _classes(path, schema), count)


def _rows(path: Path, batches: Callable[[Path, Sequence[str]], Iterator[Any]], wanted: Sequence[str]) -> Iterator[Row]:
    number = 0
    with _translated_errors(path):
        for batch in batches(path, wanted):
            batch.validate(full=True)  # offsets of a damaged file may point anywhere in memory
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _parquet(path: Path) -> Any:
    return need("pyarrow.parquet", "parquet files", "data").ParquetFile(path)


def _parquet_batches(path: Path, wanted: Sequence[str]) -> Iterator[Any]:
    with _parquet(path) as file:
        yield from file.iter_batches(ROWS, columns=list(wanted))


@contextlib.contextmanager
def _arrow(path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open an arrow file, and give its schema and batches."""
    pyarrow = need("pyarrow", "arrow files", "data")
    ipc = need("pyarrow.ipc", "arrow files", "data")
    with pyarrow.memory_map(str(path)) as mapped:
        if mapped.read(len(MAGIC)) == MAGIC:
            file = ipc.open_file(mapped)
            yield file.schema, map(file.get_batch, range(file.num_record_batches))
        else:
            mapped.seek(0)
            stream = ipc.open_stream(mapped)
            yield stream.schema, iter(stream)


def _arrow_batches(path: Path, wanted: Sequence[str]) -> Iterator[Any]:
    with _arrow(path) as (_, batches):
        for batch in batches:
            chosen = batch.select(list(wanted))
            yield from (chosen.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))


def _classes(path: Path, schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the class names of each column, from HuggingFace's metadata in the schema."""
    stored = (schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return {}
    try:
        features: Mapping[str, Any] = json.loads(stored)["info"]["features"]
        kinds = {name: f for name, f in features.items() if isinstance(f, dict) and f.get("_type") == "ClassLabel"}
        return {name: tuple(map(str, feature["names"])) for name, feature in kinds.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"'{path}' describes its columns in a way that cannot be understood ({error!r}).") from error


@contextlib.contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into ours."""
    failures = need("pyarrow", "parquet and arrow files", "data").ArrowException
    try:
        yield
    except (failures, ValueError, OverflowError) as error:  # e.g. times beyond the calendar
        raise InputError(f"'{path}' is damaged, or not what its name says: {_first_line(error)}") from error
    except OSError as error:
        raise FileError(f"'{path}' cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
