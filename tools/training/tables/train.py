"""Train the models whose explanations the tables measure, and write them to `build/models/DATASET-KIND`.

    cd training
    python -m tools.training.tables.train                            # all that are not there yet, cheapest first
    python -m tools.training.tables.train sst2 --kind attention      # one of them, again if it is there

Each directory opens with `whence.Explainer.from_pretrained`. Its `accuracy.json` has the accuracy on the test split
and the share of the most frequent class there, and its README.md says how the model came about. Data and the MiniLM
that text models start from are read from the directory that `WHENCE_SHARED` names (`paths.py`). One thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import whence
from tools.training.paths import DATA
from whence.datasets import Dataset, Item, load

from .digits import Digits
from .fit import accuracy, fit
from .learner import Learner
from .molecules import Molecules
from .recipes import MODELS, RECIPES, SEED, Recipe
from .texts import Texts


def main() -> None:
    """Train what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", choices=sorted({recipe.dataset for recipe in RECIPES.values()}))
    parser.add_argument("--kind", choices=("attention", "standard"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for recipe in RECIPES.values():
        wanted = asked.dataset in (None, recipe.dataset) and asked.kind in (None, recipe.kind)
        if wanted and (asked.dataset or not (MODELS / recipe.name / "accuracy.json").exists()):
            train(recipe, MODELS / recipe.name)


def train(recipe: Recipe, directory: Path) -> None:
    """Train one model, measure it and write it."""
    torch.manual_seed(SEED)
    dataset = load(recipe.dataset, root=DATA, split=recipe.train)
    items = dataset.sample(recipe.samples, SEED) if recipe.samples else list(dataset)
    learner = build(recipe, dataset, items)
    seconds = fit(learner, encoded(learner, dataset, items), recipe)
    splits = {}
    for split in recipe.test:
        part = load(recipe.dataset, root=DATA, split=split)
        splits[split] = accuracy(learner, encoded(learner, part, part))
    write(recipe, learner, {"splits": splits, "trained_on": len(items), "seconds": round(seconds)}, dataset, directory)
    check(learner, load(recipe.dataset, root=DATA, split=recipe.test[-1]), directory)


def build(recipe: Recipe, dataset: Dataset, items: Iterable[Item]) -> Learner:
    """A fresh learner of the kind that the dataset needs."""
    labels = dataset.labels or ()
    if recipe.dataset == "mnist":
        return Digits(recipe, labels)
    return Molecules(recipe, labels, (i.input for i in items)) if recipe.dataset == "bace" else Texts(recipe, labels)


def encoded(learner: Learner, dataset: Dataset, items: Iterable[Item]) -> list[tuple[Any, int]]:
    """Items ready for batches, each with the number of its class."""
    classes = {name: i for i, name in enumerate(dataset.labels or ())}
    return [(learner.encode(item.input), classes[str(item.label)]) for item in items]


def write(recipe: Recipe, learner: Learner, results: dict[str, Any], dataset: Dataset, directory: Path) -> None:
    """Write the model, `accuracy.json` and the card."""
    directory.mkdir(parents=True, exist_ok=True)
    learner.save(directory)
    split = recipe.test[-1]
    parameters = list(learner.model.parameters())
    results = {
        "dataset": recipe.dataset,
        "kind": recipe.kind,
        "split": split,
        **results["splits"][split],
        "parameters": sum(p.numel() for p in parameters),
        "learned": sum(p.numel() for p in parameters if p.requires_grad),
        "seed": SEED,
        **results,
    }
    (directory / "accuracy.json").write_text(json.dumps(results, indent=2) + "\n")
    rows = "\n".join(
        f"| {name} | {row['samples']} | {row['accuracy']:.1%} | {row['majority']:.1%} |"
        for name, row in results["splits"].items()
    )
    (directory / "README.md").write_text(
        f"# {recipe.name}\n\n{learner.card}\n\nTrained on {results['trained_on']} samples of {dataset.source} (split "
        f"{recipe.train}), {recipe.epochs} epochs, seed {SEED}, {results['seconds']} s on one core.\n\n"
        f"| split | samples | accuracy | most frequent class |\n|---|---|---|---|\n{rows}\n"
    )
    print(f"{recipe.name}: {results['splits']}, {results['seconds']} s", flush=True)


def check(learner: Learner, dataset: Dataset, directory: Path) -> None:
    """The directory opens, names the dataset's classes, and answers on raw inputs as the model that was trained."""
    explainer = whence.Explainer.from_pretrained(directory)
    names = explainer.model.config.id2label
    assert tuple(names[i] for i in range(len(names))) == dataset.labels, f"{directory} has other classes: {names}"
    for item in dataset.sample(3):
        with torch.no_grad():
            own = learner.model(**learner.batch([learner.encode(item.input)], None)).logits
        e = explainer(item.input, "conservative-lrp")
        assert torch.allclose(e.logits.float(), own, atol=1e-3), f"{directory}: {item.id}: {e.logits} and {own}"


if __name__ == "__main__":
    main()
