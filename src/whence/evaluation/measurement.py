"""One measurement: a sample, a method, a measure, and the vector that was found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One measurement, or why there is none.

    Attributes:
        id: the sample.
        method: the contender's label.
        measure: the measure's name; empty where the explanation itself failed.
        vector: what was measured; empty where it failed.
        prediction, target, label: classes: what the model said, what was explained, what is right.
        seconds: what the explanation cost, without what it was measured with.
        error: why there is no vector.
    """

    id: str
    method: str
    measure: str
    vector: tuple[float, ...] = ()
    prediction: int | None = None
    target: int | None = None
    label: int | None = None
    seconds: float = 0.0
    error: str = ""
