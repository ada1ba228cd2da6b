"""What a Python function computes with besides its arguments, as a value that can be compared."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor, dtype

#: how many functions deep a function is followed
DEPTH = 4

_PLAIN = (int, float, complex, str, bytes, bool, type(None), dtype, type(Ellipsis))


@dataclass(frozen=True, eq=False)
class _Identity:
    """An object that is compared by identity, and kept alive so that no other one has its address."""

    of: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


def function_key(value: Any, depth: int = DEPTH) -> Hashable:
    """Return a key of a function: its code, defaults, closure and the globals that it names; ``None`` if unknown.

    Two calls with equal keys compute the same from the same arguments. Lists, dictionaries and other objects may change
    without notice, so a function that names one has no key.
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, Tensor | ModuleType | type) or (not hasattr(value, "__dict__") and callable(value)):
        return _Identity(value)
    if isinstance(value, tuple):
        return _all(value, depth)
    if not isinstance(value, FunctionType) or not depth or value.__dict__:
        return None
    named = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    inner = _all([*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *cells, *named], depth - 1)
    return None if inner is None else (value.__code__, inner)


def _all(values: Any, depth: int) -> Hashable:
    keys = tuple(function_key(value, depth) for value in values)
    return None if None in keys else keys


def _names(code: CodeType) -> list[str]:
    """Return the names that code uses, those of functions inside it as well."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return [*code.co_names, *inner]
