"""The functions of torch that run an operation of the dispatcher with less overhead than ``torch.ops`` does.

``torch.ops.aten.add.Tensor`` is called through Python code, ``torch.add`` is not. In a long program calls of Python
code are slow: its frame may end where a chunk of the interpreter's stack ends, and each call then allocates another.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch

#: operations that are methods of tensors and no functions of torch
_METHODS = {"expand", "view", "new_zeros", "new_empty"}


def binding(func: Any) -> Callable[..., Any] | str:
    """Return the function to call for an operation, or the name of a method; itself where no faster one is known.

    A function of torch has the name and the arguments of the operation. That both return the same is checked when a
    program is first run.
    """
    schema = getattr(func, "_schema", None)
    name = "" if schema is None else schema.name.removeprefix("aten::")
    if name == "_unsafe_view":
        return "view"
    if name in _METHODS or (name.endswith("_") and hasattr(torch.Tensor, name)):
        return name
    known = getattr(torch, name, None) or getattr(torch._C._nn, name, None)
    found: Callable[..., Any] = known if isinstance(known, BuiltinFunctionType) else func
    return found
