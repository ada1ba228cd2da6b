"""Every method on four models: the time of the first explanation, of a capture and of a replay, and their memory."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import whence
from tools.benchmarks.measure import observed, peak_memory, ratio
from tools.benchmarks.measurements import Measurements
from tools.benchmarks.models import Inputs, build, plain
from tools.replays import computations

BATCHES = (1, 8)
#: methods that are measured also in batches of BERT-base, and on the long input of the decoder
CORE = ("conservative-lrp", "attn-lrp", "gradient-x-input", "generic-attention", "transformer-attribution")
#: seconds that the repeats of one cell may take, if it is repeated more than 3 times
SECONDS = 10
#: seconds that the capture of a method that runs the model many times may take
CAPTURE_SECONDS = 30
LONG = 64  # runs of the model from which on a method is measured on few models
MOST = {"tiny": 50}


def measure(made: Measurements, models: list[str], batches: list[int], methods: list[str], repeats: int) -> None:
    """Measure what is not there yet.

    Args:
        made: the measurements, which new ones are added to.
        models: names of ``models.MODELS``.
        batches: sizes of batches.
        methods: names of methods.
        repeats: at most so many of each cell; of the tiny model, up to 50.
    """
    for name in models:
        for batch in batches:
            wanted = [m for m in methods if f"{name}/{batch}/{m}" not in made and fits(m, name, batch)]
            if wanted:
                _measure(made, name, batch, wanted, MOST.get(name, repeats))


def _measure(made: Measurements, name: str, batch: int, methods: list[str], repeats: int) -> None:
    model, inputs = build(name, batch)
    to_input, to_weights = plain(model, inputs), plain(model.requires_grad_(True), inputs, weights=True)
    to_weights()
    step = ratio(to_weights, to_input, 3)
    model.requires_grad_(False)
    to_input()
    base, seconds = observed(to_input)
    row = {"seconds": seconds, "memory": base, "step": step.value, "threads": torch.get_num_threads()}
    made.add(f"{name}/{batch}/plain", row)
    for method in methods:
        start = time.perf_counter()
        found = cell(model, inputs, method, to_input, repeats)
        made.add(f"{name}/{batch}/{method}", found | {"base": base})
        spent = time.perf_counter() - start
        print(f"{name:<6}{batch:>3}  {method:<26}{spent:4.0f} s  {shown(found)}", flush=True)


def cell(
    model: nn.Module, inputs: Inputs, method: str, to_input: Callable[[], Any], repeats: int = 3
) -> dict[str, Any]:
    """Measure one method.

    Returns:
        ``first``: the ratio of ``whence.explain``; ``captured``: of the first call of ``whence.compile``; ``warm``: of
        later calls; ``memory`` and ``warm_memory`` in MiB. Instead of what there is not, ``error`` or ``refusal``.
    """
    first = functools.partial(whence.explain, model, inputs, method)
    try:
        memory, seconds = observed(first)
    except whence.WhenceError as error:
        return {"error": str(error).split(". ")[0]}
    if runs(method) > 1:
        repeats = min(repeats, max(1, int(SECONDS / (2 * seconds))))
        if 5 * seconds > CAPTURE_SECONDS:
            found = ratio(first, to_input, 1)
            return {"first": found._asdict(), "memory": memory, "repeats": 1, "refusal": "not measured"}
    else:
        memory, seconds = observed(first)  # without what the first call sets up
        repeats = min(repeats, max(3, int(SECONDS / (3 * seconds))))

    def captured() -> None:
        whence.compile(model, method)(inputs)

    compiled = whence.compile(model, method)
    warm = functools.partial(compiled, inputs)
    recorded = ratio(captured, to_input, 3 if seconds < 1 else 1)
    warm()
    with computations() as computed:
        warm()
    found = ratio(first, to_input, repeats)
    row = {"first": found._asdict(), "captured": recorded._asdict(), "memory": memory, "repeats": repeats}
    if computed:
        return row | {"refusal": next(iter(compiled.captures.refusals), "a guard did not hold")}
    replayed = ratio(warm, to_input, repeats)
    constants = compiled.captures.size / 2**20
    return row | {"warm": replayed._asdict(), "warm_memory": peak_memory(warm), "constants": constants}


def shown(row: dict[str, Any]) -> str:
    """Return a measurement as a line for the terminal."""
    if "error" in row:
        return "does not apply"
    parts = [f"{word} {row[word]['value']:7.2f}" for word in ("first", "captured", "warm") if word in row]
    return "  ".join([*parts, f"{row['memory']:6.0f} MiB", row.get("refusal", "")]).rstrip()


def runs(method: str) -> int:
    """Return how often a method runs the model; if that depends on the number of tokens, many times."""
    forwards: Any = whence.list_methods()[method].forwards
    return forwards if isinstance(forwards, int) else LONG


def fits(method: str, name: str, batch: int) -> bool:
    """Return whether a method is measured here.

    Batches of BERT-base and the decoder are measured with the core methods. Methods that run the model more often the
    more tokens there are take minutes on large models: they are measured on the tiny one, ``occlusion`` on BERT-base
    as well.
    """
    if name == "tiny":
        return batch == 1
    if batch > 1 or name == "llama":
        return method in CORE and (batch == 1 or name == "bert")
    return runs(method) < LONG or (method, name) == ("occlusion", "bert")
