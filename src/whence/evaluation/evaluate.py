"""``whence.evaluate``: measure the explanations of a model on a dataset."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .._utils.fingerprint import of_model
from .._utils.progress import track
from ..datasets.dataset import Dataset
from ..datasets.item import Item
from ..datasets.named import load as load_dataset
from ..errors import InputError, ModelError, WhenceError, WhenceWarning
from ..explainer.explainer import Explainer
from ..targets.seed import labels_of
from . import measures as _registered  # noqa: F401  # importing it registers them
from .class_mapping import ClassMapping
from .evaluator import Evaluator
from .feature_removal import PIXELS, TOKENS
from .measure import Measure, create
from .measurement import Measurement
from .method_spec import MethodSpec, resolve_specs
from .results import Evaluation
from .store import EvaluationDirectory
from .weight_randomisation import shuffled


def evaluate(
    explainer: Explainer,
    dataset: str | Path | Dataset | Sequence[Item],
    methods: str | Iterable[str | MethodSpec] | None = None,
    measures: str | Iterable[str | Measure] = ("auac", "au-mse"),
    *,
    target: str = "prediction",
    baseline: str | None = None,
    unit: str = "patch",
    special: bool = False,
    limit: int | None = None,
    seed: int = 0,
    bootstrap: int = 2000,
    labels: Mapping[str, str | int] | None = None,
    batch_size: int = 16,
    out: str | Path | None = None,
    root: str | Path | None = None,
    split: str | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Measure how faithful the explanations of a model are, on real data.

    Args:
        explainer: the model.
        dataset: a name (``"sst2"``), a path, a :class:`whence.datasets.Dataset`, or items.
        methods: names, or ``"label=method:option=value"``; ``None``: all that are applicable to the model.
        measures: names from :func:`whence.list_measures`, or measures with options of their own.
        target: which class is explained: ``"prediction"`` or ``"label"``.
        baseline: what removed features are replaced with: ``unk``, ``mask``, ``pad``, ``hide``; for images ``zero``,
            ``mean``, ``blur``.
        unit: for images, remove each ``"patch"`` or each ``"pixel"``.
        special: for texts, remove [CLS] and [SEP], too.
        limit: the number of samples, drawn by ``seed``; ``None``: all.
        seed: of the draw, of ties, of random weights and of the bootstrap.
        bootstrap: the number of bootstrap samples.
        labels: which class of the model each label of the dataset is, where their names differ.
        batch_size: how many inputs are run together; results do not depend on it.
        out: a directory for the results; an interrupted evaluation resumes there.
        root, split: for a dataset by name: the directory of datasets, and the split.
        progress: show a bar on stderr; ``None``: if there is a terminal.

    Returns:
        The evaluation: ``print(found.table())``, ``found.cells``, ``found.difference(...)``.

    Example:
        >>> explainer = whence.Explainer.from_pretrained("model")
        >>> found = whence.evaluate(explainer, "sst2", ["conservative-lrp", "random"], ["auac"], limit=100, root="data")
        >>> print(found.table())
    """
    options = _Options(target, baseline, unit, special, limit, seed, bootstrap, dict(labels or {}))
    chosen = [create(m) if isinstance(m, str) else m for m in ([measures] if isinstance(measures, str) else measures)]
    specs = resolve_specs(methods)
    data = _load(dataset, root, split, limit, seed)
    return _run(_evaluator(explainer, specs, chosen, data, options, batch_size), data, options, out, progress)


@dataclass(frozen=True)
class _Options:
    """The options of an evaluation that its results depend on, as for :func:`evaluate`."""

    target: str
    baseline: str | None
    unit: str
    special: bool
    limit: int | None
    seed: int
    bootstrap: int
    labels: Mapping[str, str | int]

    def __post_init__(self) -> None:
        if self.target not in ("prediction", "label"):
            raise InputError(f"The target of an evaluation is 'prediction' or 'label', not '{self.target}'.")
        if self.unit not in ("patch", "pixel"):
            raise InputError(f"The unit that is removed from pictures is 'patch' or 'pixel', not '{self.unit}'.")
        if self.baseline is not None and self.baseline not in (*TOKENS, *PIXELS):
            raise InputError(f"There is no baseline '{self.baseline}': choose {', '.join([*TOKENS, *PIXELS])}.")


@dataclass(frozen=True)
class _Data:
    """The dataset, the samples that are drawn from it, and a measurement with an error for each damaged one."""

    source: Dataset
    items: list[Item]
    damaged: list[Measurement]


def _evaluator(
    explainer: Explainer,
    specs: list[MethodSpec],
    measures: list[Measure],
    data: _Data,
    options: _Options,
    batch_size: int,
) -> Evaluator:
    _require(measures, data, options.target)
    names = explainer.target_labels.labels or labels_of(explainer.model)
    count = _count_classes(explainer, data.items, names)
    return Evaluator(
        explainer,
        specs,
        measures,
        ClassMapping(names, count, data.source.labels, options.labels),
        by_label=options.target == "label",
        baseline=options.baseline,
        unit=options.unit,
        special=options.special,
        seed=options.seed,
        batch_size=batch_size,
        randomised=_randomised(explainer, measures, options.seed),
    )


