"""Explains samples by several methods, and measures each explanation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..datasets.item import Item
from ..errors import InputError, MethodError, ModelError, NumericalError, WhenceError
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from .case import Case, Flags, Floats
from .class_mapping import Classes
from .feature_removal import Removal, removal
from .masked_inference import Questions
from .measure import Measure
from .measurement import Row
from .method_spec import Contender

Found = Explanation | WhenceError


@dataclass
class Evaluator:
    """What is fixed in one evaluation.

    Attributes:
        explainer: the model.
        contenders: the methods.
        measures: what is measured of each.
        classes: labels as the model counts them.
        by_label: explain the true class, not the predicted one.
        baseline, unit, special: how features are removed (see :mod:`whence.evaluation.feature_removal`).
        seed: for ties, and for methods that draw.
        batch_size: how many are run together.
        stranger: the explainer of a model with random weights, where a measure needs one.
        refused: methods that do not apply to the model, and why.
    """

    explainer: Explainer
    contenders: Sequence[Contender]
    measures: Sequence[Measure]
    classes: Classes
    by_label: bool = False
    baseline: str | None = None
    unit: str = "patch"
    special: bool = False
    seed: int = 0
    batch_size: int = 16
    stranger: Explainer | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def rows(self, items: Sequence[Item]) -> list[Row]:
        """All measurements of some samples."""
        samples = [self._read(item) for item in items]
        good = [i for i, sample in enumerate(samples) if isinstance(sample, Sample)]
        rows = [
            Row(item.id, one.label, "", error=str(sample))
            for item, sample in zip(items, samples, strict=True) if not isinstance(sample, Sample)
            for one in self._applying()
        ]  # fmt: skip
        found: dict[str, tuple[list[Found], float]] = {}
        for one in self._applying():
            start = time.perf_counter()
            explained = self._explained(self.explainer, [items[i] for i in good], one, None)
            found[one.label] = explained, (time.perf_counter() - start) / max(1, len(good))
            self._refuse(one, explained)
        for k, i in enumerate(good):
            sample = samples[i]
            assert isinstance(sample, Sample)
            mine = {label: (each[k], cost) for label, (each, cost) in found.items() if label not in self.refused}
            rows += self._measured(items[i], sample, mine)
        return rows

    def _applying(self) -> list[Contender]:
        return [one for one in self.contenders if one.label not in self.refused]

    def _read(self, item: Item) -> Sample | WhenceError:
        try:
            if self.by_label and self.classes.of(item.label) is None:
                raise InputError("It has no label, and the true class was to be explained.")
            return self.explainer.read(item.input)
        except WhenceError as error:
            return error

    def _explained(
        self, explainer: Explainer, items: Sequence[Item], one: Contender, targets: Sequence[int] | None
    ) -> list[Found]:
        """An explanation of each, or why there is none; if a batch fails, each by itself."""
        true = [c for item in items if (c := self.classes.of(item.label)) is not None]
        target = list(targets) if targets is not None else true if self.by_label else None
        given = [item.input for item in items]
        if not given:
            return []
        try:
            return list(explainer.stream(given, one.method, target, batch_size=self.batch_size, **one.options))
        except (WhenceError, RuntimeError, ValueError, ArithmeticError, LookupError) as error:
            if len(items) == 1:
                return [_told(error)]
            return [
                self._explained(explainer, [item], one, None if targets is None else [targets[i]])[0]
                for i, item in enumerate(items)
            ]

    def _refuse(self, one: Contender, found: Sequence[Found]) -> None:
        """A method that applies to none of the first samples does not apply to the model."""
        errors = [e for e in found if isinstance(e, ModelError | MethodError)]
        if found and len(errors) == len(found):
            self.refused[one.label] = str(errors[0])

    # -- one sample --------------------------------------------------------------------------------------------------

    def _measured(self, item: Item, sample: Sample, found: dict[str, tuple[Found, float]]) -> list[Row]:
        rows: list[Row] = []
        cases: dict[str, Case] = {}
        questions: Questions | None = None
        for label, (e, cost) in found.items():
            try:
                if isinstance(e, WhenceError):
                    raise e
                questions = questions or self._questions(sample, e)
                cases[label] = self._case(item, e, questions.removal)
            except WhenceError as error:
                rows.append(Row(item.id, label, "", seconds=cost, error=str(error)))
        every = {label: case.scores for label, case in cases.items()}
        for label, case in cases.items():
            case.peers = {other: scores for other, scores in every.items() if other != label}
        plans: dict[tuple[str, str], Flags] = {}
        for label, case in cases.items():
            for m in self.measures:
                plans[label, m.name] = m.plan(case)
                if questions is not None:
                    questions.add(plans[label, m.name])
        for one in self._applying():
            if one.label in cases and questions is not None:
                rows += self._of(one, cases[one.label], questions, plans, found[one.label][1])
        return rows

    def _questions(self, sample: Sample, e: Explanation) -> Questions:
        how = removal(self.explainer, sample, e, self.baseline, self.unit, self.special)
        return Questions(self.explainer, sample, how, self.batch_size)

    def _case(self, item: Item, e: Explanation, how: Removal) -> Case:
        if e.target is None:
            raise InputError("The model has no classes, so there is no class whose explanation could be measured.")
        return Case(item, e, _finite(how.scores(e)), int(e.target[0]), self.classes.of(item.label), seed=self.seed)

    def _of(
        self, one: Contender, case: Case, questions: Questions, plans: dict[tuple[str, str], Flags], cost: float
    ) -> list[Row]:
        """Each measure of one explanation."""
        rows = []
        for m in self.measures:
            if "ledger" in m.needs and case.explanation.ledger is None:
                continue  # the method carries no relevance: a dash in the table
            row = _row(case, one.label, m.name, cost)
            try:
                self._fill(one, case, m, questions.removal)
                vector = m.sample(case, questions.answers(plans[one.label, m.name]))
                rows.append(replace(row, vector=tuple(map(float, vector))))
            except WhenceError as error:
                rows.append(replace(row, error=str(error)))
        return rows

    def _fill(self, one: Contender, case: Case, m: Measure, how: Removal) -> None:
        """What a measure needs of a case beyond its explanation; what cannot be had is an error."""
        has = {"label": case.label, "mask": case.item.mask, "rationale": case.item.rationale}
        for what in m.needs & set(has):
            if has[what] is None:
                raise InputError(f"The sample has no {what}, which '{m.name}' needs.")
        if "peers" in m.needs and len(case.peers) < len(self._applying()) - 1:
            raise InputError("Not every method explains this sample, so the methods cannot be compared on it.")
        if "runner-up" in m.needs and case.runner_up is None:
            ranked = [int(c) for c in np.argsort(-case.logits) if int(c) != case.target]
            if not ranked:
                raise InputError(f"The model has one class, so '{m.name}' has no other to compare it with.")
            case.runner_up = self._scores(self.explainer, one, case, ranked[0], how)
        if "randomised" in m.needs and case.randomised is None:
            assert self.stranger is not None
            case.randomised = self._scores(self.stranger, one, case, case.target, how)

    def _scores(self, explainer: Explainer, one: Contender, case: Case, target: int, how: Removal) -> Floats:
        (found,) = self._explained(explainer, [case.item], one, [target])
        if isinstance(found, WhenceError):
            raise found
        return _finite(how.scores(found))


def _told(error: Exception) -> WhenceError:
    """An error as it is recorded."""
    if isinstance(error, WhenceError):
        return error
    return WhenceError(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def _finite(scores: Floats) -> Floats:
    if not np.isfinite(scores).all():
        raise NumericalError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are not finite numbers.")
    return scores


def _row(case: Case, label: str, measure: str, seconds: float) -> Row:
    said = case.explanation.prediction
    prediction = None if said is None else int(said[0])
    return Row(case.item.id, label, measure, (), prediction, case.target, case.label, seconds)
