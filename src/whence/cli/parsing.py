"""Parsing of the values of options: targets, names, pairs, precisions."""

from __future__ import annotations

import csv
import json
from typing import Any

from ..errors import InputError


def parse_dtype(dtype: str) -> Any:
    """Return a precision by its name."""
    import torch

    precision: Any = dtype if dtype == "auto" else getattr(torch, dtype, None)
    if dtype != "auto" and not (isinstance(precision, torch.dtype) and precision.is_floating_point):
        raise InputError(f"'{dtype}' is no precision: float32, float64, bfloat16, float16 or auto.")
    return precision


def parse_target(word: str | None) -> Any:
    """Return a target as a class index or a label."""
    return int(word) if word is not None and word.strip().lstrip("-").isdecimal() else word


def parse_targets(words: str | None) -> list[Any]:
    """Return targets that are separated by commas; a label that contains a comma is quoted."""
    if words is None:
        return [None]
    return [parse_target(word.strip()) for word in next(csv.reader([words], skipinitialspace=True))]


def parse_names(words: list[str] | None) -> list[str] | None:
    """Return names that are separated by commas; a name with options is not split, as options contain commas."""
    if words is None:
        return None
    return [name.strip() for word in words for name in ([word] if ":" in word else word.split(",")) if name.strip()]


def parse_pairs(words: list[str] | None) -> dict[str, str]:
    """Return ``name=value`` pairs as strings."""
    for word in words or []:
        if "=" not in word:
            raise InputError(f"'{word}' is no pair: write name=value.")
    return {name: value for name, _, value in (word.partition("=") for word in words or [])}


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Return ``name=value`` pairs as Python values."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"An option is given as name=value, not as '{pair}'.")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = {"True": True, "False": False, "None": None}.get(value, value)
        options[name.replace("-", "_")] = parsed
    return options
