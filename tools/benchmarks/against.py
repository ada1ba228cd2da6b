"""``python -m tools.benchmarks.against CHECKOUT``: the cost of methods here and in another checkout, side by side.

Two processes, one with each checkout's package, take turns: each explains once while the other waits, so that a noisy
machine slows both alike. Printed is the median of the ratios, here over there.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import torch

import whence
from tools.benchmarks.measure import timed
from tools.benchmarks.models import MODELS, build

ROOT = Path(__file__).resolve().parents[2]
METHODS = (
    "conservative-lrp", "attn-lrp", "gradient-x-input", "generic-attention", "grad-cam", "rollout", "res-lrp",
    "libragrad", "legrad", "lrp", "transformer-attribution",
)  # fmt: skip


class Side:
    """A process that explains with one checkout's package, once for each line that it is sent."""

    def __init__(self, checkout: Path, model: str) -> None:
        environment = os.environ | {"PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-W", "ignore", "-m", "tools.benchmarks.against", "--serve", model]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT
        )

    def seconds(self, method: str) -> float:
        """Return how long one explanation takes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(method, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(name: str) -> None:
    """Explain with a method for each line of standard input, and print the seconds."""
    torch.set_num_threads(1)
    model, inputs = build(name, 1)
    for line in sys.stdin:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spent = timed(functools.partial(whence.explain, model, inputs, line.strip(), 0))
        print(spent, flush=True)


def main() -> None:
    """Print a line for each model and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", help="the root of the other checkout")
    parser.add_argument("--models", nargs="+", default=["bert", "vit"], choices=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    for model in options.models:
        here, there = Side(ROOT, model), Side(options.checkout.resolve(), model)
        for method in options.methods:
            for side in (here, there):  # the first explanation of a method warms up
                side.seconds(method)
            pairs = [(here.seconds(method), there.seconds(method)) for _ in range(options.repeats)]
            found = statistics.median(mine / other for mine, other in pairs)
            mine = statistics.median(mine for mine, _ in pairs)
            print(f"{model:6s} {method:24s} {found:.3f}  ({1000 * mine:.0f} ms)", flush=True)
        here.close()
        there.close()


if __name__ == "__main__":
    main()
