"""The design's table of overheads: the founding methods, from the tables of ``docs/performance.md``."""

from __future__ import annotations

from pathlib import Path

from tools.docgen.methods import DOCS, costs
from tools.docgen.page import between

PASSES = {
    "conservative-lrp": "1 forward, 1 backward",
    "attn-lrp": "1 forward, 1 backward",
    "gradient-x-input": "1 forward, 1 backward",
    "generic-attention": "1 forward, 1 backward, each layer's map recomputed",
    "transformer-attribution": "1 forward, 2 backward passes, each layer's map recomputed",
}


def table() -> str:
    """A row for each method: from the least to the most of the large models that were measured."""
    found = {name: {m: c for m, c in cost.items() if m != "tiny BERT"} for name, cost in costs().items()}
    rows = [
        f"| `{name}` | {passes} | {span([c.time for c in found[name].values()])} | "
        f"{span([c.eight for c in found[name].values() if c.eight])} |"
        for name, passes in PASSES.items()
    ]
    return "\n".join(["| method | passes | batch 1 | batch 8 |", "|---|---|---|---|", *rows])


def span(values: list[str]) -> str:
    """The least and the most, or the one."""
    low, high = min(values, key=float), max(values, key=float)
    return low if low == high else f"{low}\N{EN DASH}{high}"


def pages() -> dict[Path, str]:
    """The design with its table made anew."""
    path = DOCS / "design.md"
    return {path: between(path.read_text(encoding="utf-8"), "overhead", table())}
