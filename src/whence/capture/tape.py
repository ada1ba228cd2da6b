"""A tape: the operations of torch's dispatcher that depend on some inputs, in the order in which they ran.

:class:`Tape` is a ``TorchDispatchMode``. It sees every kernel that runs inside it, those of backward passes as well,
and writes down each one that depends on an input. What does not depend on any is a constant, and is not run again.

A tape must never be replayed where the computation would have gone another way. Each value that was read into Python
(``bool(tensor)``, ``.item()``, ``tolist()``) therefore becomes a *guard*: a replay computes it again and compares.
Tensors of floating-point numbers differ from input to input, so a computation that reads a whole one is not captured.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from .nested import leaves, mapped

#: functions that read all values of a tensor into Python, unseen by the dispatcher
_READING = {
    Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__reversed__, Tensor.__dlpack__, Tensor.__repr__,
}  # fmt: skip

#: functions that read the places at which a tensor is split
_SPLITTING = {torch.tensor_split, Tensor.tensor_split}

_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]  # a property of C

_RANDOM = "random numbers are drawn"

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_CHECKING = contextvars.ContextVar("checking", default=False)
_SHORTCUT = contextvars.ContextVar("shortcut", default=False)
_REPEATED = contextvars.ContextVar("repeated", default=False)
_RECORDING: contextvars.ContextVar[Tape | None] = contextvars.ContextVar("recording", default=None)


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """Mark reads that confirm what is known: a capture does not repeat them.

    Recognition compares a region with its usual form on the values of the first input. That the two are the same
    function does not depend on the input.
    """
    token = _CHECKING.set(True)
    try:
        yield
    finally:
        _CHECKING.reset(token)


@contextlib.contextmanager
def shortcut() -> Iterator[bool]:
    """Mark reads by which work is saved, and yield whether to save it: a tape may have to do without.

    Rows of zeros are left out of a backward pass, for instance. Where other inputs have other rows, a capture that
    leaves none out serves all of them.
    """
    tape = _RECORDING.get()
    token = _SHORTCUT.set(True)
    try:
        yield tape is None or tape.shortcuts
    finally:
        _SHORTCUT.reset(token)


@contextlib.contextmanager
def repeated() -> Iterator[None]:
    """Mark operations on weights that a capture repeats, although they do not depend on the inputs.

    So a change of the weights is seen by the next replay, whichever way they are changed.
    """
    token = _REPEATED.set(True)
    try:
        yield
    finally:
        _REPEATED.reset(token)


def depends_on(tensor: Tensor) -> None:
    """Declare that something was computed of a tensor earlier: a capture is out of date when the tensor changes."""
    tape = _RECORDING.get()
    if tape is not None:
        tape.folded[id(tensor)] = tensor


def not_captured(reason: str) -> None:
    """Declare that what is computed cannot be replayed: a tape that records it is given up."""
    if _RECORDING.get() is not None:
        raise CaptureError(reason)


def values(tensor: Tensor) -> list[Any]:
    """Return a tensor as a list, as ``tolist()`` does; inside a backward pass a tape sees only this."""
    tape = _RECORDING.get()
    if tape is not None:
        tape.read(tensor, tensor.detach().clone())
    found: list[Any] = tensor.tolist()
    return found


class CaptureError(Exception):
    """A computation that cannot be replayed, with the reason."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that depends on the inputs, by its number on the tape."""

    number: int


