"""Explanations as plain Python values, which ``json.dumps`` takes, and as rows of a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from .._utils.optional_imports import need
from ..results.input_origin import AudioOrigin, ImageOrigin, Origin, SeriesOrigin, TextOrigin
from ..results.result import Result
from ..results.rows import COLUMNS, Row, rows, stream_rows
from .view_builder import ledger_shares, notes, probabilities

WHOLE = frozenset(("sample", "position", "part", "start", "end", "row", "column", "left", "top", "right", "bottom"))


def plain(value: Any) -> Any:
    """Return a value as plain Python: numbers, strings, lists and dictionaries with strings as keys."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [plain(v) for v in value]
    return str(value)


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result as plain Python values: see ``Explanation.to_dict``."""
    return {
        "method": result.method,
        "options": plain(result.options),
        "task": result.task,
        "coverage": {**plain(result.coverage.record()), "share": result.coverage.share},
        "samples": [_sample(one) for one in result],
    }


def _sample(one: Result) -> dict[str, Any]:
    """Return what is said of one sample."""
    origins = one.origins[0] if one.origins else {}
    probability, target_probability = probabilities(one)
    return {
        "target": one.target_names[0] if one.target_names else "",
        "target_index": None if one.target is None else int(one.target[0]),
        "target_probability": target_probability,
        "value": float(one.value[0]),
        "prediction": one.prediction_names[0] if one.prediction_names else "",
        "prediction_index": None if one.prediction is None else int(one.prediction[0]),
        "probability": probability,
        "streams": {name: _stream(one, name, origins.get(name)) for name in one.streams},
        "ledger": _ledger(one),
        "notes": list(notes(one, origins.values())),
    }


def _stream(one: Result, name: str, origin: Origin | None) -> dict[str, Any]:
    """Return the input of a stream, and its positions with their scores."""
    units = [_without_stream(row) for row in stream_rows(one, name, origin)]
    if isinstance(origin, TextOrigin):
        words = [_without_stream(row) for row in stream_rows(one, name, origin, "word")]
        return {"kind": "text", "texts": list(origin.texts), "words": words, "tokens": units}
    if one.grid is not None and any("row" in unit for unit in units):
        kind = "audio" if isinstance(origin, AudioOrigin) else "image"
        found: dict[str, Any] = {"kind": kind, "grid": list(one.grid), "patches": units}
        if isinstance(origin, ImageOrigin):
            found["height"], found["width"] = origin.image.shape[:2]
        return found
    if isinstance(origin, AudioOrigin):
        return {"kind": "audio", "rate": origin.rate, "seconds": len(origin.samples) / origin.rate, "frames": units}
    if isinstance(origin, SeriesOrigin):
        return {"kind": "series", "channels": list(origin.channels), "steps": units}
    return {"kind": "positions", "positions": units}


def _without_stream(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "stream"}


def _ledger(one: Result) -> dict[str, Any] | None:
    """Return the relevance at the target and, as shares of it, what entered each block and what was absorbed."""
    if one.ledger is None:
        return None
    block_relevance, absorbed = ledger_shares(one)
    largest = [{"operation": name, "share": share} for name, share in absorbed]
    return {"total": float(one.ledger.total[0]), "block_relevance": list(block_relevance), "absorbed": largest}


def to_pandas(results: Iterable[Result], by: str = "position") -> Any:
    """Return a tidy data frame of results: see ``Explanation.to_pandas``."""
    pandas = need("pandas", "data frames", "pandas")
    found: list[Row] = []
    samples = (one for result in results for one in result)
    for sample, one in enumerate(samples):
        target = one.target_names[0] if one.target_names else ""
        found += [{"sample": sample, "method": one.method, "target": target, **row} for row in rows(one, by)]
    present = {name for row in found for name in row} | {"sample", "method", "target", "stream", "score"}
    columns = {name: [row.get(name) for row in found] for name in COLUMNS if name in present}
    types = {"special": "bool", "score": "float64"} | dict.fromkeys(WHOLE, "Int64")
    return pandas.DataFrame({n: pandas.Series(v, dtype=types.get(n)) for n, v in columns.items()})
