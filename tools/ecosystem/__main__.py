"""Make the table: ``python -m tools.ecosystem [--only NAME ...] [--methods ...] [--write] [--accept]``.

Every case is built, and every method explains the plain model and the model as it is loaded. A difference, or a cell
that was good before and is not now, ends the run with exit code 1. With ``--write`` the table goes to
``docs/ecosystem.md`` and what was good to ``passed.json``; ``--accept`` allows cells to be lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import whence
from tools.ecosystem import adapters, quantised, sharded, wrappers
from tools.ecosystem.case import Case
from tools.ecosystem.compare import ABSENT, CLOSE, DIFFERENT, EQUAL, GOOD, NEITHER, REFUSED, Outcome, outcomes

HERE = Path(__file__).resolve().parent
PASSED, PAGE = HERE / "passed.json", HERE.parents[1] / "docs" / "ecosystem.md"
CASES: list[Case] = [*wrappers.CASES, *adapters.CASES, *quantised.CASES, *sharded.CASES]
METHODS = sorted(set(whence.list_methods()) - {"random"})  # which draws numbers for the shape of the input
PACKAGES = ("torch", "transformers", "peft", "accelerate", "torchao", "optimum-quanto", "bitsandbytes",
            "sentence-transformers", "lightning")  # fmt: skip
HEAD = """# Models as people load them

Made by `make ecosystem`, not by hand ({packages}).
Each row is one way to load or wrap a tiny seeded model. Every method explains the plain model and the model as it is
loaded. *Equal*: scores differ by rounding alone (float32, 1e-4 of the largest score). *Close*: weights or kernels are
rounded, and scores have the given rank correlation with those of the plain model, at least. *Refused*: the plain model
is explained, this one is not, and the sentence below says why. Methods that do not apply to the plain model either are
left out, as is `random`.

| loaded | package | equal | close | refused |
|---|---|---|---|---|
"""

Rows = dict[str, dict[str, Outcome]]


def page(rows: Rows) -> str:
    """Return the page: a row for each case, then the sentences of refusals."""
    lines = []
    said: dict[str, list[str]] = {}
    for case in CASES:
        found = rows.get(case.name, {})
        kinds = Counter(one.kind for one in found.values())
        ranks = [float(one.said) for one in found.values() if one.kind == CLOSE]
        close = f"{kinds[CLOSE]} (≥ {min(ranks):.2f})" if ranks else "-"
        refused = [method for method, one in found.items() if one.kind == REFUSED]
        whole = "all methods" if len(refused) + kinds[NEITHER] == len(found) else ""
        named = whole or ", ".join(f"`{method}`" for method in refused) or "-"
        lines.append(f"| {case.name} | {case.package} | {kinds[EQUAL] or '-'} | {close} | {named} |")
        for method in refused:
            said.setdefault(found[method].said, []).append(f"{case.name}: {whole or f'`{method}`'}")
    lines += ["", "Why explanations are refused:", ""]
    lines += [f"- {why} ({'; '.join(dict.fromkeys(where))})" for why, where in said.items()]
    packages = ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))
    return HEAD.format(packages=packages) + "\n".join(lines) + "\n"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def lost(rows: Rows, before: dict[str, dict[str, str]]) -> list[str]:
    """Return the cells that were better before."""
    worse = []
    for name, found in rows.items():
        for method, one in found.items():
            kind = before.get(name, {}).get(method)
            if kind in GOOD and one.kind != kind and not (kind == CLOSE and one.kind == EQUAL):
                worse.append(f"{name}: `{method}` was {kind}, is {one.kind} {one.said}".rstrip())
    return worse


def main() -> None:
    """Run, print, compare, perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--write", action="store_true", help="write the table, and what was good")
    parser.add_argument("--accept", action="store_true", help="a cell that was good before may be lost from now on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    assert len(set(names)) == len(names), "two cases have one name"
    rows: Rows = {}
    for case in CASES:
        if case.name not in options.only:
            continue
        start = time.time()
        rows[case.name] = found = outcomes(case, options.methods)
        counts = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in found.values()).items())
        print(f"{case.name:<58} {time.time() - start:5.0f} s  {counts}", flush=True)
        for method, one in found.items():
            if one.kind == DIFFERENT:
                print(f"    {method}: {one.said}", flush=True)
    before = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    worse = [] if options.accept else lost(rows, before)
    for line in worse:
        print(line, file=sys.stderr)
    if options.write:
        PAGE.write_text(page(rows), encoding="utf-8")
        kept = {name: {m: one.kind for m, one in row.items() if one.kind in GOOD} for name, row in rows.items()}
        PASSED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    failed = any(one.kind in (DIFFERENT, ABSENT) for row in rows.values() for one in row.values())
    sys.exit(bool(worse) or failed)


if __name__ == "__main__":
    main()
