"""One way to load a model, and the plain model that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """The same model, plain and as it is loaded, each as a function that explains one fixed input.

    Attributes:
        plain: takes a method's name; returns the explanation of the plain model.
        loaded: the same of the model as it is loaded.
    """

    plain: Callable[[str], Any]
    loaded: Callable[[str], Any]


@dataclass(frozen=True)
class Case:
    """One row of the table of `docs/ecosystem.md`.

    Attributes:
        name: how the model is loaded: "LoRA, unmerged".
        package: the package that loads it: "peft".
        build: makes the pair. It raises an error of Whence where the model itself is refused.
        correlation: where weights are rounded, the least rank correlation that counts as close; `None`: scores are
            equal up to rounding of the arithmetic, or the case fails.
    """

    name: str
    package: str
    build: Callable[[], Pair]
    correlation: float | None = None