def _settings(evaluator: Evaluator, data: _Data, options: _Options) -> dict[str, Any]:
    """Return all that the results depend on."""
    model = evaluator.explainer.model
    return {
        "whence": metadata.version("whence"),
        "torch": torch.__version__,
        "dataset": _describe(data, options.limit),
        "model": {"class": type(model).__name__, "fingerprint": of_model(model)},
        "methods": [{"label": s.label, "method": s.method, "options": dict(s.options)} for s in evaluator.specs],
        "measures": [{"name": m.name, "options": m.options} for m in evaluator.measures],
        "target": options.target,
        "baseline": options.baseline,
        "unit": options.unit,
        "special": options.special,
        "seed": options.seed,
        "bootstrap": options.bootstrap,
        "labels": dict(options.labels),
    }


def _run(
    evaluator: Evaluator, data: _Data, options: _Options, out: str | Path | None, progress: bool | None
) -> Evaluation:
    """Measure all samples that are not measured yet, and write the results if there is a directory for them."""
    settings = _settings(evaluator, data, options)
    directory = None if out is None else EvaluationDirectory(out, settings)
    rows: list[Measurement] = [] if directory is None else directory.rows()
    done = {row.id for row in rows}
    if not done:
        rows += data.damaged
        if directory is not None and data.damaged:
            directory.add(data.damaged)
    remaining = [item for item in data.items if item.id not in done]
    size = evaluator.batch_size
    batches = [remaining[k : k + size] for k in range(0, len(remaining), size)]
    warned: Counter[str] = Counter()
    for batch in track(batches, len(batches), "Evaluating", progress):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WhenceWarning)
            found = evaluator.rows(batch)
        warned.update(re.sub(r"\d+", "…", str(w.message)) for w in caught if issubclass(w.category, WhenceWarning))
        if len(evaluator.refused) == len(evaluator.specs):
            raise ModelError(next(iter(evaluator.refused.values())))
        rows += found
        if directory is not None:
            directory.add(found)
    evaluation = Evaluation(settings, rows, evaluator.refused, warned)
    if not evaluation.samples:
        raise InputError(f"Nothing could be measured: {evaluation.failures[0].error}")
    if directory is not None:
        directory.finish(evaluation)
    return evaluation


def _load(
    dataset: str | Path | Dataset | Sequence[Item], root: Any, split: str | None, limit: int | None, seed: int
) -> _Data:
    """Read the samples, or draw ``limit`` of them."""
    source = load_dataset(dataset, root=root, split=split) if isinstance(dataset, str | Path) else dataset
    if not isinstance(source, Dataset):
        listed = list(source)
        source = Dataset("", "", None, "", None, lambda: iter(listed), len(listed))
    damaged: list[Measurement] = []
    readable = replace(source, items=lambda: _readable(source, damaged))
    items = readable.sample(limit, seed) if limit is not None else list(readable)
    if not items:
        raise InputError("The dataset has no samples." if not damaged else f"No sample can be read: {damaged[0].error}")
    if len({item.id for item in items}) < len(items):
        raise InputError("Two samples of the dataset have the same id.")
    return _Data(source, items, damaged)


def _readable(source: Dataset, damaged: list[Measurement]) -> Iterator[Item]:
    """Yield the samples that can be read, and append the errors of the others to ``damaged``."""
    items = iter(source)
    while True:
        try:
            yield next(items)
        except StopIteration:
            return
        except InputError as error:
            damaged.append(Measurement(f"damaged {len(damaged) + 1}", "", "", error=str(error)))


def _require(measures: Sequence[Measure], data: _Data, target: str) -> None:
    """Raise before any work is done if no sample has what a measure or the target needs."""
    name = f"The dataset '{data.source.name}'" if data.source.name else "The dataset"
    has = {what: any(getattr(item, what) is not None for item in data.items) for what in ("label", "mask", "rationale")}
    for m in measures:
        for what in sorted(m.needs & set(has)):
            if not has[what]:
                raise InputError(f"{name} has no {what}s, which the measure '{m.name}' needs.")
    if target == "label" and not has["label"]:
        raise InputError(f"{name} has no labels, and target='label' explains the true class.")


def _count_classes(explainer: Explainer, items: Sequence[Item], names: Mapping[int, str]) -> int:
    """Return the number of classes, from a forward pass where the model's configuration does not name them."""
    if names:
        return max(names) + 1
    for item in items:
        try:
            return int(explainer(item.input, "gradient-x-input").logits.shape[-1])
        except WhenceError:
            continue
    raise InputError("None of the samples can be read by the model.")


def _randomised(explainer: Explainer, measures: Sequence[Measure], seed: int) -> Explainer | None:
    """Return an explainer of the same model with random weights, if a measure needs one."""
    if not any("randomised" in m.needs for m in measures):
        return None
    modality = None if explainer.reader is None else explainer.modality
    labels = explainer.target_labels.labels or None
    return Explainer(shuffled(explainer.model, seed), explainer.processor, modality=modality, labels=labels)


def _describe(data: _Data, limit: int | None) -> dict[str, Any]:
    ids = hashlib.sha256("\n".join(sorted(item.id for item in data.items)).encode()).hexdigest()[:16]
    source = data.source
    return {"name": source.name, "split": source.split, "limit": limit, "samples": len(data.items), "ids": ids}
