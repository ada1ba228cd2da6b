"""Every method on three models, for several batch sizes: time, memory, samples per second."""

from __future__ import annotations

import functools
from typing import Any

import torch

import whence
from tools.benchmarks.kept import Kept
from tools.benchmarks.measure import peak_memory, ratio, timed
from tools.benchmarks.models import build, plain

BATCHES = (1, 8, 32)
SECONDS = 30  # that the repeats of one cell may take
LONG = 64  # runs of the model, from which on a method is measured for one sample of the shortest model alone


def measure(kept: Kept, models: list[str], batches: list[int], methods: list[str], repeats: int) -> None:
    """Measure what is not there yet."""
    for name in models:
        for batch in batches:
            wanted = [m for m in methods if f"{name}/{batch}/{m}" not in kept and fits(m, name, batch)]
            if wanted:
                _measure(kept, name, batch, wanted, repeats)


def _measure(kept: Kept, name: str, batch: int, methods: list[str], repeats: int) -> None:
    model, inputs = build(name, batch)
    to_input, to_weights = plain(model, inputs), plain(model.requires_grad_(True), inputs, weights=True)
    to_weights()
    seconds = timed(to_input)
    count = max(1, min(repeats, int(SECONDS / (2 * seconds))))
    step = ratio(to_weights, to_input, min(3, count))
    model.requires_grad_(False)
    to_input()
    base, seconds = peak_memory(to_input), timed(to_input)
    plain_row = {"seconds": seconds, "memory": base, "step": step.value, "threads": torch.get_num_threads()}
    kept.add(f"{name}/{batch}/plain", plain_row)
    for method in methods:
        run = functools.partial(whence.explain, model, inputs, method)
        try:
            memory = peak_memory(run)
        except whence.WhenceError as error:
            kept.add(f"{name}/{batch}/{method}", {"error": str(error).split(". ")[0]})
            continue
        often = 1 if runs(method) > 1 else count
        found = ratio(run, to_input, often)
        memory = memory if often == 1 else peak_memory(run)  # without what the first call sets up
        row = found._asdict() | {"memory": memory, "base": base, "repeats": often}
        kept.add(f"{name}/{batch}/{method}", row)
        print(
            f"{name:<6}{batch:>3}  {method:<26}{found.value:>7.2f}{found.seconds:>9.3f} s{memory:>8.0f} MiB", flush=True
        )


def runs(method: str) -> int:
    """How often a method runs the model; of one for which that depends on the number of tokens, many times."""
    forwards: Any = whence.list_methods()[method].forwards
    return forwards if isinstance(forwards, int) else LONG


def fits(method: str, name: str, batch: int) -> bool:
    """Whether a method is measured here: of those that run the model often, one sample, the longest of a text alone.

    Attention flow solves a graph of tokens x tokens edges a layer: of 1,024 tokens that takes hours.
    """
    often = runs(method)
    if method == "attention-flow" and (name == "llama" or batch > 1):
        return False
    return often == 1 or (batch == 1 and name != "llama" and (often < LONG or name == "bert"))
