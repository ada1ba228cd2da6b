"""Compare captured with usual explanations: ``python -m tools.conformance.captured [--only BERT ViT] [--methods ...]``.

Every family is explained by every method, captured for one input and replayed for another. The second explanation must
be the one that ``whence.explain`` returns: bit for bit, or up to rounding where rows of zeros differ. A difference ends
the run with exit code 1. With ``--write`` the table goes to ``docs/captures.md``.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

import whence
from tools.conformance import families  # noqa: F401  # adds them
from tools.conformance.family import FAMILIES, Family, Inputs
from tools.replays import computations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "captures.md"
#: relative difference up to which scores count as equal where sums are rounded in another order
ROUNDING = 1e-9
ANEW = "captured anew: the other input goes another way through the model"

HEAD = """# Captured explanations

Made by `python -m tools.conformance.captured --write`, not by hand. Each family of the [matrix](architectures.md) is
explained by every method that applies to it, with few steps and samples where the method has these options. The
explanation is captured for one input and replayed for another one of the same shape. The result is compared with that
of `whence.explain` ([how captures work](how-to/fast.md)).

"""


def other_batch(family: Family, samples: int) -> Inputs:
    """Return other inputs than :meth:`Family.batch`, of the same shapes."""
    torch.manual_seed(7)
    given = family.inputs(8)
    return {
        k: (v.double() if v.is_floating_point() else v)[:samples] if v.dim() and len(v) == 8 else v
        for k, v in given.items()
    }


def outcome(family: Family, method: str, model: nn.Module | None = None) -> str:
    """Return how a captured explanation compares with the usual one; empty if the method does not apply.

    Args:
        family: the family.
        method: the method, with the options that make it quick: fewer steps and samples, the same operations.
        model: its model, if it is there already.
    """
    model = family.model().requires_grad_(False) if model is None else model
    inputs, options = other_batch(family, 2), whence.list_methods()[method].quick
    usual = functools.partial(whence.explain, model, inputs, method, family.target, **options)
    try:
        wanted = usual()
    except whence.EngineError:
        raise
    except whence.WhenceError:
        return ""
    explain = whence.compile(model, method, **options)
    explain(family.batch(2), family.target)
    with computations() as computed:
        found = explain(inputs, family.target)
    apart = distance(found, wanted)
    if apart > ROUNDING:
        random = distance(usual(), wanted) > 0
        return "not captured: random numbers are drawn" if random else f"DIFFERENT by {apart:.0e}"
    if explain.captures.refusals:
        return f"not captured: {explain.captures.refusals[0]}"
    if computed:
        again = distance(explain(inputs, family.target), wanted)
        return ANEW if again <= ROUNDING else f"DIFFERENT by {again:.0e}"
    return "replayed" if found == wanted or apart == 0 else "replayed, up to rounding"


def distance(found: whence.Explanation, wanted: whence.Explanation) -> float:
    """Return the largest difference of scores, relative to the largest score."""
    return float((found.scores - wanted.scores).abs().max() / wanted.scores.abs().max().clamp(min=1e-300))


def _row(name: str, methods: list[str]) -> tuple[str, dict[str, str]]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = FAMILIES[name].model().requires_grad_(False)
    return name, {method: outcome(FAMILIES[name], method, model) for method in methods}


def page(rows: dict[str, dict[str, str]]) -> str:
    """Return the page: how many are replayed by each method, and the families with others."""
    methods = list(next(iter(rows.values())))
    never = [m for m in methods if not any(row[m].startswith("replayed") for row in rows.values())]
    lines = ["| method | families | replayed | captured anew | not captured |", "|---|---|---|---|---|"]
    for method in methods:
        found = [row[method] for row in rows.values() if row[method]]
        counts = [
            sum(word.startswith(kind) for word in found) for kind in ("replayed", "captured anew", "not captured")
        ]
        lines.append(f"| `{method}` | {len(found)} | " + " | ".join(map(str, counts)) + " |")
    lines += [
        "",
        "*Captured anew*: the other input goes another way through the model, which is captured as well. Never "
        f"replayed: {', '.join(f'`{method}`' for method in never)}. Other explanations that are not replayed:",
        "",
        "| family | outcome | methods |",
        "|---|---|---|",
    ]
    for name, row in rows.items():
        others = {method: found for method, found in row.items() if found and method not in never}
        for kind in dict.fromkeys(found for found in others.values() if not found.startswith("replayed")):
            names = ", ".join(f"`{method}`" for method, found in others.items() if found == kind)
            lines.append(f"| {name} | {kind} | {names} |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Run, print, perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true")
    given: Any = parser.parse_args()
    names = given.only or list(FAMILIES)
    methods = given.methods or sorted(whence.list_methods())
    rows: dict[str, dict[str, str]] = {}
    with ProcessPoolExecutor(given.jobs) as pool:
        for name, row in pool.map(_row, names, [methods] * len(names)):
            rows[name] = row
            print(f"{name:38} {dict(Counter(found for found in row.values() if found))}", flush=True)
    if given.write:
        PAGE.write_text(page(rows), encoding="utf-8")
    sys.exit(any(found.startswith("DIFFERENT") for row in rows.values() for found in row.values()))


if __name__ == "__main__":
    main()
