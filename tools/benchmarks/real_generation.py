"""A real language model: 20 tokens after a prompt of 1,000, generated, and generated and explained.

python -m tools.benchmarks.real_generation [--methods attn-lrp ...]

SmolLM2-135M-Instruct (``python -m tools.real_models smollm2-135m``), one thread, float32. The baseline is the model's
own ``generate``, greedy, with a cache.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch

import whence
from tools.benchmarks.measure import peak_memory, ratio

MODEL = Path(__file__).resolve().parents[2] / "build" / "models" / "smollm2-135m"
TEXT = "The river runs from the hills to the sea, and the towns along it live by its water. "
PROMPT, WRITTEN = 1_000, 20


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["conservative-lrp", "attn-lrp", "generic-attention"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    explainer = whence.Explainer.from_pretrained(MODEL)
    ids = explainer.processor(TEXT * 100)["input_ids"][:PROMPT]
    prompt = explainer.processor.decode(ids)
    given = explainer.processor(prompt, return_tensors="pt")
    length = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN}
    plain = functools.partial(explainer.model.generate, **given, do_sample=False, **length)
    plain()
    base, seconds = peak_memory(plain), ratio(plain, plain, 1).seconds
    print(f"{given['input_ids'].shape[1]} tokens, then {WRITTEN}: plain {seconds:.1f} s, {base:.0f} MiB")
    for method in options.methods:
        explained = functools.partial(
            explainer.generate, prompt, method=method, max_new_tokens=WRITTEN, sampling={"min_new_tokens": WRITTEN}
        )
        memory, found = peak_memory(explained), ratio(explained, plain, options.repeats)
        print(f"{method:<20}{found.seconds:6.1f} s, {found.value:5.1f} of plain, {memory:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
