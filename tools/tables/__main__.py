"""``python -m tools.tables [A B C D] [--limit N] [--report]``: evaluate, then write ``docs/results.md``.

Every evaluation goes on where it stopped; with ``--report`` nothing is evaluated.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from tools.tables.plan import MODELS, TABLES
from tools.tables.report import write
from tools.tables.scenes import ENOUGH, MODALITIES, evaluate


def main() -> None:
    """Evaluate what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=[*TABLES, "D"], metavar="TABLE", help="A, B, C or D; default: all")
    parser.add_argument("--limit", type=int, help="samples a cell, for a quick look")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--report", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    if wrong := set(options.tables) - {*TABLES, "D"}:
        parser.error(f"there is no table {', '.join(sorted(wrong))}")
    for table in options.tables if not options.report else ():
        for run in TABLES[table]() if table in TABLES else ():
            if options.only not in run.name:
                continue
            if not (run.model / "config.json").exists():
                print(f"{run.name}: the model {run.model.name} is not there; `make models` trains it.")
                continue
            start = time.time()
            found = run.evaluate(options.limit)
            print(
                f"{run.name}: {found.samples} samples, accuracy {found.accuracy:.3f}, {time.time() - start:.0f} s",
                flush=True,
            )
    if "D" in options.tables and not options.report:
        _scenes(options.only, options.limit or ENOUGH)
    print(write())


def _scenes(only: str, limit: int) -> None:
    """Evaluate the three models of scenes, those that are there."""
    for kind in MODALITIES:
        if only in f"d/{kind}" and (MODELS / f"scenes-{kind}" / "config.json").exists():
            for modality, found in evaluate(kind, limit).items():
                print(f"d/{kind}-{modality}: {found.samples} samples", flush=True)
        else:
            print(f"d/{kind}: left out, or the model scenes-{kind} is not there; `make models` trains it.")


if __name__ == "__main__":
    main()
