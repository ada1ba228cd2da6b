"""Memory of long inputs: each case in a process of its own, so that nothing is left over from another.

python -m tools.benchmarks.length conservative-lrp 16384        (one case: prints MiB and seconds)
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import torch

import whence
from tools.benchmarks.measure import observed
from tools.benchmarks.measurements import Measurements
from tools.benchmarks.models import build, plain

FUSED = ("plain", "conservative-lrp", "attn-lrp")
CHECKPOINTED = ("conservative-lrp checkpoints=4", "attn-lrp checkpoints=4")
MAPS = ("plain", "generic-attention", "transformer-attribution", "lrp", "rollout", "grad-cam")
#: a layer's maps at 8,192 tokens take 1.5 GiB: methods that need them are measured on shorter inputs
CASES = {2048: MAPS, 4096: (*FUSED, *CHECKPOINTED), 8192: FUSED}
SIZES = {"width": 384, "layers": 6}


def measure(made: Measurements) -> None:
    """Measure what is not there yet."""
    for tokens, method in ((tokens, method) for tokens, methods in CASES.items() for method in methods):
        if f"{tokens}/{method}" not in made:
            command = [sys.executable, "-W", "ignore", "-m", "tools.benchmarks.length", method, str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            made.add(f"{tokens}/{method}", json.loads(done.stdout.splitlines()[-1]))
            print(f"{tokens:>6} {method:<20}{done.stdout.splitlines()[-1]}", flush=True)


def one(method: str, tokens: int) -> dict[str, float]:
    """The growth of memory during one call, and its time."""
    model, inputs = build("bert", 1, tokens=tokens, **SIZES)
    name, _, pieces = method.partition(" checkpoints=")
    run = plain(model, inputs)
    if name != "plain":
        run = functools.partial(whence.explain, model, inputs, name, 0, checkpoints=int(pieces or 1))
    with torch.no_grad():  # what the first call of torch and of the model sets up
        model(**{name: value[:, :8] for name, value in inputs.items()})
    memory, seconds = observed(run)  # not ru_maxrss, which begins with the peak of the process that started this one
    return {"memory": memory, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], int(sys.argv[2]))))
