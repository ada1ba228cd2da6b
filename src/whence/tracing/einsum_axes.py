"""The letters of an einsum: which axis of an operand goes where."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, TypeVar

Dim = TypeVar("Dim")


def letters(equation: Any, dims: Sequence[int]) -> tuple[list[str], str] | None:
    """The terms of the operands and of the result, ``...`` replaced by letters, the result's added if it is not given.

    Args:
        equation: such as ``"...qd,...kd->...qk"``.
        dims: how many dimensions each operand has.
    """
    if not isinstance(equation, str):
        return None
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(dims):
        return None
    free = [letter for letter in string.ascii_letters if letter not in equation]
    hidden = [n - len(term.replace("...", "")) for term, n in zip(terms, dims, strict=True)]
    every = "".join(free[: max((n for term, n in zip(terms, hidden, strict=True) if "..." in term), default=0)])
    written = [term.replace("...", every[len(every) - n :]) for term, n in zip(terms, hidden, strict=True)]
    if not arrow:
        named = left.replace("...", "").replace(",", "")
        right = ("..." if every else "") + "".join(sorted(c for c in set(named) if named.count(c) == 1))
    return written, right.replace("...", every)


def follow(equation: Any, known: Sequence[tuple[tuple[Dim, ...], Any]]) -> tuple[Dim, ...] | None:
    """Axes of the result, each from the first operand that has it."""
    found = letters(equation, [len(axes) for axes, _ in known])
    if found is None:
        return None
    dims: dict[str, Dim] = {}
    for term, (axes, _) in zip(found[0], known, strict=True):
        for letter, dim in zip(term, axes, strict=True):
            dims[letter] = dims.get(letter) or dim
    return tuple(dims[letter] for letter in found[1])
