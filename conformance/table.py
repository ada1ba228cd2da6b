"""The table of docs/architectures.md."""

from __future__ import annotations

import torch
import transformers

import whence
from conformance.checks import Row

CHECKS = ("attentions", "streams", "forward", "books", "batch", "padding", "eager = sdpa", "methods")


def table(rows: list[Row]) -> str:
    """The page."""
    lines = [HEAD.format(count=len(rows), torch=torch.__version__, transformers=transformers.__version__)]
    for group in dict.fromkeys(r.family.group for r in rows):
        lines += [f"## {group}", "", TITLES, "|" + "---|" * TITLES.count(" | ") + "---|"]
        lines += [_line(r) for r in rows if r.family.group == group]
        lines.append("")
    refusals = {name: {} for name in sorted(whence.methods())}  # method -> reason -> families
    for r in rows:
        for name, why in r.methods.items():
            if why:
                refusals[name].setdefault(_reason(why), []).append(r.family.name)
    lines += ["## Which methods do not apply, and why", ""]
    for name, reasons in refusals.items():
        if not reasons:
            lines.append(f"- `{name}`: applies to all.")
        for why, names in reasons.items():
            lines.append(f"- `{name}`: {', '.join(names)}. *{why}*")
    return "\n".join(lines) + "\n"


def _line(r: Row) -> str:
    marks = {True: "yes", False: "**no**", None: "-"}
    applied = sum(not why for why in r.methods.values())
    first = [r.family.name, r.seen.get("attentions", "?"), r.seen.get("streams", "?")]
    checks = [marks[r.passed.get(name)] for name in ("forward", "batch", "padding", "eager = sdpa")]
    last = [r.seen.get("imbalance", "?"), r.seen.get("coverage", "?"), f"{applied} of {len(r.methods)}", r.family.note]
    return "| " + " | ".join([*first, *checks, *last]) + " |"


def _reason(why: str) -> str:
    """The first sentence, without the numbers of one model."""
    return why.split(". ")[0].rstrip(".") + "."


TITLES = (
    "| family | attentions | streams | traced = plain | batch | padding | eager = SDPA | books off by | coverage "
    "| methods | |"
)
HEAD = """# Architectures

Made by `make conformance`, not by hand: a tiny seeded model of each family, from its own class, with every method
({count} families; torch {torch}, transformers {transformers}).

- **attentions, streams**: what the trace found, which is what the configuration says there are. Streams with their
  numbers of tokens.
- **traced = plain**: the traced forward has the value of the plain one.
- **batch, padding, eager = SDPA**: `conservative-lrp`, `gradient-x-input`, `generic-attention` and `rollout`, where
  they apply, give the same scores alone and in a batch, with and without padding (whose scores are 0), and with either
  implementation of attention. A dash: the family has no padding mask, or one implementation.
- **books off by**: how far the ledger of `conservative-lrp` fails to account for relevance, relative to the largest
  sum.
- **coverage**: the share of operations with a rule under `conservative-lrp`.
- **methods**: how many apply; which do not, and why, stands at the end.
"""
