"""Runtime type checks: of options, of the fields of a file, of counts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import InputError, MethodError

T = TypeVar("T")


def from_options(cls: type[T], what: str, options: Mapping[str, Any]) -> T:
    """Construct a dataclass from its options, or raise an error that names the wrong one.

    Args:
        cls: the dataclass.
        what: its name in the error: ``"method 'lrp'"``.
        options: its options by name.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]  # methods and measures are dataclasses
    wrong = [option for option in options if option not in known]
    if wrong:
        raise MethodError(f"The {what} has no option '{wrong[0]}'. Its options: {', '.join(sorted(known)) or 'none'}.")
    for option, hint in field_types(cls).items():  # type: ignore[arg-type]  # a type is hashable
        if option in options and not fits(options[option], hint, contents=False, numpy=True):
            given = f"{type(options[option]).__name__} ({options[option]!r})"
            raise MethodError(f"Option '{option}' of the {what} takes {_type_name(hint)}, not {given}.")
    return cls(**options)


def require_positive(**numbers: object) -> None:
    """Raise an error, with its name, for an argument that is not an integer of at least 1.

    Example:
        >>> require_positive(batch_size=8, budget=500)
    """
    for name, number in numbers.items():
        if not is_whole(number) or number < 1:
            raise InputError(f"{name} must be a whole number, at least 1, not {number!r}.")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, of Python or NumPy; booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the annotated types of a class; empty if they cannot be resolved."""
    try:
        return get_type_hints(cls)
    except NameError:  # an annotation names something that only the scope of the class has
        return {}


def fits(value: object, hint: Any, *, contents: bool = True, numpy: bool = False) -> bool:
    """Whether a value is of an annotated type. Integers are floats, too; booleans are no numbers.

    Args:
        value: any object.
        hint: the annotation.
        contents: check the entries of tuples, lists and mappings and the fields of dataclasses and named tuples, too.
            Otherwise anything with a length is a sequence, and tuples are not checked at all.
        numpy: accept the numbers of NumPy.

    Example:
        >>> fits(("a", 1), tuple[str, ...])
        False
    """
    check = functools.partial(fits, contents=contents, numpy=numpy)
    origin, inner = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # an alias made by `type`, as NumPy has them from Python 3.12 on
        return check(value, origin.__value__[inner])
    if origin in (Union, UnionType):
        return any(check(value, one) for one in inner)
    kind = NoneType if hint is None else origin or hint
    if kind is Any or not isinstance(kind, type):  # a Literal, for example, is not checked
        return True
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind in (int, float):
        return isinstance(value, _number_type(kind, numpy))
    if contents:
        return isinstance(value, kind) and _contents_fit(value, kind, inner, check)
    return _is_sequence(value, kind) if inner and issubclass(kind, Sequence) else isinstance(value, kind)


def _number_type(kind: type, numpy: bool) -> Any:
    if numpy:
        return Integral if kind is int else Real
    return int if kind is int else int | float


def _is_sequence(value: object, kind: type) -> bool:
    """Whether a value can be read as a sequence; whoever takes a tuple checks it, because each place has a meaning."""
    return issubclass(kind, tuple) or (hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping))


def _contents_fit(value: Any, kind: type, inner: tuple[Any, ...], check: Any) -> bool:
    """Whether the entries or fields of a value of the right type are of theirs."""
    if inner and issubclass(kind, tuple):
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(hints) and all(map(check, value, hints))
    if inner and issubclass(kind, Mapping):
        return all(check(k, inner[0]) and check(v, inner[1]) for k, v in value.items())
    if inner and issubclass(kind, Sequence):
        return all(check(v, inner[0]) for v in value)
    if is_dataclass(kind) or hasattr(kind, "_fields"):  # a named tuple has `_fields`
        return all(check(getattr(value, name), hint) for name, hint in field_types(kind).items())
    return True


def _type_name(hint: Any) -> str:
    """Return a type as it is written."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("collections.abc.", "").replace("typing.", "")
