"""Rules made of functions.

A rule is anything with the attributes of :class:`whence.tracing.op_call.Rule`. Most are a function of the operation,
which the decorators :func:`rule` and :func:`conserving` turn into one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..tracing.op_call import Call, RuleResult


@dataclass(frozen=True)
class FunctionRule:
    """A rule that is one function of the operation.

    Attributes:
        name: for the coverage.
        function: returns the value of the operation with the derivative that the rule prescribes, or a
            :class:`RuleResult` that says more.
        conserves: whether all relevance of the output reaches the inputs, except for the share of a bias.
    """

    name: str
    function: Callable[[Call], Any]
    conserves: bool = False

    def accepts(self, call: Call) -> bool:
        """Return whether the rule applies to an operation of its kind: always."""
        return True

    def apply(self, call: Call) -> RuleResult:
        """Run an operation."""
        found = self.function(call)
        return found if isinstance(found, RuleResult) else RuleResult(found)


def rule(function: Callable[[Call], Any]) -> FunctionRule:
    """Turn a function of an operation into a rule, under the function's name.

    Example:
        >>> @rule
        ... def keep_gradient(call):
        ...     return call.run()
    """
    return FunctionRule(function.__name__, function)


def conserving(function: Callable[[Call], Any]) -> FunctionRule:
    """Turn a function into a rule under which all relevance of the output reaches the inputs, except for a bias."""
    return FunctionRule(function.__name__, function, conserves=True)
