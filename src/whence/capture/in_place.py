"""Elementwise operations that write their result over an operand: no memory is allocated for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .tape import Tape, TapeStep, Value

_aten = torch.ops.aten
#: operations whose operands may change places where both are real numbers of one type, and none is a single one
_COMMUTING = {_aten.add.Tensor, _aten.mul.Tensor}


def overwriting(
    tape: Tape, steps: Sequence[TapeStep], outputs: Sequence[int], memories: Sequence[int]
) -> list[TapeStep]:
    """Return the steps with elementwise operations in place, where no later step reads the operand.

    Args:
        tape: the tape.
        steps: its steps, or some of them.
        outputs: the values that are needed after the last step.
        memories: for each value the number of the memory that it lies in.
    """
    memory = dict(enumerate(memories))  # until a result is written over an operand
    last = {memory[n]: i for i, step in enumerate(steps) for n in (*step.reads, *step.outputs) if n is not None}
    last |= {memory[n]: len(steps) for n in (*tape.inputs, *outputs)}
    views: dict[int, list[int]] = {}
    for number, place in memory.items():
        views.setdefault(place, []).append(number)
    out = []
    for i, step in enumerate(steps):
        free = {n for n in step.reads if last[memory[n]] == i and sum(memory[n] == memory[m] for m in step.reads) == 1}
        step = _in_place(tape, step, free)
        if step.writes and isinstance(step.args[0], Value) and step.args[0].number in free:
            new, made = memory[step.args[0].number], step.outputs[0]
            assert made is not None  # an elementwise operation returns a tensor
            last[new] = last[memory[made]]
            moved = views.pop(memory[made])
            memory |= dict.fromkeys(moved, new)
            views[new] += moved
        out.append(step)
    return out


def _in_place(tape: Tape, step: TapeStep, free: Collection[int]) -> TapeStep:
    """Return an elementwise operation in place, on one of the operands that may be overwritten; others as they are."""
    made = step.outputs[0] if len(step.outputs) == 1 else None
    func = _variant_in_place(step.func)
    if not free or made is None or step.writes or func is None:
        return step
    orders = [step.args]
    if step.func in _COMMUTING and not step.kwargs and all(_is_like(tape, x, made) for x in step.args):
        orders.append((step.args[1], step.args[0]))
    for args in orders:
        first = args[0]
        if isinstance(first, Value) and first.number in free and tape.layouts[first.number] == tape.layouts[made]:
            return replace(step, func=func, args=args, writes=frozenset({tape.memory[first.number]}))
    return step


def _is_like(tape: Tape, operand: Any, made: int) -> bool:
    """Return whether an operand has the type of a result, is real and no single number: torch computes those apart."""
    shape, dtype = tape.layouts[made][0], tape.layouts[made][3]
    if isinstance(operand, Value):
        shape, own = tape.layouts[operand.number][0], tape.layouts[operand.number][3]
    elif isinstance(operand, Tensor):
        shape, own = operand.shape, operand.dtype
    else:
        return False
    return own == dtype and not dtype.is_complex and math.prod(shape) > 1


def _variant_in_place(func: Any) -> Callable[..., Any] | None:
    """Return the operation that writes the result of an elementwise one over its first operand, if there is one."""
    if torch.Tag.pointwise not in getattr(func, "tags", ()):  # functions that are no operations have no tags
        return None
    variant = getattr(_aten, f"{func._schema.name.removeprefix('aten::')}_", None)
    return getattr(variant, func._overloadname, None)
