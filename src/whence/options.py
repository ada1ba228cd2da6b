"""The options of methods and measures: fields of a dataclass, of which a wrong one is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, TypeVar, get_args, get_type_hints

from .errors import MethodError

T = TypeVar("T")


def made(cls: type[T], what: str, options: Mapping[str, Any]) -> T:
    """A dataclass with its options, or an error that says which of them is wrong.

    Args:
        cls: the dataclass.
        what: what it is, for the error: ``"method 'lrp'"``.
        options: its options by name.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]  # methods and measures are dataclasses
    wrong = [option for option in options if option not in known]
    if wrong:
        raise MethodError(f"The {what} has no option '{wrong[0]}'. Its options: {', '.join(sorted(known)) or 'none'}.")
    for option, kind in _kinds(cls).items():
        if option in options and not _fits(options[option], kind):
            wanted = kind.__name__ if isinstance(kind, type) else str(kind)
            given = f"{type(options[option]).__name__} ({options[option]!r})"
            raise MethodError(f"Option '{option}' of the {what} takes {wanted}, not {given}.")
    return cls(**options)


def _kinds(cls: type) -> dict[str, Any]:
    """What each option takes, as far as that can be told."""
    try:
        return get_type_hints(cls)
    except NameError:  # annotations that name what is known only where the class was written
        return {}


def _fits(value: object, kind: Any) -> bool:
    """Whether an option may have a value; whole numbers and those of NumPy are numbers, true and false are not."""
    kinds = get_args(kind) or (kind,)
    if not all(isinstance(k, type) for k in kinds) or Any in kinds:
        return True
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple({float: Real, int: Integral}.get(k, k) for k in kinds))
