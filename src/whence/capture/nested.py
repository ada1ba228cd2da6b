"""Arguments of operations: values in lists, tuples and dictionaries. (A few times faster than torch's ``_pytree``.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def leaves(*values: Any) -> list[Any]:
    """Return all values that are no lists, tuples or dictionaries, in order."""
    out: list[Any] = []
    for value in values:
        if isinstance(value, tuple | list):
            out += leaves(*value)
        elif isinstance(value, dict):
            out += leaves(*value.values())
        else:
            out.append(value)
    return out


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return the same structure with every value of a type changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([mapped(v, kind, change) for v in value])
    if isinstance(value, dict):
        return {k: mapped(v, kind, change) for k, v in value.items()}
    return value
