"""The Python functions of torch that run an operation of the dispatcher with less overhead than ``torch.ops`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: operations that torch's Python functions of the same name run with the same arguments
_FUNCTIONS = {
    "abs", "add", "addmm", "any", "bmm", "cat", "clamp", "clone", "cos", "div", "embedding", "eq", "erf", "exp", "ge",
    "gt", "index_select", "isfinite", "isnan", "le", "log", "lt", "mean", "mm", "mul", "native_layer_norm", "ne", "neg",
    "permute", "pow", "reciprocal", "rsqrt", "select", "sigmoid", "sin", "sqrt", "stack", "sub", "sum", "tanh",
    "transpose", "unsqueeze", "where",
}  # fmt: skip
#: those that are methods of tensors
_METHODS = {
    "expand", "view", "add_", "mul_", "div_", "sub_", "masked_fill_", "copy_", "fill_", "clamp_", "new_zeros",
    "new_empty",
}  # fmt: skip


def binding(func: Any) -> Callable[..., Any] | str:
    """Return the function to call for an operation, or the name of a method; itself where no faster one is known."""
    schema = getattr(func, "_schema", None)
    name = "" if schema is None else schema.name.removeprefix("aten::")
    if name in _METHODS:
        return name
    if name == "_unsafe_view":
        return "view"
    found = func
    if name in _FUNCTIONS and not func._overloadname.endswith("out"):
        found = getattr(torch, name)
    elif name == "gelu":
        found = torch._C._nn.gelu
    run: Callable[..., Any] = found
    return run
