"""The options of methods and measures, fields of a dataclass, and numbers of things: a wrong one is named."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import InputError, MethodError

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
    for option, kind in _kinds(cls).items():  # type: ignore[arg-type]  # a type is hashable
        if option in options and not _fits(options[option], kind):
            given = f"{type(options[option]).__name__} ({options[option]!r})"
            raise MethodError(f"Option '{option}' of the {what} takes {_told(kind)}, not {given}.")
    return cls(**options)


def counts(**numbers: object) -> None:
    """Refuse, by its name, what is no whole number of at least 1.

    Example:
        >>> counts(batch_size=8, budget=500)
    """
    for name, number in numbers.items():
        if not is_whole(number) or number < 1:
            raise InputError(f"{name} must be a whole number, at least 1, not {number!r}.")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether something is a whole number, also one of NumPy; true and false are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@functools.cache
def _kinds(cls: type) -> dict[str, Any]:
    """What each option takes, as far as that can be told."""
    try:
        return get_type_hints(cls)
    except NameError:  # annotations that name what is known only where the class was written
        return {}


def _fits(value: object, kind: Any) -> bool:
    """Whether an option may have a value; whole numbers and those of NumPy are numbers, true and false are not.

    Of a sequence, what it holds is left to whoever takes it, and so is a tuple, of which each place has a meaning.
    """
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        listed = hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
        return listed or issubclass(origin, tuple)
    kind = origin or kind
    if not isinstance(kind, type) or kind is Any:
        return True
    if isinstance(value, bool):
        return kind in (bool, object)
    numbers: dict[type, type] = {float: Real, int: Integral}
    return isinstance(value, numbers.get(kind, kind))


def _told(kind: Any) -> str:
    """A type as it is written."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("collections.abc.", "").replace("typing.", "")
