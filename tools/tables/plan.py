"""What is evaluated for tables A, B and C: each run is a model, a dataset, methods and measures."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import whence
from tools.tables.contenders import CVPR, ICML, NEWER_IMAGE, NEWER_TEXT
from whence.datasets import Item, load
from whence.evaluation import Evaluation
from whence.evaluation import load as load_results

PROJECT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("WHENCE_SHARED", PROJECT.parent / "shared"))
MODELS, RESULTS = PROJECT / "build" / "models", PROJECT / "build" / "results"
TEXTS, PICTURES = 500, 200  # samples of a cell

#: the datasets at hand of Ali et al.'s nine, in the order of their table
DATASETS = (
    "imdb",
    "sst2",
    "bace",
    "mnist",
    "tweeteval-emotion",
    "tweeteval-hate",
    "tweeteval-sentiment",
    "meld-sentiment",
)

#: where the split to report on will not do: those of BACE and the movies are too small, that of hate is of other topics
SPLITS = {
    "bace": ("test", "val", "train"),
    "eraser-movies": ("test", "val", "train"),
    "tweeteval-hate": ("val",),
}


@dataclass(frozen=True)
class Run:
    """One evaluation.

    Attributes:
        name: of its directory, under ``build/results``.
        dataset: a name of :mod:`whence.datasets`.
        model: the directory of the model.
        methods: as :func:`whence.evaluate` takes them.
        measures: likewise.
        limit: how many samples.
        splits: which parts of the dataset, one after the other until there are enough; empty: the one to report on.
        options: of :func:`whence.evaluate`.
        batch: how many samples are run, and written, together.
        besides: another run, of the predicted class: where that was right, the true class is the same, and only the
            samples on which it was wrong are left to evaluate.
    """

    name: str
    dataset: str
    model: Path
    methods: list[str]
    measures: list[str]
    limit: int
    splits: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    batch: int = 32
    besides: str = ""

    @property
    def directory(self) -> Path:
        """Where its results are."""
        return RESULTS / self.name

    def items(self, limit: int) -> Any:
        """The samples: drawn from the reported split; where it is too small, the next one fills up."""
        out: list[Item] = []
        for split in self.splits or (None,):
            found = load(self.dataset, root=SHARED / "data", split=split)
            left = limit - len(out)
            if left > 0:
                out += [
                    Item(f"{split or ''}{i.id}", i.input, i.label, i.rationale, i.mask) for i in found.sample(left, 0)
                ]
        if not self.besides:
            return out
        wrong = {row.id for row in load_results(RESULTS / self.besides).rows if row.prediction != row.label}
        return [item for item in out if item.id in wrong]

    def evaluate(self, limit: int | None = None) -> Evaluation:
        """Evaluate, or go on where it stopped."""
        explainer = whence.Explainer.from_pretrained(self.model, dtype=torch.float32)
        items = self.items(min(self.limit, limit or self.limit))
        return whence.evaluate(
            explainer, items, self.methods, self.measures, out=self.directory, batch_size=self.batch, **self.options
        )

    @property
    def command(self) -> str:
        """The same from the command line."""
        shared = self.model.is_relative_to(SHARED)
        where = f"$WHENCE_SHARED/{self.model.relative_to(SHARED)}" if shared else self.model.relative_to(PROJECT)
        flags = [f"--{k} {v}" if v is not True else f"--{k}" for k, v in self.options.items()]
        words = [
            f"whence evaluate {self.dataset} --data $WHENCE_SHARED/data --model {where} --limit {self.limit} --seed 0",
            *(f"--split {split}" for split in self.splits[:1]),
            *(f'--methods "{method}"' for method in self.methods),
            f"--metrics {','.join(self.measures)}",
            *flags,
        ]
        return " ".join(words)


def table_a() -> list[Run]:
    """AUAC and AU-MSE on eight datasets, of models of attention alone and of ones with MLP blocks."""
    return [
        Run(
            f"a/{dataset}-{kind}", dataset, MODELS / f"{dataset}-{kind}",
            ICML + NEWER_TEXT, ["auac", "au-mse"],
            PICTURES if dataset == "mnist" else TEXTS, SPLITS.get(dataset, ()),
            {} if dataset == "mnist" else {"special": True},
        )
        for kind in ("attention", "standard")
        for dataset in DATASETS
    ]  # fmt: skip


def readings() -> list[Run]:
    """Why attention can be below chance: all rows of a map added up, as published, against the row that is read."""
    methods = ["Random=random", "A-Last (all rows)=attention:rows=all", "A-Last (its row)=attention",
               "Rollout (all rows)=rollout:rows=all", "Rollout (its row)=rollout"]  # fmt: skip
    return [
        Run(f"rows/{name}", name, MODELS / f"{name}-attention", methods, ["auac"], TEXTS, SPLITS.get(name, ()),
            {"special": True})
        for name in ("sst2", "tweeteval-hate")
    ]  # fmt: skip


def table_b() -> list[Run]:
    """Perturbation and segmentation of a real ImageNet model, for the predicted and for the true class."""
    model = SHARED / "weights" / "vit_tiny_patch16_224_hf"
    perturbed = ["positive-perturbation", "negative-perturbation"]
    masks = ["pixel-accuracy", "map", "miou", "relevance-mass", "pointing-game"]
    return [
        Run("b/predicted", "pets", model, CVPR + NEWER_IMAGE, perturbed + masks, PICTURES, (), {"unit": "pixel"}, 8),
        Run(
            "b/target", "pets", model, CVPR + NEWER_IMAGE, perturbed, PICTURES, (),
            {"unit": "pixel", "target": "label"}, 8, "b/predicted",
        ),
    ]  # fmt: skip


def table_c() -> list[Run]:
    """Agreement with human rationales."""
    methods = [*CVPR, "generic-attention", "conservative-lrp", "gradient-x-input", "attn-lrp", "libragrad", "random"]
    measures = ["token-f1", "iou-f1", "auprc"]
    name = "eraser-movies"
    return [Run("c/movies", name, MODELS / f"{name}-standard", methods, measures, TEXTS, SPLITS[name], batch=4)]


TABLES = {"A": lambda: [*table_a(), *readings()], "B": table_b, "C": table_c}
