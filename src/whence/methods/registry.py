"""The registry of methods: register, list and create them by name."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from .._utils.type_checks import from_options
from ..errors import MethodError
from .base import Method

REGISTRY: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def method(name: str) -> Callable[[M], M]:
    """Register a method under a name; a class that is not a dataclass becomes one.

    Example:
        >>> @whence.method("mine")
        ... @dataclass
        ... class Mine(whence.Method):
        ...     def rulebook(self): ...
        ...     def read(self, run): ...
    """

    def register(cls: M) -> M:
        if "__dataclass_fields__" not in vars(cls):
            dataclass(cls)
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return register


class Methods(dict[str, type[Method]]):
    """Methods by name; printed as a table."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per method: its class attributes, and its options with their defaults."""
        return [
            {
                "name": name, "class_specific": cls.class_specific, "conservative": cls.conservative, "lrp": cls.lrp,
                "forwards": cls.forwards, "backwards": cls.backwards, "needs": cls.needs, "paper": cls.paper,
                "shows": cls.shows, "beware": cls.beware,
                "options": {f.name: f.default for f in fields(cls)},  # type: ignore[arg-type]  # a dataclass
            }
            for name, cls in self.items()
        ]  # fmt: skip

    def table(self, width: int | None = None) -> str:
        """Return a line for each method; where ``width`` columns are too few, its needs and paper on lines below."""
        cells = [["method", "per-class", "conserves", "LRP", "forwards", "backwards", "needs", "paper"]]
        cells += [[_cell(value) for value in row.values()][:8] for row in self.rows()]
        widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
        lines = ["  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip() for row in cells]
        if width is None or max(map(len, lines)) <= width:
            return "\n".join(lines)
        lines = [line[: sum(widths[:6]) + 10].rstrip() for line in lines]
        below = textwrap.TextWrapper(width, initial_indent="    ", subsequent_indent="    ")
        notes = [below.fill(f"needs {needs}" + (f"; {paper}" if paper else "")) for *_, needs, paper in cells[1:]]
        return "\n".join([lines[0], *(part for pair in zip(lines[1:], notes, strict=True) for part in pair)])

    def __repr__(self) -> str:
        return self.table(shutil.get_terminal_size().columns)


def _cell(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def list_methods() -> Methods:
    """Return every method, by name.

    Example:
        >>> print(whence.list_methods())
        >>> whence.list_methods()["conservative-lrp"].paper
        'Ali et al., ICML 2022'
    """
    return Methods(sorted(REGISTRY.items()))


def create(name: str, options: dict[str, Any]) -> Method:
    """Return a method with its options, or raise an error that names the nearest one."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(str(name), REGISTRY, n=1, cutoff=0.3)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise MethodError(f"There is no method '{name}'.{hint} Methods: {', '.join(sorted(REGISTRY))}.")
    return from_options(REGISTRY[name], f"method '{name}'", options)
