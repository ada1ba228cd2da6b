"""How an operation of the dispatcher is called with the least overhead.

``torch.ops.aten.add.Tensor`` is called through Python code, ``torch.add`` is not, and the method ``x.add`` is the
fastest of the three. In a long program calls of Python code are slow: its frame may end where a chunk of the
interpreter's stack ends, and each call then allocates another.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch

#: methods that take sizes one by one, which are read faster than a list
_SIZES = {"view", "expand", "reshape"}


def called(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any] | str, tuple[Any, ...]]:
    """Return the function to call for an operation, or the name of a method, and its arguments.

    A method or function of torch has the name and the arguments of the operation. That they return the same is checked
    when a program is first run.

    Args:
        func: the operation.
        args, kwargs: its arguments; those that are tensors may be anything.
    """
    schema = getattr(func, "_schema", None)
    if schema is None or any(isinstance(a, list) and None in a for a in args):  # an index of some dimensions alone
        return func, args
    name = schema.name.removeprefix("aten::").replace("_unsafe_view", "view")
    of_tensor = bool(args) and schema.arguments[0].name == "self" and "out" not in kwargs
    if of_tensor and isinstance(getattr(torch.Tensor, name, None), MethodDescriptorType):
        return name, _unpacked(name, args)
    known = getattr(torch, name, None) or getattr(torch._C._nn, name, None)
    return (known if isinstance(known, BuiltinFunctionType) else func), args


def _unpacked(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with sizes one by one, and a single dimension as a number."""
    if len(args) == 2 and isinstance(args[1], list):
        if name in _SIZES and args[1]:
            return args[0], *args[1]
        if name == "sum" and len(args[1]) == 1:
            return args[0], args[1][0]
    return args
