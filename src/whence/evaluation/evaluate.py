"""``whence.evaluate``: a model, a dataset, methods and measures in; a table with intervals out."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._utils.fingerprint import of_model
from .._utils.progress import track
from ..datasets.dataset import Dataset
from ..datasets.item import Item
from ..datasets.named import load as load_dataset
from ..errors import InputError, ModelError, WhenceError, WhenceWarning
from ..explainer.explainer import Explainer
from . import measures as _registered  # noqa: F401  # importing it registers them
from .class_mapping import Classes
from .evaluator import Evaluator
from .feature_removal import PIXELS, TOKENS
from .measure import Measure, create
from .measurement import Row
from .method_spec import Contender, contenders
from .results import Evaluation
from .store import Shards
from .weight_randomisation import shuffled


def evaluate(
    explainer: Explainer,
    dataset: str | Path | Dataset | Sequence[Item],
    methods: str | Iterable[str | Contender] | None = None,
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
    """Measure how far explanations of a model can be trusted, on real data.

    Args:
        explainer: the model.
        dataset: a name (``"sst2"``), a path, a :class:`whence.datasets.Dataset`, or items.
        methods: names, or ``"label=method:option=value"``; ``None``: all that apply to the model.
        measures: names from :func:`whence.evaluation.measures`, or measures with options of their own.
        target: which class is explained: ``"prediction"`` or ``"label"``.
        baseline: what stands in for a removed feature: ``unk``, ``mask``, ``pad``, ``hide``; of pictures ``zero``,
            ``mean``, ``blur``.
        unit: of pictures, remove each ``"patch"`` or each ``"pixel"``.
        special: of texts, remove [CLS] and [SEP], too.
        limit: how many samples, drawn by ``seed``; ``None``: all.
        seed: of the draw, of ties, of random weights and of the bootstrap.
        bootstrap: how many bootstrap samples the intervals are made of.
        labels: which class of the model each label of the dataset is, where their names differ.
        batch_size: how many inputs are run together; results do not depend on it.
        out: a directory for the results; an interrupted evaluation is taken up there.
        root, split: for a dataset by name: the directory of datasets, and which part.
        progress: show a bar on stderr; ``None``: if there is a terminal.

    Returns:
        The evaluation: ``print(found.table())``, ``found.cells``, ``found.difference(...)``.

    Example:
        >>> explainer = whence.Explainer.from_pretrained("model")
        >>> found = whence.evaluate(explainer, "sst2", ["conservative-lrp", "random"], ["auac"], limit=100, root="data")
        >>> print(found.table())
    """
    if target not in ("prediction", "label"):
        raise InputError(f"The target of an evaluation is 'prediction' or 'label', not '{target}'.")
    if unit not in ("patch", "pixel"):
        raise InputError(f"The unit that is removed from pictures is 'patch' or 'pixel', not '{unit}'.")
    if baseline is not None and baseline not in (*TOKENS, *PIXELS):
        raise InputError(f"There is no baseline '{baseline}': choose {', '.join([*TOKENS, *PIXELS])}.")
    chosen = [create(m) if isinstance(m, str) else m for m in ([measures] if isinstance(measures, str) else measures)]
    ways = contenders(methods)
    source, items, damaged = _items(dataset, root, split, limit, seed)
    _require(chosen, items, source, target)
    names = {int(k): str(v) for k, v in (explainer.answers.labels or _labels(explainer.model)).items()}
    evaluator = Evaluator(
        explainer, ways, chosen, Classes(names, _count(explainer, items, names), source.labels, labels),
        target == "label",
        baseline, unit, special, seed, batch_size, _stranger(explainer, chosen, seed),
    )  # fmt: skip
    settings = {
        "whence": metadata.version("whence"),
        "torch": torch.__version__,
        "dataset": _described(source, items, limit),
        "model": {"class": type(explainer.model).__name__, "fingerprint": of_model(explainer.model)},
        "methods": [{"label": w.label, "method": w.method, "options": dict(w.options)} for w in ways],
        "measures": [{"name": m.name, "options": m.options} for m in chosen],
        "target": target, "baseline": baseline, "unit": unit, "special": special, "seed": seed,
        "bootstrap": bootstrap, "labels": dict(labels or {}),
    }  # fmt: skip
    return _run(evaluator, items, damaged, settings, out, progress)


def _run(
    evaluator: Evaluator, items: list[Item], damaged: list[Row], settings: dict[str, Any], out: str | Path | None,
    progress: bool | None,
) -> Evaluation:  # fmt: skip
    shards = None if out is None else Shards(out, settings)
    rows: list[Row] = [] if shards is None else shards.rows()
    done = {row.id for row in rows}
    if shards is not None and not done and damaged:
        shards.add(damaged)
    rows += damaged if not done else []
    left = [item for item in items if item.id not in done]
    size = evaluator.batch_size
    parts = [left[k : k + size] for k in range(0, len(left), size)]
    warned: Counter[str] = Counter()
    for part in track(parts, len(parts), "Evaluating", progress):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", WhenceWarning)
            found = evaluator.rows(part)
        warned.update(re.sub(r"\d+", "…", str(w.message)) for w in caught if issubclass(w.category, WhenceWarning))
        if len(evaluator.refused) == len(evaluator.contenders):
            raise ModelError(next(iter(evaluator.refused.values())))
        rows += found
        if shards is not None:
            shards.add(found)
    evaluation = Evaluation(settings, rows, evaluator.refused, warned)
    if not evaluation.samples:
        raise InputError(f"Nothing could be measured: {evaluation.failures[0].error}")
    if shards is not None:
        shards.finish(evaluation)
    return evaluation


def _items(
    dataset: str | Path | Dataset | Sequence[Item], root: Any, split: str | None, limit: int | None, seed: int
) -> tuple[Dataset, list[Item], list[Row]]:
    """The dataset, the samples that are drawn from it, and a row for each that is damaged."""
    source = load_dataset(dataset, root=root, split=split) if isinstance(dataset, str | Path) else dataset
    if not isinstance(source, Dataset):
        listed = list(source)
        source = Dataset("", "", None, "", None, lambda: iter(listed), len(listed))
    damaged: list[Row] = []
    sound = replace(source, items=lambda: _sound(source, damaged))
    items = sound.sample(limit, seed) if limit is not None else list(sound)
    if not items:
        raise InputError("The dataset has no samples." if not damaged else f"No sample can be read: {damaged[0].error}")
    if len({item.id for item in items}) < len(items):
        raise InputError("Two samples of the dataset have the same id.")
    return source, items, damaged


def _sound(source: Dataset, damaged: list[Row]) -> Iterator[Item]:
    """The samples that can be read."""
    items = iter(source)
    while True:
        try:
            yield next(items)
        except StopIteration:
            return
        except InputError as error:
            damaged.append(Row(f"damaged {len(damaged) + 1}", "", "", error=str(error)))


def _require(chosen: Sequence[Measure], items: Sequence[Item], source: Dataset, target: str) -> None:
    """What no sample has is named before any work is done."""
    name = f"The dataset '{source.name}'" if source.name else "The dataset"
    has = {what: any(getattr(item, what) is not None for item in items) for what in ("label", "mask", "rationale")}
    for m in chosen:
        for what in sorted(m.needs & set(has)):
            if not has[what]:
                raise InputError(f"{name} has no {what}s, which the measure '{m.name}' needs.")
    if target == "label" and not has["label"]:
        raise InputError(f"{name} has no labels, and target='label' explains the true class.")


def _labels(model: nn.Module) -> Mapping[Any, Any]:
    return getattr(getattr(model, "config", None), "id2label", None) or {}


def _count(explainer: Explainer, items: Sequence[Item], names: Mapping[int, str]) -> int:
    """How many classes the model has; asked of the model where its configuration does not say."""
    if names:
        return max(names) + 1
    for item in items:
        try:
            return int(explainer(item.input, "gradient-x-input").logits.shape[-1])
        except WhenceError:
            continue
    raise InputError("None of the samples can be read by the model.")


def _stranger(explainer: Explainer, chosen: Sequence[Measure], seed: int) -> Explainer | None:
    if not any("randomised" in m.needs for m in chosen):
        return None
    modality = None if explainer.reader is None else explainer.modality
    labels = explainer.answers.labels or None
    return Explainer(shuffled(explainer.model, seed), explainer.processor, modality=modality, labels=labels)


def _described(source: Dataset, items: Sequence[Item], limit: int | None) -> dict[str, Any]:
    ids = hashlib.sha256("\n".join(sorted(item.id for item in items)).encode()).hexdigest()[:16]
    return {"name": source.name, "split": source.split, "limit": limit, "samples": len(items), "ids": ids}
