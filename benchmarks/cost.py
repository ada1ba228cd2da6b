"""What an explanation costs, in units of one plain forward + backward to the input, side by side in one run.

Every method is interleaved with the baseline, so that a noisy machine slows both alike; the ratio is the median of
the ratios. Peak memory is the growth of the resident set during one call (Linux; weights not counted). Methods that run
the model more than once are measured once, with the first batch size.

    python benchmarks/cost.py [--models vit bert] [--batches 1 8] [--repeats 7]
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

import whence


def models(name: str, batch: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    if name == "vit":
        return ViTForImageClassification(ViTConfig(num_labels=1000)).eval(), {
            "pixel_values": torch.randn(batch, 3, 224, 224)
        }
    ids = torch.randint(1000, 20000, (batch, 128))
    return BertForSequenceClassification(BertConfig()).eval(), {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
    }


def baseline(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """One forward and one backward to the input, parameters needing no gradient."""
    for p in model.parameters():
        p.requires_grad_(False)

    def run() -> None:
        given = dict(inputs)
        if "input_ids" in given:
            given["inputs_embeds"] = model.get_input_embeddings()(given.pop("input_ids"))
        key = "pixel_values" if "pixel_values" in given else "inputs_embeds"
        given[key] = given[key].detach().requires_grad_()
        logits = model(**given).logits
        torch.autograd.grad(logits.max(-1).values.sum(), given[key])

    return run


def peak_memory(run: Callable[[], Any]) -> float:
    """MiB by which the resident set grows at most during a call; NaN where the system cannot say."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return float("nan")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    reset.write_text("5")

    def read(key: str) -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith(key)).split()[1])

    before = read("VmRSS")
    run()
    return (read("VmHWM") - before) / 1024


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratio(run: Callable[[], Any], plain: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The median of the ratios to a baseline run before and after, and the median time."""
    ratios, times = [], []
    for _ in range(repeats):
        before, spent, after = timed(plain), timed(run), timed(plain)
        ratios.append(2 * spent / (before + after))
        times.append(spent)
    return statistics.median(ratios), statistics.median(times)


def row(name: str, batch: int, method: str, times: float, seconds: float, memory: float, base: float) -> None:
    numbers = f"{times:>7.2f}{seconds:>9.3f}{memory:>10.0f}{memory / base:>8.2f}"
    print(f"{name:<6}{batch:>6}  {method:<26}{numbers}", flush=True)


def measure(name: str, batch: int, methods: list[str], repeats: int) -> None:
    model, inputs = models(name, batch)
    plain = baseline(model, inputs)
    plain()
    base = peak_memory(plain)
    row(name, batch, "forward + backward", 1, statistics.median(timed(plain) for _ in range(repeats)), base, base)
    for method in methods:
        run = functools.partial(whence.explain, model, inputs, method)
        once = long(method)
        try:
            memory = peak_memory(run)
        except whence.ModelError as error:
            print(f"{name:<6}{batch:>6}  {method:<26}does not apply: {str(error).split(':')[0]}", flush=True)
            continue
        if not once:
            memory = peak_memory(run)  # without what the first call sets up
        row(name, batch, method, *ratio(run, plain, 1 if once else repeats), memory, base)


def long(method: str) -> bool:
    """Whether a method runs the model more than once."""
    return whence.methods()[method].forwards != 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit", "bert"], choices=["vit", "bert"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--methods", nargs="+", default=sorted(whence.methods()))
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32, median of {options.repeats}")
    print(f"{'model':<6}{'batch':>6}  {'method':<26}{'ratio':>7}{'seconds':>9}{'peak MiB':>10}{'x base':>8}")
    for name in options.models:
        for batch in options.batches:
            chosen = [m for m in options.methods if batch == options.batches[0] or not long(m)]
            measure(name, batch, chosen, options.repeats)


if __name__ == "__main__":
    main()
