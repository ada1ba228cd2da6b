"""Store or compare hashes: ``python -m tools.freeze write FILE``, ``python -m tools.freeze check FILE``.

The hashes hold on one machine with one torch: another processor rounds elsewhere. Write them before a change that
must not move any number, and check them after it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

import whence
from tools.freeze.cases import cases
from tools.freeze.digest import digest

CASES = {case.name: case for case in cases()}
METHODS = whence.list_methods()


def hashes(name: str) -> dict[str, str]:
    """Return the hash of every method on one case; where a method does not apply, the error's class."""
    case, out = CASES[name], {}
    model, inputs = case.build(), case.inputs()
    for method, described in METHODS.items():
        variants = {method: {}}
        if method in ("conservative-lrp", "generic-attention"):
            variants[f"{method} inside"] = {"inside": True}
        for label, options in variants.items():
            torch.manual_seed(0)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = whence.explain(model, inputs, method, case.target, **described.quick, **options)
                out[label] = digest(found)
            except Exception as error:  # a crash is a result that must not change in silence, either
                out[label] = type(error).__name__
    return out


def changes(before: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> list[str]:
    """Return a line for each hash that differs, is new, or is gone."""
    return [
        f"{case}: {method}: {old} before, {new} now"
        for case in sorted({*before, *now})
        for method in sorted({*before.get(case, {}), *now.get(case, {})})
        if (old := before.get(case, {}).get(method, "absent")) != (new := now.get(case, {}).get(method, "absent"))
    ]


def main() -> None:
    """Hash, then write or compare; exit with 1 where a hash differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = dict(zip(options.only, pool.map(hashes, options.only), strict=True))
    count = sum(map(len, found.values()))
    if options.action == "write":
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{count} hashes of {len(found)} models written to {options.file}")
        return
    before = json.loads(options.file.read_text())
    changed = changes({case: before.get(case, {}) for case in options.only}, found)
    print("\n".join(changed))
    print(f"{len(changed)} of {count} hashes of {len(found)} models changed")
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
