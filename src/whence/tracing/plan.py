"""The plan of a model: what each of its calls was found to be, kept for its next explanation.

A model that is explained again for inputs of the same shapes makes the same calls. What they are need not be found out
again, as long as they are: a call is looked up by its number, and believed if its name and its operands agree.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from .op_call import Call, tensors_in

#: how many plans are kept for one model: of different shapes, and with attention fused or not
PLANS = 16


class Decision(NamedTuple):
    """What a call is, if it is run as it stands.

    Attributes:
        name: of the operation.
        operands: the tensors that it reads, by ``seq``; ``None`` for constants.
        kind: its kind.
        statistic: the position of the operand that is a deviation.
        probabilities: the position of the operand that is an attention map.
    """

    name: str
    operands: tuple[int | None, ...]
    kind: str
    statistic: int | None
    probabilities: int | None


class Plan:
    """Decisions by the number of the call."""

    def __init__(self) -> None:
        self._decisions: dict[int, Decision] = {}

    def decided(self, number: int, call: Call) -> bool:
        """Return whether a call was seen before and is to be run as it stands; it then has its kind."""
        found = self._decisions.get(number)
        if found is None or found.name != call.name or found.operands != _operands(call):
            return False
        call.decide(found.kind, found.statistic, found.probabilities)
        return True

    def keep(self, number: int, call: Call, written: Call) -> None:
        """Keep what a call, which is run as it stands, was found to be."""
        places = {id(t): i for i, t in enumerate(written.tensors)}
        self._decisions[number] = Decision(
            written.name,
            _operands(written),
            call.kind,
            places.get(id(call.statistic)),
            places.get(id(call.probabilities)),
        )


def _operands(call: Call) -> tuple[int | None, ...]:
    return tuple([None if node is None else node.seq for node in call.nodes])


_PLANS: WeakKeyDictionary[nn.Module, dict[Hashable, Plan]] = WeakKeyDictionary()


def plan_of(model: nn.Module, args: list[Any], kwargs: Mapping[str, Any], *settings: Hashable) -> Plan:
    """Return the plan of a model for inputs of some shapes and types, empty at first.

    Args:
        model: the model.
        args, kwargs: its inputs.
        settings: what else decides about the calls that are seen.
    """
    tensors = [(t.shape, t.dtype, t.device) for t in tensors_in(*args, *kwargs.values())]
    plans = _PLANS.setdefault(model, {})
    key = (tuple(tensors), tuple(sorted(kwargs)), *settings)
    if key not in plans:
        while len(plans) >= PLANS:
            plans.pop(next(iter(plans)))
        plans[key] = Plan()
    return plans[key]
