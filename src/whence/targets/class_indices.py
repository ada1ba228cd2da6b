"""Class indices and positions as Python numbers, from Python numbers, NumPy arrays or tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._utils.type_checks import is_whole
from ..errors import TargetError

RULE = "A target must be a class number or a label, or a list with one per sample"


def whole_number(value: Any, rule: str) -> int:
    """Return a whole number as an ``int``, or raise an error that quotes the rule."""
    number = value.tolist() if hasattr(value, "tolist") else value
    if not is_whole(number):
        raise TargetError(f"{rule}, not {type(value).__name__} ({value!r}).")
    return int(number)


def as_list(value: Any) -> Any:
    """Return a sequence, an array or a tensor as a list; anything else as it is."""
    items = value.tolist() if hasattr(value, "tolist") else value
    return list(items) if isinstance(items, Sequence) and not isinstance(items, str | bytes) else items


def classes(target: Any) -> Any:
    """Return classes and labels: one, or a list with one per sample."""
    items = as_list(target)
    return [_class_or_label(item) for item in items] if isinstance(items, list) else _class_or_label(items)


def positions(given: Any) -> int | list[int]:
    """Return positions: one, or a list with one per sample."""
    rule = "A position is a whole number, or a list with one per sample"
    items = as_list(given)
    return [whole_number(item, rule) for item in items] if isinstance(items, list) else whole_number(items, rule)


def _class_or_label(item: Any) -> int | str | None:
    return item if item is None or isinstance(item, str) else whole_number(item, RULE)
