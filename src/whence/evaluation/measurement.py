"""One measurement: the vector of a measure for a sample and a method."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One measurement, or the error in its place.

    Attributes:
        id: the sample.
        method: the method's label.
        measure: the measure's name; empty where the explanation itself failed.
        vector: empty where it failed.
        prediction, target, label: the predicted, the explained and the true class.
        seconds: the time of the explanation, without that of the measures.
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
