"""The state of a model that a captured computation depends on, to be compared before each replay."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._utils.offloading import is_offloaded
from .tape import CaptureError

#: values that a tensor of the model is compared by, where something was computed of it in advance
SAMPLE = 16
#: how deep the objects that a module keeps (a configuration, a list of layers) are looked into
DEPTH = 3

#: the module of transformers whose hooks collect hidden states and attentions; a forward pass installs them
COLLECTING = "transformers.utils.output_capturing"

#: values of a module's namespace that are compared
_PLAIN = (int, float, complex, str, bytes, bool, tuple, torch.dtype)

_OPAQUE = (Tensor, nn.Module, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


@dataclass(frozen=True)
class Observer:
    """A forward hook that changes nothing: a replay may leave it out.

    Attributes:
        hook: called with the arguments of a forward hook, or of one before the forward pass.

    Example:
        >>> model.register_forward_pre_hook(Observer(lambda module, args: print("running")))
    """

    hook: Callable[..., object]

    def __call__(self, *args: Any) -> None:
        """Call the hook, and ignore what it returns."""
        self.hook(*args)


def _observes(hook: Any) -> bool:
    """Return whether a hook changes nothing: an observer, or one by which transformers collects hidden states."""
    return isinstance(hook, Observer) or getattr(hook, "__module__", "") == COLLECTING


def _forward_hooks(model: nn.Module) -> list[Any]:
    """Return the hooks that run in a forward pass of a model: its own, and those of all modules."""
    own = (hooks.values() for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks))
    return [*_global_hooks(), *itertools.chain.from_iterable(own)]


def _global_hooks() -> list[Any]:
    """Return the hooks that run in the forward pass of every module."""
    known = torch.nn.modules.module
    return [*known._global_forward_hooks.values(), *known._global_forward_pre_hooks.values()]


class ModelState:
    """What a replay assumes of a model: its parts, their attributes and hooks, and the tensors it computes with.

    A change of a tensor's values is noticed by torch's version counter, or by another address. Changes through
    ``.data`` are not counted: a replay computes with the values that are there then. Only what was computed in advance,
    of tensors that are *folded*, would be out of date; of these a sample of values is compared as well.

    Args:
        model: the model.
        kept: further tensors that were used.
        folded: tensors of which something was computed in advance.
    """

    def __init__(self, model: nn.Module, kept: Iterable[Tensor] = (), folded: Iterable[Tensor] = ()) -> None:
        folded = list(folded)
        self._containers: list[dict[Any, Any] | list[Any]] = []
        self._tensors: dict[int, Tensor] = {}
        self._arrays: dict[int, np.ndarray[Any, Any]] = {}
        seen: set[int] = set()
        if is_offloaded(model):
            raise CaptureError("the model's weights are offloaded, and loaded for each explanation")
        if not all(map(_observes, _forward_hooks(model))):
            raise CaptureError("the model has forward hooks, whose code a replay would not run")
        for module in model.modules():
            self._look(module.__dict__, seen, DEPTH)
        known = {t.data_ptr() for t in self._tensors.values()}
        for tensor in (*kept, *folded):
            if tensor.data_ptr() not in known:
                self._tensors[id(tensor)] = tensor
        if any(t.is_inference() for t in self._tensors.values()):
            raise CaptureError("the model's parameters are inference tensors, whose changes torch does not count")
        self._snapshots = [_copy(container) for container in self._containers]
        values = [v for container in self._containers for v in _values(container)]
        self._empty = [v for v in values if isinstance(v, dict | list | set) and not v]
        self._contents = [(array, array.copy()) for array in self._arrays.values()]
        self._held = list(self._tensors.values())
        self._counts = self._counted()
        self._samples = _samples(folded)
        self._values = [torch.cat(views) for views in self._samples]
        self._classes = list({type(module) for module in model.modules()})
        self._globals = [found for cls in self._classes for found in _globals_of(cls.forward)]
        self._surroundings = self._surrounding()

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        try:
            same = not any(self._empty) and all(map(operator.eq, self._containers, self._snapshots))
            same = same and all(names.get(name) == value for names, name, value in self._globals)
        except (RuntimeError, ValueError, TypeError):  # tensors and arrays that are others
            return False
        return (
            same
            and self._counted() == self._counts
            and self._surrounding() == self._surroundings
            and all(np.array_equal(array, old) for array, old in self._contents)
            and all(_same_bits(torch.cat(v), old) for v, old in zip(self._samples, self._values, strict=True))
        )

    def _look(self, container: dict[Any, Any] | list[Any], seen: set[int], depth: int) -> None:
        """Note attributes (or what a dictionary or list among them holds), and those of the objects among them."""
        if id(container) in seen:
            return
        seen.add(id(container))
        self._containers.append(container)
        for value in list(_values(container)):
            if isinstance(value, dict | list | tuple):
                for item in _values(value):
                    self._look_at(item, seen, depth)
            else:
                self._look_at(value, seen, depth)

    def _look_at(self, item: Any, seen: set[int], depth: int) -> None:
        """Note a value that a module keeps, or that one of its objects, lists or dictionaries holds."""
        if isinstance(item, Tensor):
            self._tensors[id(item)] = item
        elif isinstance(item, np.ndarray):
            self._arrays[id(item)] = item
        elif depth and isinstance(item, dict | list):
            self._look(item, seen, depth - 1)
        elif depth and hasattr(item, "__dict__") and not isinstance(item, _OPAQUE):
            self._look(item.__dict__, seen, depth - 1)

    def _counted(self) -> tuple[list[int], list[int]]:
        return [t._version for t in self._held], [t.data_ptr() for t in self._held]

    def _surrounding(self) -> tuple[Any, ...]:
        """Return the settings of torch that decide which kernels run, and code that was replaced or added."""
        devices = ("cpu", "cuda")
        autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)
        return (
            autocast,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
            [id(hook) for hook in _global_hooks()],
            tuple(cls.forward for cls in self._classes),
        )


def _samples(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return views of a few entries of each tensor, in lists of one type and device."""
    lists: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        if type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous() and tensor.numel() and not tensor.is_meta:
            count = min(SAMPLE, tensor.numel())
            view = tensor.detach().as_strided((count,), (tensor.numel() // count,))
            lists.setdefault((tensor.dtype, tensor.device), []).append(view)
    return list(lists.values())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of numbers are equal, also where they are not finite."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _values(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _copy(container: dict[Any, Any] | list[Any]) -> dict[Any, Any] | list[Any]:
    """Return a copy that stays as it is when the lists, sets and dictionaries in the original change.

    Those that are empty, most of them for hooks, are not copied: that they stay empty is a test of its own, and a fast
    one.
    """
    if isinstance(container, dict):
        return {k: v.copy() if isinstance(v, dict | list | set) and v else v for k, v in container.items()}
    return [v.copy() if isinstance(v, dict | list | set) and v else v for v in container]


def _globals_of(function: Callable[..., Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the numbers, strings and other plain values that a function reads from its module: where, name, value."""
    plain = inspect.unwrap(function)
    code, names = getattr(plain, "__code__", None), getattr(plain, "__globals__", {})
    if code is None:
        return []
    return [(names, name, names[name]) for name in code.co_names if isinstance(names.get(name), _PLAIN)]
