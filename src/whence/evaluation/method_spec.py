"""A method with its options and its label in a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import MethodError
from ..methods.registry import create, list_methods


@dataclass(frozen=True)
class MethodSpec:
    """A method with options in a comparison.

    Attributes:
        label: in the table.
        method: the method's name.
        options: the method's options.
    """

    label: str
    method: str
    options: Mapping[str, Any]


def parse_spec(given: str | MethodSpec) -> MethodSpec:
    """Parse ``"[label=]method[:option=value,...]"``.

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


def _checked(spec: MethodSpec) -> MethodSpec:
    create(spec.method, dict(spec.options))  # raises for an unknown method or option
    return spec


def resolve_specs(given: str | Iterable[str | MethodSpec] | None) -> list[MethodSpec]:
    """Return the specs of names; ``None``: every method; labels must differ."""
    if given is None:
        given = list(list_methods())
    specs = [parse_spec(one) for one in ([given] if isinstance(given, str) else given)]
    twice = {spec.label for spec in specs if sum(other.label == spec.label for other in specs) > 1}
    if twice:
        raise MethodError(f"Two methods are called '{sorted(twice)[0]}': give each its label, as in 'label=method'.")
    return specs
