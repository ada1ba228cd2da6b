"""Make the matrix: ``python -m tools.conformance.run [--only BERT ViT] [--write] [--jobs 2]``.

Every family is built, looked at, and explained by every method. A cell that passed before and fails now ends the run
with exit code 1, unless ``--accept`` is given. With ``--write`` the table goes to ``docs/architectures.md`` (if all
families were run) and what passed to ``conformance/passed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

import whence
from tools.conformance import families  # noqa: F401  # adds them
from tools.conformance.checks import Row, row
from tools.conformance.family import FAMILIES
from tools.conformance.regions import REGIONS
from tools.conformance.table import table

HERE = Path(__file__).resolve().parent
PASSED, TABLE = HERE / "passed.json", HERE.parents[1] / "docs" / "architectures.md"

HEAD = """# Architectures

Made by `make conformance`, not by hand: a tiny seeded model of each family, from its own class, with every method
({count} families; torch {torch}, transformers {transformers}).
"""


def regressions(rows: list[Row], before: dict[str, list[str]]) -> list[str]:
    """Cells that passed before and do not pass now; methods that applied and do not apply now."""
    lost = [(r.family.name, cell) for r in rows for cell in before.get(r.family.name, []) if cell not in cells(r)]
    return [f"{name}: {cell} passed before" for name, cell in lost]


def cells(r: Row) -> list[str]:
    """Every cell of a row that passed: checks, and methods that apply."""
    checks = [name for name, good in r.passed.items() if good]
    return [*checks, *(f"method {name}" for name, why in r.methods.items() if not why)]


def _row(name: str) -> tuple[tuple[Any, ...], float]:
    """A row without its family, which does not travel between processes, and the time that it took."""
    start = time.time()
    r = row(FAMILIES[name], sorted(whence.list_methods()))
    return (name, r.seen, r.passed, r.methods, r.failed), time.time() - start


def main() -> None:
    """Run, print, compare, perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--write", action="store_true", help="write the table, and what passed")
    parser.add_argument("--accept", action="store_true", help="a cell that passed before may fail from now on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(options.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for made, seconds in pool.map(_row, options.only):
            r = Row(FAMILIES[made[0]], *made[1:])
            applied = sum(not why for why in r.methods.values())
            regions = ", ".join(f"{r.seen.get(name, '?')} {name}" for name in REGIONS)
            said = "; ".join(r.failed) or "passed"
            print(f"{r.family.name:<38} {regions:<56} {applied:>3} methods  {seconds:5.1f} s  {said}", flush=True)
            rows.append(r)
    before = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    lost = [] if options.accept else regressions(rows, before)
    for line in lost:
        print(line, file=sys.stderr)
    if options.write:
        for r in rows:
            old = [] if options.accept else before.get(r.family.name, [])
            before[r.family.name] = sorted({*cells(r), *old})
        lines = [f"{json.dumps(name)}: {json.dumps(before[name])}" for name in sorted(before)]
        PASSED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        if len(rows) == len(FAMILIES):
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            TABLE.write_text(table(rows, HEAD.format(count=len(rows), **versions)))
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
