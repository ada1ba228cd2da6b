"""A method with its options, under the name that it has in a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import MethodError
from ..methods.registry import create
from ..methods.registry import list_methods as all_methods


@dataclass(frozen=True)
class Contender:
    """A method in a comparison.

    Attributes:
        label: its name in the table.
        method: the method's name.
        options: the method's options.
    """

    label: str
    method: str
    options: Mapping[str, Any]


def contender(given: str | Contender) -> Contender:
    """A contender from ``"[label=]method[:option=value,...]"``.

    Example:
        >>> contender("LRP (AH)=conservative-lrp:norms=false")
        Contender(label='LRP (AH)', method='conservative-lrp', options={'norms': False})
    """
    if isinstance(given, Contender):
        return _checked(given)
    head, _, tail = given.partition(":")
    label, _, name = head.rpartition("=")
    options = dict(_option(part, given) for part in tail.split(",") if part.strip())
    return _checked(Contender(label.strip() or given.strip(), name.strip(), options))


def _option(part: str, given: str) -> tuple[str, Any]:
    name, equals, value = part.partition("=")
    if not equals:
        raise MethodError(f"'{part}' in '{given}' is no option: write option=value.")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()


def _checked(one: Contender) -> Contender:
    create(one.method, dict(one.options))  # an unknown method or option is named at once
    return one


def contenders(given: str | Iterable[str | Contender] | None) -> list[Contender]:
    """Contenders from names; ``None``: every method; labels must differ."""
    if given is None:
        given = list(all_methods())
    found = [contender(one) for one in ([given] if isinstance(given, str) else given)]
    twice = {one.label for one in found if sum(other.label == one.label for other in found) > 1}
    if twice:
        raise MethodError(f"Two methods are called '{sorted(twice)[0]}': give each its label, as in 'label=method'.")
    return found
