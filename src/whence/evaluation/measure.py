"""The base class of measures, and their registry.

A measure turns each case into a vector; its value over a dataset is a function of the mean of these vectors: the area
under a curve, or the ratio of counts. So every measure is averaged, bootstrapped and compared in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from .._utils.type_checks import from_options
from ..errors import MethodError
from .case import Case, Flags, Floats

_MEASURES: dict[str, type[Measure]] = {}
M = TypeVar("M", bound="type[Measure]")


@dataclass(frozen=True)
class Measure:
    """The base class of all measures: a frozen dataclass whose fields are its options.

    Attributes:
        name: in the registry.
        paper: where it was published.
        higher: whether higher is better; ``None`` where neither is.
        along: the label of the horizontal axis, for a curve.
        needs: what it requires: ``"label"``, ``"mask"``, ``"rationale"``, ``"ledger"``, ``"runner-up"``,
            ``"randomised"``, ``"peers"``.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    higher: ClassVar[bool | None] = True
    along: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()

    def plan(self, case: Case) -> Flags:
        """Return ``[n, features]``: the features that are removed in each variant of the input that is run."""
        return np.zeros((0, len(case.scores)), bool)

    def sample(self, case: Case, logits: Floats) -> Floats:
        """Return the vector of one case.

        Args:
            case: the case.
            logits: ``[n, classes]``: of each variant of the plan.
        """
        raise NotImplementedError(f"The measure '{self.name}' does not say what it measures.")

    def finish(self, mean: Floats) -> Floats:
        """Return the value ``[...]`` from means of vectors ``[..., d]``."""
        return np.asarray(mean[..., 0])

    def axis(self) -> Floats | None:
        """Return ``[d]``: the horizontal positions of the vector's entries, if the vector is a curve."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """The options, as they are recorded."""
        return dataclasses.asdict(self)


def measure(name: str) -> Callable[[M], M]:
    """Register a measure under a name.

    Example:
        >>> @measure("mine")
        ... @dataclass(frozen=True)
        ... class Mine(Measure): ...
    """

    def register(cls: M) -> M:
        cls.name = name
        _MEASURES[name] = cls
        return cls

    return register


def list_measures() -> Mapping[str, type[Measure]]:
    """Return all measures by name.

    Example:
        >>> sorted(whence.list_measures())
    """
    return dict(sorted(_MEASURES.items()))


def create(name: str, options: Mapping[str, Any] | None = None) -> Measure:
    """Return a measure by name, with options; an unknown name or option is an error that lists those there are."""
    if name not in _MEASURES:
        raise MethodError(f"There is no measure '{name}'. Measures: {', '.join(sorted(_MEASURES))}.")
    return from_options(_MEASURES[name], f"measure '{name}'", options or {})
