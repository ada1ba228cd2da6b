"""The training loop, and accuracy."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional

from .learner import Learner
from .recipes import SEED, Recipe

POOL = 20  # batches that are sorted by length together
BATCH = 64  # where nothing is learned


def fit(learner: Learner, samples: Sequence[tuple[Any, int]], recipe: Recipe) -> float:
    """Train on encoded samples and their classes; returns the seconds that it took."""
    start, rng = time.time(), random.Random(SEED)
    learned = [p for p in learner.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, recipe.rate, weight_decay=0.01, fused=True)
    steps = recipe.epochs * -(-len(samples) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=steps, pct_start=0.1)
    learner.model.train()
    average = 0.0
    for step, chosen in enumerate(_batches(samples, recipe, rng), 1):
        inputs = learner.batch([encoded for encoded, _ in chosen], rng)
        loss = functional.cross_entropy(learner.model(**inputs).logits, torch.tensor([label for _, label in chosen]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average += (loss.item() - average) / min(step, 50)
        if step % 50 == 0 or step == steps:
            print(f"{recipe.name}: step {step} of {steps}, loss {average:.3f}, {time.time() - start:.0f} s", flush=True)
    learner.model.eval()
    return time.time() - start


def _batches(samples: Sequence[tuple[Any, int]], recipe: Recipe, rng: random.Random) -> Iterator[list[tuple[Any, int]]]:
    """Batches of samples of like length, in random order."""
    for _ in range(recipe.epochs):
        order = rng.sample(range(len(samples)), len(samples))
        pools = [order[i : i + POOL * recipe.batch] for i in range(0, len(order), POOL * recipe.batch)]
        for pool in pools:
            pool.sort(key=lambda i: len(samples[i][0]))
            places = range(0, len(pool), recipe.batch)
            yield from ([samples[j] for j in pool[i : i + recipe.batch]] for i in rng.sample(places, len(places)))


@torch.no_grad()
def accuracy(learner: Learner, samples: Sequence[tuple[Any, int]]) -> dict[str, float]:
    """The share of samples that are classified rightly, and that of the most frequent class."""
    ordered = sorted(samples, key=lambda sample: len(sample[0]))
    right = 0
    for i in range(0, len(ordered), BATCH):
        chosen = ordered[i : i + BATCH]
        logits = learner.model(**learner.batch([encoded for encoded, _ in chosen], None)).logits
        right += int((logits.argmax(-1) == torch.tensor([label for _, label in chosen])).sum())
    counts = torch.bincount(torch.tensor([label for _, label in samples]))
    majority = int(counts.max()) / len(samples)
    return {"accuracy": right / len(samples), "majority": majority, "samples": len(samples)}
