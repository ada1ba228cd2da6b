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
class MethodSpec:
    """A method in a comparison.

    Attributes:
        label: its name in the table.
        method: the method's name.
        options: the method's options.
    """

    label: str
    method: str
    options: Mapping[str, Any]


def parse_spec(given: str | MethodSpec) -> MethodSpec:
    """A contender from ``"[label=]method[:option=value,...]"``.

    Example:
        >>> parse_spec("LRP (AH)=conservative-lrp:norms=false")
        MethodSpec(label='LRP (AH)', method='conservative-lrp', options={'norms': False})
    """
    if isinstance(given, MethodSpec):
        return _checked(given)
    head, _, tail = given.partition(":")
    label, _, name = head.rpartition("=")
    options = dict(_option(part, given) for part in tail.split(",") if part.strip())
    return _checked(MethodSpec(label.strip() or given.strip(), name.strip(), options))


def _option(part: str, given: str) -> tuple[str, Any]:
    name, equals, value = part.partition("=")
    if not equals:
        raise MethodError(f"'{part}' in '{given}' is no option: write option=value.")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()


def _checked(one: MethodSpec) -> MethodSpec:
    create(one.method, dict(one.options))  # an unknown method or option is named at once
    return one


def resolve_specs(given: str | Iterable[str | MethodSpec] | None) -> list[MethodSpec]:
    """Contenders from names; ``None``: every method; labels must differ."""
    if given is None:
        given = list(all_methods())
    found = [parse_spec(one) for one in ([given] if isinstance(given, str) else given)]
    twice = {one.label for one in found if sum(other.label == one.label for other in found) > 1}
    if twice:
        raise MethodError(f"Two methods are called '{sorted(twice)[0]}': give each its label, as in 'label=method'.")
    return found
