"""Classes and positions as Python has them, whether they were given as Python's numbers, NumPy's or in a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._utils.type_checks import is_whole
from ..errors import TargetError

RULE = "A target must be a class number or a label, or a list with one per sample"


def whole(value: Any, rule: str) -> int:
    """A whole number; if it is none, an error that gives the rule."""
    number = value.tolist() if hasattr(value, "tolist") else value
    if not is_whole(number):
        raise TargetError(f"{rule}, not {type(value).__name__} ({value!r}).")
    return int(number)


def listed(value: Any) -> Any:
    """A list, if it is several of something; anything else as it is."""
    items = value.tolist() if hasattr(value, "tolist") else value
    return list(items) if isinstance(items, Sequence) and not isinstance(items, str | bytes) else items


def plain(target: Any) -> Any:
    """Classes and labels: one, or a list with one per sample."""
    items = listed(target)
    return [_one(item) for item in items] if isinstance(items, list) else _one(items)


def positions(given: Any) -> int | list[int]:
    """Positions: one, or a list with one per sample."""
    rule, items = "A position is a whole number, or a list with one per sample", listed(given)
    return [whole(item, rule) for item in items] if isinstance(items, list) else whole(items, rule)


def _one(item: Any) -> int | str | None:
    return item if item is None or isinstance(item, str) else whole(item, RULE)
