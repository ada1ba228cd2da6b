"""A program: the steps of a tape that some results depend on, as one Python function without autograd.

The passes below leave out what a replay does not need. Each keeps every bit of the results: steps are dropped, joined
or called by another name, never computed in another order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from .bindings import called
from .fusion import layers_joined
from .in_place import overwriting
from .nested import leaves, mapped
from .tape import Guard, Tape, TapeStep, Value

#: operations that return their argument, or a copy that differs from it only in its memory
_COPIES = {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::clone", "aten::_to_copy", "aten::contiguous"}
#: operations that return their argument if its shape is the one asked for
_SHAPES = {"aten::view", "aten::_unsafe_view", "aten::expand", "aten::reshape"}


class Program:
    """Computes what a tape has recorded, for other inputs of the same shapes and types.

    Args:
        tape: the tape.
        outputs: the tensors to compute.
        backend: a backend of ``torch.compile`` that generates its kernels; ``None``: those of torch are called.

    Attributes:
        operations: how many operations it runs.
        size: the memory of constants that it alone keeps, in bytes.
    """

    def __init__(self, tape: Tape, outputs: Sequence[Tensor], backend: str | None = None) -> None:
        numbers = [tape.number(t) for t in outputs]
        self._fixed = {
            i: t.detach().clone() for i, (t, n) in enumerate(zip(outputs, numbers, strict=True)) if n is None
        }
        wanted = [n for n in numbers if n is not None]
        steps, names = _simplified(tape, _live(tape, tape.steps, [*wanted, *(g.value for g in tape.guards)]))
        guards = {(names.get(g.value, g.value), repr(g.expected)): g for g in tape.guards}
        self._guards = [replace(g, value=value) for (value, _), g in guards.items()]
        results = [names.get(n, n) for n in wanted]
        ends = [*results, *(g.value for g in self._guards)]
        steps = _live(tape, layers_joined(tape, steps, ends), ends)
        if backend is None:  # a compiler plans memory by itself
            steps = overwriting(tape, steps, ends, _memories(tape, names))
        self.operations = len(steps)
        self.size = _size(steps, tape.kept.values())
        self._run = _compiled(tape.inputs, steps, ends, backend)
        self._count = len(numbers)
        self._mode = torch.inference_mode if backend is None else torch.no_grad

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor] | Guard:
        """Return the outputs for some inputs, or the guard that fails: the computation would go another way there."""
        with self._mode():  # inference mode: half the overhead of an operation under no_grad
            found = self._run(*inputs)
            values = found[len(found) - len(self._guards) :]
            failed = next((g for g, value in zip(self._guards, values, strict=True) if not _holds(g, value)), None)
        if failed is not None:
            return failed
        results = iter(found)
        return [(self._fixed[i] if i in self._fixed else next(results)).clone() for i in range(self._count)]


def _size(steps: Iterable[TapeStep], kept: Iterable[Tensor]) -> int:
    """Return the memory of the constants of steps, without tensors that were there before, in bytes."""
    known = {t.untyped_storage()._cdata for t in kept}
    constants = [x for step in steps for x in leaves(step.args, step.kwargs) if isinstance(x, Tensor)]
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in constants}
    return sum(size for address, size in sizes.items() if address not in known)


def _holds(guard: Guard, value: Tensor) -> bool:
    """Return whether a value is what it was when the computation was recorded."""
    if isinstance(guard.expected, Tensor):
        return torch.equal(value, guard.expected)
    found = value.item()
    return bool(found == guard.expected or (found != found and guard.expected != guard.expected))  # NaN is not itself


def _live(tape: Tape, steps: Sequence[TapeStep], wanted: Iterable[int]) -> list[TapeStep]:
    """Return the steps that some tensors depend on, through the memory that steps write to as well."""
    needed = set(wanted)
    memories = {tape.memory[n] for n in needed}
    kept = []
    for step in reversed(steps):
        if step.writes & memories or not needed.isdisjoint(step.outputs):
            kept.append(step)
            reads = step.reads
            needed |= reads
            memories |= {tape.memory[n] for n in reads}
    return kept[::-1]


def _simplified(tape: Tape, steps: list[TapeStep]) -> tuple[list[TapeStep], dict[int, int]]:
    """Leave out copies of what is never overwritten, and what was computed before.

    Returns:
        The steps, and for each tensor that is left out the one that has its value.
    """
    written = frozenset[int]().union(*(step.writes for step in steps))
    names: dict[int, int] = {}
    seen: dict[Any, tuple[int | None, ...]] = {}
    kept = []
    views: dict[Any, int] = {}  # by the memory that they lie in, and their layout in it
    for step in steps:
        step = _renamed(step, names)
        numbers = [n for n in (*step.outputs, *step.reads) if n is not None]
        if len(step.outputs) == 1 and not step.writes and step.outputs[0] is not None:
            place = tape.memory[step.outputs[0]], tape.layouts[step.outputs[0]]
            if place in views:
                names[step.outputs[0]] = names.get(views[place], views[place])
                continue
        views |= {(tape.memory[n], tape.layouts[n]): n for n in step.outputs if n is not None}
        if step.writes or any(tape.memory[n] in written for n in numbers):
            kept.append(step)
            continue
        source = _copied(tape, step)
        key = _key(step)
        if source is not None:
            names[step.outputs[0]] = source  # type: ignore[index]  # a copy has one output
        elif key in seen:
            pairs = zip(step.outputs, seen[key], strict=True)
            names |= {new: old for new, old in pairs if new is not None and old is not None}
        else:
            seen[key] = step.outputs
            kept.append(step)
    return kept, names


def _memories(tape: Tape, names: Mapping[int, int]) -> list[int]:
    """Return for each value the memory that it lies in at a replay: a view of a copy that is left out, in the original.

    Args:
        tape: the tape.
        names: for each value that is left out the one that stands for it.
    """

    def replayed(memory: int) -> int:
        while memory in names:  # a memory has the number of the first tensor in it
            memory = tape.memory[names[memory]]
        return memory

    return [replayed(memory) for memory in tape.memory]


def _renamed(step: TapeStep, names: dict[int, int]) -> TapeStep:
    """Return a step on the tensors that stand for others."""
    if names.keys().isdisjoint(step.reads):
        return step
    args, kwargs = mapped((step.args, step.kwargs), Value, lambda v: Value(names.get(v.number, v.number)))
    return replace(step, args=args, kwargs=kwargs)


def _copied(tape: Tape, step: TapeStep) -> int | None:
    """Return the tensor that a step returns unchanged, in the same layout; ``None`` if it computes something."""
    schema = getattr(step.func, "_schema", None)
    if schema is None or schema.name not in _COPIES | _SHAPES or not isinstance(step.args[0], Value):
        return None
    source, made = step.args[0].number, step.outputs[0]
    # also the strides of dimensions of one entry: torch reads them to choose a kernel
    return source if made is not None and tape.layouts[source] == tape.layouts[made] else None


def _key(step: TapeStep) -> Any:
    """Return what two steps have in common if they compute the same."""
    parts = mapped((step.args, step.kwargs), Tensor, lambda t: (t.data_ptr(), t.shape, t.stride(), t.dtype))
    return step.func, repr(parts)


def _compiled(
    inputs: Sequence[int], steps: Sequence[TapeStep], outputs: Sequence[int], backend: str | None
) -> Callable[..., Any]:
    """Return the steps as a Python function of the inputs (by torch.fx), which frees each tensor after its last use."""
    graph = fx.Graph()
    constants = {id(x): x for step in steps for x in leaves(step.args, step.kwargs) if isinstance(x, Tensor)}
    fixed = {key: graph.placeholder(f"constant_{i}") for i, key in enumerate(constants)}
    nodes = {n: graph.placeholder(f"input_{n}") for n in inputs}
    for step in steps:
        args, kwargs = mapped((step.args, step.kwargs), Tensor, lambda tensor: fixed[id(tensor)])
        args, kwargs = mapped((args, kwargs), Value, lambda value: nodes[value.number])
        overwritten = kwargs.pop("out", None) if backend is not None else None  # compilers do not take every ``out``
        func, args = called(step.func, args, kwargs)
        made = (
            graph.call_method(func, args, kwargs) if isinstance(func, str) else graph.call_function(func, args, kwargs)
        )
        if overwritten is not None:
            made = graph.call_method("copy_", (overwritten, made))
        for i, number in enumerate(step.outputs):
            if number is not None:
                nodes[number] = graph.call_function(operator.getitem, (made, i)) if step.many else made
    graph.output(tuple(nodes[n] for n in outputs))
    module = fx.GraphModule(nn.Module(), graph)
    run = module.forward if backend is None else torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    return functools.partial(run, *constants.values())
