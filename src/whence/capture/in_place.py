"""Elementwise operations that write their result over an operand: no memory is allocated for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from .tape import Tape, TapeStep, Value

_aten = torch.ops.aten
#: operations whose operands may change places: the result is the same, bit for bit
_COMMUTING = {_aten.add.Tensor, _aten.mul.Tensor}


def overwriting(tape: Tape, steps: Sequence[TapeStep], outputs: Sequence[int]) -> list[TapeStep]:
    """Return the steps with elementwise operations in place, where no later step reads the operand.

    Args:
        tape: the tape.
        steps: its steps, or some of them.
        outputs: the values that are needed after the last step.
    """
    memory = dict(enumerate(tape.memory))  # as in the tape, until a result is written over an operand
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
    if not free or step.writes or step.many or step.outputs[0] is None or torch.Tag.pointwise not in _tags(step):
        return step
    overload = getattr(_aten, f"{step.func._schema.name.removeprefix('aten::')}_", None)
    func = getattr(overload, step.func._overloadname, None)
    if func is None:
        return step
    orders = [step.args]
    if step.func in _COMMUTING and not step.kwargs:
        orders.append((step.args[1], step.args[0]))
    for args in orders:
        number = args[0].number if isinstance(args[0], Value) else None
        if number in free and tape.layouts[number] == tape.layouts[step.outputs[0]]:
            return replace(step, func=func, args=args, writes=frozenset({tape.memory[number]}))
    return step


def _tags(step: TapeStep) -> Collection[torch.Tag]:
    """Return how torch describes an operation; nothing for a function that is none of the dispatcher."""
    return getattr(step.func, "tags", ())
