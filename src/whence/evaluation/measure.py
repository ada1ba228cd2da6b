"""What is measured of an explanation, and the list of all measures.

A measure turns each case into a vector; its value over a dataset is a function of the mean of these vectors: of a curve
the area under it, of counts their quotient. So every measure is averaged, bootstrapped and compared in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from .._utils.type_checks import made
from ..errors import MethodError
from .case import Case, Flags, Floats

_MEASURES: dict[str, type[Measure]] = {}
M = TypeVar("M", bound="type[Measure]")


@dataclass(frozen=True)
class Measure:
    """Base of all measures: a frozen dataclass whose fields are its options.

    Attributes:
        name: as it is asked for.
        paper: where it was published.
        higher: whether more is better; ``None`` where neither is.
        along: of a curve, what its horizontal axis is.
        needs: what it cannot do without: ``"label"``, ``"mask"``, ``"rationale"``, ``"ledger"``, ``"runner-up"``,
            ``"randomised"``, ``"peers"``.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    higher: ClassVar[bool | None] = True
    along: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()

    def plan(self, case: Case) -> Flags:
        """``[n, features]``: which features are removed in each input that the model is to be asked about."""
        return np.zeros((0, len(case.scores)), bool)

    def sample(self, case: Case, logits: Floats) -> Floats:
        """The vector of one case.

        Args:
            case: the case.
            logits: ``[n, classes]``: what the model says of each input of the plan.
        """
        raise NotImplementedError(f"The measure '{self.name}' does not say what it measures.")

    def finish(self, mean: Floats) -> Floats:
        """``[...]``: the value, from means of vectors ``[..., d]``."""
        return np.asarray(mean[..., 0])

    def axis(self) -> Floats | None:
        """``[d]``: where on the horizontal axis each entry of the vector stands, if the vector is a curve."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """Its options, as they are recorded."""
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


def measures() -> Mapping[str, type[Measure]]:
    """All measures by name.

    Example:
        >>> sorted(whence.evaluation.measures())
    """
    return dict(sorted(_MEASURES.items()))


def create(name: str, options: Mapping[str, Any] | None = None) -> Measure:
    """A measure by name, with options; an unknown name or option is refused with what there is."""
    if name not in _MEASURES:
        raise MethodError(f"There is no measure '{name}'. Measures: {', '.join(sorted(_MEASURES))}.")
    return made(_MEASURES[name], f"measure '{name}'", options or {})
