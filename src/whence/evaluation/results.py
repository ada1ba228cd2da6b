"""The results of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import InputError
from .bootstrap import interval, paired_interval
from .case import Floats
from .measure import Measure, create
from .measurement import Measurement


@dataclass(frozen=True)
class Cell:
    """The value of a measure for a method.

    Attributes:
        method, measure: their names.
        value: over all samples.
        low, high: its 95 % interval.
        samples: the number of samples.
    """

    method: str
    measure: str
    value: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class Difference:
    """The difference of a measure between two methods, on the samples that both explain."""

    measure: str
    method: str
    other: str
    value: float
    low: float
    high: float
    samples: int


@dataclass
class Evaluation:
    """The results of an evaluation.

    Attributes:
        settings: all that they depend on: dataset, model, methods, measures, baseline, seeds.
        rows: one per sample, method and measure.
        refused: methods that are not applicable to the model, and why.
        warned: the warnings, without numbers, each with its count.

    Example:
        >>> found = whence.evaluate(explainer, "sst2", ["conservative-lrp", "random"], ["auac"], root="data")
        >>> print(found.table())
    """

    settings: Mapping[str, Any]
    rows: Sequence[Measurement]
    refused: Mapping[str, str] = field(default_factory=dict)
    warned: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """The measures, by name."""
        return {m["name"]: create(m["name"], m["options"]) for m in self.settings["measures"]}

    @property
    def methods(self) -> list[str]:
        """The labels of the applicable methods."""
        return [m["label"] for m in self.settings["methods"] if m["label"] not in self.refused]

    @cached_property
    def _vectors(self) -> dict[tuple[str, str], dict[str, Floats]]:
        """(method, measure) -> sample -> vector; samples in the order of their ids."""
        out: dict[tuple[str, str], dict[str, Floats]] = {}
        for row in sorted(self.rows, key=lambda row: row.id):
            if row.vector:
                out.setdefault((row.method, row.measure), {})[row.id] = np.asarray(row.vector)
        return out

    # -- values ------------------------------------------------------------------------------------------------------

    def cell(self, method: str, measure: str) -> Cell | None:
        """Return one cell of the table; ``None`` where nothing was measured."""
        found = self._vectors.get((method, measure))
        if not found:
            return None
        vectors = np.stack(list(found.values()))
        m = self.measures[measure]
        low, high = interval(vectors, m.finish, self.settings["bootstrap"], self.settings["seed"])
        return Cell(method, measure, float(m.finish(vectors.mean(0))), low, high, len(vectors))

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells of the table."""
        every = (self.cell(method, measure) for measure in self.measures for method in self.methods)
        return [cell for cell in every if cell is not None]

    def curve(self, method: str, measure: str) -> tuple[Floats, Floats] | None:
        """Return the horizontal positions and values of a mean curve; ``None`` where the measure is no curve."""
        found = self._vectors.get((method, measure))
        axis = self.measures[measure].axis()
        return None if not found or axis is None else (axis, np.stack(list(found.values())).mean(0))

    def difference(self, measure: str, method: str, other: str) -> Difference:
        """Compare two methods on the samples that both explain.

        Example:
            >>> found.difference("auac", "conservative-lrp", "random").low > 0
        """
        a, b = (self._vectors.get((label, measure), {}) for label in (method, other))
        shared = [name for name in a if name in b]
        if not shared:
            raise InputError(f"'{method}' and '{other}' have no sample in common on which '{measure}' was measured.")
        x, y = (np.stack([each[name] for name in shared]) for each in (a, b))
        finish = self.measures[measure].finish
        low, high = paired_interval(x, y, finish, self.settings["bootstrap"], self.settings["seed"])
        value = float(finish(x.mean(0)) - finish(y.mean(0)))
        return Difference(measure, method, other, value, low, high, len(shared))

    def differences(self, measure: str) -> list[Difference]:
        """Compare every pair of methods."""
        measured = [method for method in self.methods if (method, measure) in self._vectors]
        return [self.difference(measure, a, b) for i, a in enumerate(measured) for b in measured[i + 1 :]]

    # -- summary -----------------------------------------------------------------------------------------------------

    @property
    def accuracy(self) -> float | None:
        """The model's accuracy on the samples; ``None`` without labels."""
        correct = {row.id: row.prediction == row.label for row in self.rows if row.label is not None and row.measure}
        return sum(correct.values()) / len(correct) if correct else None

    @property
    def samples(self) -> int:
        """The number of samples with a measurement."""
        return len({row.id for row in self.rows if row.vector})

    def seconds(self, method: str) -> float:
        """Return the mean time of one explanation."""
        costs = {row.id: row.seconds for row in self.rows if row.method == method and row.measure}
        return sum(costs.values()) / len(costs) if costs else float("nan")

    @property
    def failures(self) -> list[Measurement]:
        """The rows that could not be explained or measured, each with its error."""
        return [row for row in self.rows if row.error]

    def summary(self) -> dict[str, Any]:
        """Return everything but the vectors, as it is written to ``results.json``."""
        return {
            "settings": dict(self.settings),
            "samples": self.samples,
            "accuracy": self.accuracy,
            "cells": [vars(cell) for cell in self.cells],
            "curves": {
                name: {"axis": list(map(float, axis)), "methods": self._curves(name)}
                for name, axis in ((name, m.axis()) for name, m in self.measures.items())
                if axis is not None
            },
            "differences": [vars(d) for name in self.measures for d in self.differences(name)],
            "seconds": {method: self.seconds(method) for method in self.methods},
            "refused": dict(self.refused),
            "warned": dict(self.warned),
            "failures": [
                {"id": r.id, "method": r.method, "measure": r.measure, "error": r.error} for r in self.failures
            ],
        }

    def _curves(self, measure: str) -> dict[str, list[float]]:
        found = ((method, self.curve(method, measure)) for method in self.methods)
        return {method: list(map(float, curve[1])) for method, curve in found if curve is not None}

    def table(self) -> str:
        """Return the values with their intervals, one method per line, as text."""
        head = ["method", *self.measures, "s per sample"]
        body = [
            [method, *(_format(self.cell(method, name)) for name in self.measures), f"{self.seconds(method):.3g}"]
            for method in self.methods
        ]
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        lines = [
            "  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in [head, *body]
        ]
        return "\n".join([*lines, "", *self.notes()])

    def notes(self) -> Iterable[str]:
        """Yield the notes below the table."""
        accuracy = "unknown (no labels)" if self.accuracy is None else f"{self.accuracy:.1%}"
        yield f"{self.samples} samples; the model's accuracy on them: {accuracy}; 95 % intervals by bootstrap."
        better = {True: "higher is better", False: "lower is better", None: "neither is better"}
        yield "; ".join(f"{name}: {better[m.higher]}" for name, m in self.measures.items()) + "."
        for label, why in self.refused.items():
            yield f"{label} does not apply: {why}"
        for message, times in self.warned.items():
            yield f"Warned of {times} times: {message}"
        if self.failures:
            first = self.failures[0]
            lost = len({(row.id, row.method) for row in self.failures})
            yield f"{lost} explanations failed or could not be measured; the first: sample {first.id}, {first.error}"


def _format(cell: Cell | None) -> str:
    return "-" if cell is None else f"{cell.value:.3f} [{cell.low:.3f}, {cell.high:.3f}]"
