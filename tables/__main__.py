"""``python -m tables [A B C] [--limit N] [--report]``: evaluate, then write ``docs/results.md``.

Every evaluation goes on where it stopped; with ``--report`` nothing is evaluated.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from tables.plan import TABLES
from tables.report import write


def main() -> None:
    """Evaluate what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=[*TABLES, []], metavar="TABLE")
    parser.add_argument("--limit", type=int, help="samples a cell, for a quick look")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--report", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    for table in options.tables if not options.report else ():
        for run in TABLES[table]():
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
    print(write())


if __name__ == "__main__":
    main()
