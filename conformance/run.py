"""Make the matrix: ``python -m conformance.run [--only BERT ViT] [--write]``.

Every family is built, looked at, and explained by every method. With ``--write`` the table goes to
``docs/architectures.md`` and what passed to ``conformance/passed.json``; without, a cell that passed before and fails
now ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

import whence
from conformance import families  # noqa: F401  # adds them
from conformance.checks import Row, row
from conformance.family import FAMILIES
from conformance.table import table

HERE = Path(__file__).resolve().parent
PASSED, TABLE = HERE / "passed.json", HERE.parent / "docs" / "architectures.md"


def regressions(rows: list[Row], before: dict[str, dict[str, bool]]) -> list[str]:
    """Cells that passed before and do not pass now; methods that applied and do not apply now."""
    out = []
    for r in rows:
        old = before.get(r.family.name, {})
        now = cells(r)
        out += [f"{r.family.name}: {cell} passed before" for cell, good in old.items() if good and not now.get(cell)]
    return out


def cells(r: Row) -> dict[str, bool]:
    """Every cell of a row that was asked for."""
    checks = {name: good for name, good in r.passed.items() if good is not None}
    return {**checks, **{f"method {name}": not why for name, why in r.methods.items()}}


def main() -> None:
    """Run, print, compare, perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, methods = [], sorted(whence.methods())
    for name in options.only:
        start = time.time()
        rows.append(row(FAMILIES[name], methods))
        applied = sum(not why for why in rows[-1].methods.values())
        said = "; ".join(rows[-1].failed) or "passed"
        print(f"{name:<28} {applied:>3} methods  {time.time() - start:5.1f} s  {said}", flush=True)
    before = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    lost = regressions(rows, before)
    for line in lost:
        print(line, file=sys.stderr)
    if options.write:
        before |= {r.family.name: cells(r) for r in rows}
        PASSED.write_text(json.dumps(before, indent=1, sort_keys=True) + "\n")
        if len(rows) == len(FAMILIES):
            TABLE.write_text(table(rows))
    sys.exit(1 if lost and not options.write else 0)


if __name__ == "__main__":
    main()