@dataclass(frozen=True)
class TapeStep:
    """One operation of the dispatcher.

    Attributes:
        func: the operation.
        args, kwargs: its arguments, with a :class:`Value` for each tensor that depends on the inputs.
        outputs: the numbers of the tensors that it returns; ``None`` for what is no tensor.
        many: whether it returns several.
        writes: the memories (see :attr:`Tape.memory`) that it writes to.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]
    many: bool
    writes: frozenset[int] = frozenset()

    @functools.cached_property
    def reads(self) -> set[int]:
        """The numbers of the tensors that it is given."""
        return {x.number for x in leaves(self.args, self.kwargs) if isinstance(x, Value)}


@dataclass(frozen=True, slots=True)
class Guard:
    """A value that was read into Python, what it was, and whether it was read to save work."""

    value: int
    expected: Any
    shortcut: bool


class Tape(TorchDispatchMode):
    """Records the operations that depend on some tensors.

    Args:
        inputs: the tensors.
        shortcuts: whether shortcuts may be taken that depend on values, each with a guard.

    Attributes:
        steps: the operations.
        guards: the values that were read into Python.
        memory: for each value the number of the memory that it lies in; views of one tensor share it.
        layouts: for each value its shape, strides, offset, type and device, and whether it is conjugated or negated.
        kept: tensors that were there before, and that steps are given: weights, for instance.
        folded: tensors that were there before, and of which something was computed that steps are given.
    """

    def __init__(self, inputs: Sequence[Tensor], shortcuts: bool = True) -> None:
        super().__init__()
        self.shortcuts = shortcuts
        self.steps: list[TapeStep] = []
        self.guards: list[Guard] = []
        self.memory: list[int] = []
        self.layouts: list[tuple[Any, ...]] = []
        self.kept: dict[int, Tensor] = {}
        self.folded: dict[int, Tensor] = {}
        self._numbers = WeakTensorKeyDictionary()
        self._discrete: set[int] = set()  # values that are computed of integers and booleans alone
        self._memories: dict[int, _Memory] = {}  # by the address of a storage
        self._born: dict[int, _Birth] = {}  # storages that were allocated while recording, by their address
        self._given: dict[int, list[Tensor]] = {}  # the constants of steps, by the address of their storage
        self._unseen = _Unseen(self)
        self.inputs = [self._number(tensor) for tensor in inputs]
        self._discrete |= {n for n, t in zip(self.inputs, inputs, strict=True) if not _is_float(t)}

    def __enter__(self) -> Tape:
        super().__enter__()
        self._unseen.__enter__()
        self._token = _RECORDING.set(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _RECORDING.reset(self._token)
        self._unseen.__exit__(*error)
        super().__exit__(*error)

    def number(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor; ``None`` if it does not depend on the inputs."""
        found: int | None = self._numbers.get(tensor)
        return found if found is not None else self._alias(tensor)

    def read(self, tensor: Tensor, expected: Any) -> None:
        """Record that a value was read into Python."""
        number = self.number(tensor)
        if number is None or _CHECKING.get():
            return
        if tensor.is_floating_point() or tensor.is_complex():
            raise CaptureError("numbers that depend on the input are read into Python")
        self._guard(number, expected)

    def _guard(self, number: int, expected: Any) -> None:
        """Guard a value as it is now: it may be overwritten later."""
        copy = len(self.memory)
        self.memory.append(copy)
        self.layouts.append(self.layouts[number])
        self.steps.append(TapeStep(torch.ops.aten.clone.default, (Value(number),), {}, (copy,), False))
        self.guards.append(Guard(copy, expected, _SHORTCUT.get()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [x for x in leaves(args, kwargs) if isinstance(x, Tensor)]
        if not any(self.number(t) is not None for t in given) and not _REPEATED.get():
            for tensor in _written(func, args, kwargs):
                self._preserve(tensor)
            out = func(*args, **kwargs)
            self._note_constant(func, given, out, _is_random(func, args, kwargs))
            return out
        if func is torch.ops.aten.set_.source_Tensor:
            return self.share(func, *args)
        self._guard_shape(func, args)
        if _is_random(func, args, kwargs):
            raise CaptureError(_RANDOM)
        written = _written(func, args, kwargs)
        for tensor in written:
            self._make_variable(tensor)
        encoded: _Arguments = mapped((args, kwargs), Tensor, self._encoded)
        out = func(*args, **kwargs)
        results = list(out) if isinstance(out, tuple | list) else [out]
        if not any(isinstance(r, Tensor) for r in results):
            if written or not results or results == [None]:
                self.steps.append(TapeStep(func, encoded[0], encoded[1], (), False, self._touched(written)))
            else:
                self._read_result(func, encoded, out)
            return out
        self._note_births(given, out)
        outputs = tuple(self._number(r) if isinstance(r, Tensor) else None for r in results)
        if all(map(self._is_discrete, given)):
            self._discrete |= {self._numbers[r] for r in results if isinstance(r, Tensor)}
        elif written:
            self._discrete -= {n for n in self._discrete if self.memory[n] in self._touched(written)}
        self.steps.append(
            TapeStep(func, encoded[0], encoded[1], outputs, isinstance(out, tuple | list), self._touched(written))
        )
        return out

    def _is_discrete(self, tensor: Tensor) -> bool:
        """Return whether a tensor is computed of integers and booleans alone, as a mask of 0 and -inf is.

        What is looked up in a table of numbers, as embeddings are, is not.
        """
        number = self.number(tensor)
        return number in self._discrete if number is not None else tensor.numel() <= 1 or not _is_float(tensor)

    def _guard_shape(self, func: Any, args: tuple[Any, ...]) -> None:
        """Guard the values that the shape of an operation's result depends on; refuse those that differ for each input.

        Positions of image tokens, found by comparing token ids, and masks of what is padding are often the same. The
        places that a router chooses, found by ``nonzero`` among its scores, are not.
        """
        deciding = _deciding_shape(func, args)
        if func._schema.name != "aten::index" and not all(map(self._is_discrete, deciding)):
            name = func._schema.name.removeprefix("aten::")
            raise CaptureError(f"the shape of a tensor depends on values ('{name}')")
        for tensor in deciding:
            number = self.number(tensor)
            if number is not None and not _CHECKING.get():
                self._guard(number, tensor.detach().clone())

    def share(self, func: Any, tensor: Tensor, source: Tensor) -> Any:
        """Run a function that lets a tensor take over the memory of another one: it is an alias of that from now on."""
        depends = self.number(tensor) is not None or self.number(source) is not None
        encoded = self._encoded(source) if depends else None
        out = func(tensor, source)
        if depends:
            self._numbers.pop(tensor, None)
            made = self._number(tensor)
            self.steps.append(TapeStep(torch.ops.aten.alias.default, (encoded,), {}, (made,), False))
        return out

    def _read_result(self, func: Any, encoded: _Arguments, out: Any) -> None:
        """Record an operation that returns Python values: the dispatcher's ``item``, ``equal`` and the like."""
        if _CHECKING.get():
            return
        if func is torch.ops.aten._local_scalar_dense.default:
            self._guard(encoded[0][0].number, out)
            return
        number = len(self.memory)
        self.memory.append(number)
        self.layouts.append(())
        self.steps.append(TapeStep(_as_tensor, (func, *encoded[0]), encoded[1], (number,), False))
        self.guards.append(Guard(number, out, _SHORTCUT.get()))

    def _touched(self, written: list[Tensor]) -> frozenset[int]:
        return frozenset(self.memory[self._numbers[t]] for t in written)

    def _encoded(self, tensor: Tensor) -> Any:
        number = self.number(tensor)
        if number is not None:
            return Value(number)
        birth = self._born.get(tensor.untyped_storage()._cdata)
        if birth is None:
            self.kept[id(tensor)] = tensor
        elif birth.random:
            raise CaptureError(_RANDOM)
        else:
            self.folded |= birth.sources
        constant = tensor.detach()
        self._given.setdefault(tensor.untyped_storage()._cdata, []).append(constant)
        return constant

    def _preserve(self, tensor: Tensor) -> None:
        """Give the constants of earlier steps memory of their own before theirs is overwritten."""
        for constant in self._given.pop(tensor.untyped_storage()._cdata, []):
            constant.data = constant.clone()

    def _number(self, tensor: Tensor) -> int:
        """Give a tensor a number, the one that it has if it has one."""
        found: int | None = self._numbers.get(tensor)
        if found is not None:
            return found
        number = self._numbers[tensor] = len(self.memory)
        memory = self._memory_of(tensor)
        place = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device)
        self.layouts.append((*place, tensor.is_conj(), tensor.is_neg()))
        self.memory.append(number if memory is None else memory.number)
        if memory is None:
            self._memories[tensor.untyped_storage()._cdata] = _Memory(number, StorageWeakRef(tensor.untyped_storage()))
        return number

    def _memory_of(self, tensor: Tensor) -> _Memory | None:
        return self._memories.get(tensor.untyped_storage()._cdata)

    def _alias(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor that was not seen, but lies in the memory of one that depends on the inputs."""
        memory = self._memory_of(tensor)
        if memory is None:
            return None
        shape = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        number = self._number(tensor)
        args = (Value(memory.number), *shape)
        self.steps.append(TapeStep(torch.ops.aten.as_strided.default, args, {}, (number,), False))
        if memory.number in self._discrete:
            self._discrete.add(number)
        return number

    def _make_variable(self, tensor: Tensor) -> None:
        """Let a constant that is about to be overwritten by something that depends on the inputs depend on them."""
        if self.number(tensor) is not None:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._born:
            raise CaptureError("the model writes into a tensor that it keeps")
        size = storage.nbytes() // tensor.element_size()
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (size,), (1,))
        clone = torch.ops.aten.clone.default
        self._preserve(tensor)
        number = self._number(whole)
        self.steps.append(TapeStep(clone, (clone(whole),), {}, (number,), False))
        self._discrete.add(number)  # a constant, until something is written to it
        self._alias(tensor)

    def _note_constant(self, func: Any, given: list[Tensor], out: Any, random: bool) -> None:
        """Record that an operation ran that does not depend on the inputs."""
        births = [self._born.get(t.untyped_storage()._cdata) for t in given]
        random = random or any(birth is not None and birth.random for birth in births)
        if random and not any(isinstance(r, Tensor) for r in leaves(out)):
            raise CaptureError(_RANDOM)
        self._note_births(given, out, random)

    def _note_births(self, given: list[Tensor], out: Any, random: bool = False) -> None:
        """Remember the memory that an operation has allocated, and the tensors that it was computed of."""
        made = {r.untyped_storage()._cdata: r for r in leaves(out) if isinstance(r, Tensor)}
        for tensor in given:
            made.pop(tensor.untyped_storage()._cdata, None)
        if not made:
            return
        sources: dict[int, Tensor] = {}
        for tensor in given:
            birth = self._born.get(tensor.untyped_storage()._cdata)
            sources |= {id(tensor): tensor} if birth is None else birth.sources
        for address, result in made.items():
            self._born[address] = _Birth(StorageWeakRef(result.untyped_storage()), sources, random)


@dataclass(frozen=True, slots=True)
class _Birth:
    """Memory that was allocated while recording, and the tensors, there before, that its content was computed of."""

    storage: StorageWeakRef = field(repr=False)
    sources: dict[int, Tensor] = field(repr=False)
    random: bool


@dataclass(frozen=True, slots=True)
class _Memory:
    """A storage. (As long as a weak reference to it is held, no other one has its address.)"""

    number: int
    storage: StorageWeakRef = field(repr=False)


class _Unseen(TorchFunctionMode):
    """Sees what the dispatcher does not: functions that read a tensor into Python, and assignments to ``.data``."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READING and isinstance(args[0], Tensor):
            self._tape.read(args[0], args[0].detach().clone())
        if func in _SPLITTING and len(args) > 1 and isinstance(args[1], Tensor):
            self._tape.read(args[1], args[1].detach().clone())
        if func == _SET_DATA:
            return self._tape.share(func, *args)
        return func(*args, **(kwargs or {}))


def _as_tensor(func: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Return the Python value that an operation returns as a tensor."""
    return torch.tensor(func(*args, **kwargs))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the arguments that an operation writes to."""
    if not func._schema.is_mutable:
        return []
    found: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [x for x in leaves(value) if isinstance(x, Tensor)]
    return found


def _deciding_shape(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the arguments whose values decide the shape of an operation's result, or of what it works with."""
    name = func._schema.name
    if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        masks = [t for t in args[1] if isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)]
        return [] if name != "aten::index" and args[2].numel() == 1 else masks
    if name == "aten::_pack_padded_sequence":
        return [args[1]]
    if torch.Tag.dynamic_output_shape not in func.tags:
        return []
    tensors = [t for t in leaves(args) if isinstance(t, Tensor)]
    return tensors[1:] if name == "aten::masked_select" else tensors


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation draws random numbers by torch's own generator."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    named = {a.name: a.default_value for a in func._schema.arguments}
    named |= dict(zip(named, args, strict=False)) | kwargs
    return named.get("generator") is None and bool(named.get("dropout_p", named.get("p", 1.0)))
