"""Offloaded weights: accelerate keeps them in memory or on disk, and loads them while their module runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

#: a table of a module's tensors, a name in it, and what was found there
_Place = tuple[dict[str, Any], str, Any]


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device that a model takes its inputs on; ``None`` if it has no parameters."""
    device = next((p.device for p in model.parameters()), None)
    if device is None or device.type != "meta":
        return device
    taken = (hook.execution_device for module in model.modules() for hook in _hooks(module))
    return next((torch.device(one) for one in taken if one is not None), device)


def is_offloaded(model: nn.Module) -> bool:
    """Return whether some weights of a model are loaded only while their module runs."""
    return any(hook.offload for module in model.modules() for hook in _hooks(module))


@contextlib.contextmanager
def loaded(model: nn.Module) -> Iterator[None]:
    """Load offloaded weights until the block ends: the same parameters are then used by every forward pass.

    The hooks that load and free them for each module do not do so inside. Afterwards the hooks, the parameters and all
    buffers on the meta device are those that were found.
    """
    if not is_offloaded(model):
        yield
        return
    hooks = [(module, hook, dict(vars(hook))) for module in model.modules() for hook in _hooks(module)]
    parameters: list[_Place] = [(m._parameters, name, p) for m in model.modules() for name, p in m._parameters.items()]
    buffers = [(m._buffers, name, b) for m in model.modules() for name, b in m._buffers.items()]
    absent: list[_Place] = [(table, name, b) for table, name, b in buffers if b is not None and b.is_meta]
    try:
        with contextlib.ExitStack() as stack:
            for module, hook, _ in hooks:
                if hook.offload:
                    stack.enter_context(_loaded_by(hook, module))
            yield
    finally:
        for _, hook, found in hooks:
            vars(hook).clear()
            vars(hook).update(found)
        for table, name, tensor in (*parameters, *absent):
            table[name] = tensor


@contextlib.contextmanager
def _loaded_by(hook: Any, module: nn.Module) -> Iterator[None]:
    """Load what one hook offloads."""
    try:
        hook.pre_forward(module)
        hook.offload = False  # it is loaded: forward passes inside are to leave it where it is
        yield
    finally:
        hook.offload = True
        hook.post_forward(module, None)  # which also frees its share of tied weights


def _hooks(module: nn.Module) -> list[Any]:
    """Return the hooks of accelerate that place the tensors of a module."""
    library = sys.modules.get("accelerate.hooks")  # without it there are none
    hook = module.__dict__.get("_hf_hook")
    if library is None or hook is None:
        return []
    each = hook.hooks if isinstance(hook, library.SequentialHook) else (hook,)
    return [one for one in each if isinstance(one, library.AlignDevicesHook)]
