"""Steps that torch has taken apart, joined again: a linear layer is one call, not a view, a product and a view."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .tape import Tape, TapeStep, Value

_aten = torch.ops.aten
#: operations that give the entries of a contiguous tensor another shape
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}

Layouts = Sequence[tuple[Any, ...]]


def layers_joined(tape: Tape, steps: Sequence[TapeStep], outputs: Sequence[int]) -> list[TapeStep]:
    """Return the steps with views of views joined, and products between two views run on the original shape.

    Args:
        tape: the tape.
        steps: its steps, or some of them.
        outputs: the values that are needed after the last step.
    """
    layouts = tape.layouts
    readers = Counter(n for step in steps for n in step.reads)
    readers.update(outputs)
    overwritten = frozenset[int]().union(*(step.writes for step in steps))
    written = {n for n, memory in enumerate(tape.memory) if memory in overwritten}
    made = {n: step for step in steps for n in step.outputs if n is not None}
    views: dict[int, TapeStep] = {}
    out = []
    for step in steps:
        if step.func in _VIEWS and isinstance(step.args[0], Value) and step.args[0].number not in written:
            step = _view_joined(_layer_joined(step, made, layouts, readers, written), views, layouts)
            views |= {n: step for n in step.outputs if n is not None}
        out.append(step)
    return out


def _view_joined(view: TapeStep, views: dict[int, TapeStep], layouts: Layouts) -> TapeStep:
    """Return a view of a view as one of the tensor that the other is a view of."""
    before = views.get(view.args[0].number)
    if before is None or {view.func, before.func} - _VIEWS or not _contiguous(layouts[before.args[0].number]):
        return view
    return replace(view, args=(before.args[0], view.args[1]))


def _layer_joined(
    view: TapeStep, made: dict[int, TapeStep], layouts: Layouts, readers: Counter[int], written: set[int]
) -> TapeStep:
    """Return a view of a layer's flat output as the layer on the tensor that its operand was flattened from."""
    before = made.get(view.args[0].number)
    if before is None:
        return view
    (number,) = view.outputs
    if before.func not in (_aten.addmm.default, _aten.mm.default) or readers[view.args[0].number] > 1 or before.kwargs:
        return view
    *bias, x, weight = before.args
    flattened = made.get(x.number) if isinstance(x, Value) else None
    if flattened is None or flattened.func not in _VIEWS or not isinstance(weight, Tensor) or number is None:
        return view
    source = flattened.args[0]
    if source.number in written:
        return view
    shape = layouts[source.number][0]
    if not _usual(layouts[source.number]) or shape[:-1] != layouts[number][0][:-1] or len(shape) != 3:
        return view
    if bias and isinstance(bias[0], Tensor):
        return replace(view, func=torch._C._nn.linear, args=(source, weight.t(), bias[0]))
    return view if bias else replace(view, func=torch.matmul, args=(source, weight))


def _contiguous(layout: tuple[Any, ...]) -> bool:
    """Return whether a tensor lies in memory entry after entry."""
    shape, strides, *_ = layout
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _usual(layout: tuple[Any, ...]) -> bool:
    """Return whether all strides are as usual, of dimensions of one entry as well: torch reads them to choose a kernel.

    A product of ``[tokens, 1, features]`` may be one of matrices or one of batches, which are rounded differently.
    """
    shape, strides, *_ = layout
    expected = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return list(strides) == expected
