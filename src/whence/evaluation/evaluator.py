"""The evaluation of samples: each is explained by several methods, and each explanation is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..datasets.item import Item
from ..errors import InputError, MethodError, ModelError, NumericalError, WhenceError
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from .case import Case, Flags, Floats
from .class_mapping import ClassMapping
from .feature_removal import Removal, removal_for
from .masked_inference import MaskedInference
from .measure import Measure
from .measurement import Measurement
from .method_spec import MethodSpec

Outcome = Explanation | WhenceError


@dataclass
class Evaluator:
    """The fixed part of an evaluation.

    Attributes:
        explainer: the model.
        specs: the methods.
        measures: what is measured for each.
        classes: the mapping of the dataset's labels to the model's classes.
        by_label: explain the true class, not the predicted one.
        baseline, unit, special: how features are removed (see :mod:`whence.evaluation.feature_removal`).
        seed: for ties, and for methods with random draws.
        batch_size: how many inputs are run together.
        randomised: the explainer of a model with random weights, where a measure needs one.
        refused: methods that are not applicable to the model, and why.
    """

    explainer: Explainer
    specs: Sequence[MethodSpec]
    measures: Sequence[Measure]
    classes: ClassMapping
    by_label: bool = False
    baseline: str | None = None
    unit: str = "patch"
    special: bool = False
    seed: int = 0
    batch_size: int = 16
    randomised: Explainer | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def rows(self, items: Sequence[Item]) -> list[Measurement]:
        """Return all measurements of some samples."""
        samples = [self._read(item) for item in items]
        readable = [i for i, sample in enumerate(samples) if isinstance(sample, Sample)]
        rows = [
            Measurement(item.id, spec.label, "", error=str(sample))
            for item, sample in zip(items, samples, strict=True) if not isinstance(sample, Sample)
            for spec in self._applicable()
        ]  # fmt: skip
        outcomes: dict[str, tuple[list[Outcome], float]] = {}
        for spec in self._applicable():
            start = time.perf_counter()
            explained = self._explain(self.explainer, [items[i] for i in readable], spec, None)
            outcomes[spec.label] = explained, (time.perf_counter() - start) / max(1, len(readable))
            self._note_inapplicable(spec, explained)
        for k, i in enumerate(readable):
            sample = samples[i]
            assert isinstance(sample, Sample)
            own = {label: (each[k], cost) for label, (each, cost) in outcomes.items() if label not in self.refused}
            rows += self._measure_sample(items[i], sample, own)
        return rows

    def _applicable(self) -> list[MethodSpec]:
        return [spec for spec in self.specs if spec.label not in self.refused]

    def _read(self, item: Item) -> Sample | WhenceError:
        try:
            if self.by_label and self.classes.of(item.label) is None:
                raise InputError("It has no label, and the true class was to be explained.")
            return self.explainer.read(item.input)
        except WhenceError as error:
            return error

    def _explain(
        self, explainer: Explainer, items: Sequence[Item], spec: MethodSpec, targets: Sequence[int] | None
    ) -> list[Outcome]:
        """Return an explanation or an error for each sample; if a batch fails, each is explained alone."""
        labels = [c for item in items if (c := self.classes.of(item.label)) is not None]
        target = list(targets) if targets is not None else labels if self.by_label else None
        inputs = [item.input for item in items]
        if not inputs:
            return []
        try:
            return list(explainer.stream(inputs, spec.method, target, batch_size=self.batch_size, **spec.options))
        except (WhenceError, RuntimeError, ValueError, ArithmeticError, LookupError) as error:
            if len(items) == 1:
                return [_as_recorded(error)]
            return [
                self._explain(explainer, [item], spec, None if targets is None else [targets[i]])[0]
                for i, item in enumerate(items)
            ]

    def _note_inapplicable(self, spec: MethodSpec, outcomes: Sequence[Outcome]) -> None:
        """Note a method as not applicable to the model if it fails on all of the first samples."""
        errors = [e for e in outcomes if isinstance(e, ModelError | MethodError)]
        if outcomes and len(errors) == len(outcomes):
            self.refused[spec.label] = str(errors[0])

    # -- one sample --------------------------------------------------------------------------------------------------

    def _measure_sample(
        self, item: Item, sample: Sample, outcomes: dict[str, tuple[Outcome, float]]
    ) -> list[Measurement]:
        """Return all measurements of one sample; the variants of all methods are run together."""
        rows: list[Measurement] = []
        cases: dict[str, Case] = {}
        inference: MaskedInference | None = None
        for label, (e, cost) in outcomes.items():
            try:
                if isinstance(e, WhenceError):
                    raise e
                inference = inference or self._inference(sample, e)
                cases[label] = self._case(item, e, inference.removal)
            except WhenceError as error:
                rows.append(Measurement(item.id, label, "", seconds=cost, error=str(error)))
        if inference is None:
            return rows
        cases = {label: replace(case, peers=_peers(cases, label)) for label, case in cases.items()}
        plans = {(label, m.name): m.plan(case) for label, case in cases.items() for m in self.measures}
        for plan in plans.values():
            inference.enqueue(plan)
        for spec in self._applicable():
            if spec.label in cases:
                rows += self._measure_case(spec, cases[spec.label], inference, plans, outcomes[spec.label][1])
        return rows

    def _inference(self, sample: Sample, e: Explanation) -> MaskedInference:
        removal = removal_for(self.explainer, sample, e, self.baseline, self.unit, self.special)
        return MaskedInference(self.explainer, sample, removal, self.batch_size)

    def _case(self, item: Item, e: Explanation, removal: Removal) -> Case:
        if e.target is None:
            raise InputError("The model has no classes, so there is no class whose explanation could be measured.")
        scores = _finite(removal.scores(e))
        return Case(item, e, scores, int(e.target[0]), self.classes.of(item.label), seed=self.seed)

    def _measure_case(
        self, spec: MethodSpec, case: Case, inference: MaskedInference, plans: dict[tuple[str, str], Flags], cost: float
    ) -> list[Measurement]:
        """Return each measure of one explanation."""
        rows = []
        for m in self.measures:
            if "ledger" in m.needs and case.explanation.ledger is None:
                continue  # the method has no ledger: a dash in the table
            row = _row(case, spec.label, m.name, cost)
            try:
                case = self._with_needs(spec, case, m, inference.removal)
                vector = m.sample(case, inference.logits(plans[spec.label, m.name]))
                rows.append(replace(row, vector=tuple(map(float, vector))))
            except WhenceError as error:
                rows.append(replace(row, error=str(error)))
        return rows

    def _with_needs(self, spec: MethodSpec, case: Case, m: Measure, removal: Removal) -> Case:
        """Return the case with what a measure needs beyond the explanation; raise where that does not exist."""
        has = {"label": case.label, "mask": case.item.mask, "rationale": case.item.rationale}
        for what in m.needs & set(has):
            if has[what] is None:
                raise InputError(f"The sample has no {what}, which '{m.name}' needs.")
        if "peers" in m.needs and len(case.peers) < len(self._applicable()) - 1:
            raise InputError("Not every method explains this sample, so the methods cannot be compared on it.")
        if "runner-up" in m.needs and case.runner_up is None:
            ranked = [int(c) for c in np.argsort(-case.logits) if int(c) != case.target]
            if not ranked:
                raise InputError(f"The model has one class, so '{m.name}' has no other to compare it with.")
            case = replace(case, runner_up=self._scores(self.explainer, spec, case, ranked[0], removal))
        if "randomised" in m.needs and case.randomised is None:
            assert self.randomised is not None
            case = replace(case, randomised=self._scores(self.randomised, spec, case, case.target, removal))
        return case

    def _scores(self, explainer: Explainer, spec: MethodSpec, case: Case, target: int, removal: Removal) -> Floats:
        (outcome,) = self._explain(explainer, [case.item], spec, [target])
        if isinstance(outcome, WhenceError):
            raise outcome
        return _finite(removal.scores(outcome))


def _peers(cases: Mapping[str, Case], label: str) -> dict[str, Floats]:
    """Return the scores of all other methods."""
    return {other: case.scores for other, case in cases.items() if other != label}


def _as_recorded(error: Exception) -> WhenceError:
    if isinstance(error, WhenceError):
        return error
    return WhenceError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def _finite(scores: Floats) -> Floats:
    if not np.isfinite(scores).all():
        raise NumericalError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are not finite numbers.")
    return scores


def _row(case: Case, label: str, measure: str, seconds: float) -> Measurement:
    predicted = case.explanation.prediction
    prediction = None if predicted is None else int(predicted[0])
    return Measurement(case.item.id, label, measure, (), prediction, case.target, case.label, seconds)
