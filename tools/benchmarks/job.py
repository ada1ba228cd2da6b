"""A dataset through ``whence run``: samples per second with captured explanations, and without (``--no-capture``).

Needs the shared data and weights (``WHENCE_SHARED``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.benchmarks.measurements import Measurements

SHARED = Path(os.environ.get("WHENCE_SHARED", Path(__file__).parents[3] / "shared"))
MODEL, DATA = SHARED / "weights" / "minilm_l6_sst2", SHARED / "data"
TEXTS = 20_000
WAYS = {"captured": [], "not captured": ["--no-capture"]}


def measure(made: Measurements, texts: int = TEXTS) -> None:
    """Measure what is not there yet; without the shared files, nothing."""
    if not MODEL.exists():
        print(f"{MODEL} is not there: `whence run` is not measured.", flush=True)
        return
    for name, words in WAYS.items():
        if f"{name}/{texts}" not in made:
            workers = os.cpu_count() or 1
            seconds = explained(texts, workers, words)
            made.add(f"{name}/{texts}", {"seconds": seconds, "texts": texts, "workers": workers})
            print(f"{name:<14}{seconds:8.1f} s {texts / seconds:8.1f} samples a second", flush=True)


def explained(texts: int, workers: int, words: list[str]) -> float:
    """Return the seconds of one run of the command, the loading of the model among them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "whence", "run", "sst2", "--data", str(DATA)]
        command += ["--split", "train", "--limit", str(texts), "--model", str(MODEL), "--out", f"{folder}/rows"]
        start = time.perf_counter()
        subprocess.run([*command, "--workers", str(workers), *words], check=True)
        return time.perf_counter() - start
