"""The tables of docs/architectures.md and docs/architectures-timm.md."""

from __future__ import annotations

import re

import whence
from tools.conformance.checks import Row
from tools.conformance.regions import REGIONS

CHECKS = (
    "attentions",
    "streams",
    "regions",
    "forward",
    "books",
    "batch",
    "padding",
    "eager = sdpa",
    "patches",
    "methods",
)


def table(rows: list[Row], head: str) -> str:
    """The page: a title and how it was made, what the columns mean, and the rows."""
    lines = [head + LEGEND]
    for group in dict.fromkeys(r.family.group for r in rows):
        lines += [f"## {group}", "", TITLES, "|" + "---|" * TITLES.count(" | ") + "---|"]
        lines += [_line(r) for r in rows if r.family.group == group]
        lines.append("")
    lines += ["## Which methods do not apply, and why", ""]
    refusals: dict[str, dict[str, list[str]]] = {}  # reason -> families, in one line -> methods
    for name in sorted(whence.list_methods()):
        reasons: dict[str, list[str]] = {}
        for r in rows:
            if r.methods.get(name):
                reasons.setdefault(_reason(r.methods[name], name), []).append(r.family.name)
        for why, families in reasons.items():
            refusals.setdefault(why, {}).setdefault(", ".join(families), []).append(name)
        if not reasons:
            refusals.setdefault("Apply to all.", {}).setdefault("", []).append(name)
    for why, found in refusals.items():
        lines.append(f"**{why}**")
        lines += ["", *(f"- {', '.join(f'`{m}`' for m in names)}: {on or 'all'}" for on, names in found.items()), ""]
    return "\n".join(lines)


def _line(r: Row) -> str:
    marks = {True: "yes", False: "**no**", None: "-"}
    applied = sum(not why for why in r.methods.values())
    found = r.seen.get("attentions", "?")
    found = found if r.passed.get("attentions") else f"**{found} of {r.family.attentions}**"
    first = [r.family.name, found, *(_count(r, name) for name in REGIONS), r.seen.get("streams", "?")]
    checks = [marks[r.passed.get(name)] for name in ("forward", "batch", "padding", "eager = sdpa", "patches")]
    last = [r.seen.get("imbalance", "?"), r.seen.get("coverage", "?"), f"{applied} of {len(r.methods)}", r.family.note]
    return "| " + " | ".join([*first, *checks, *last]) + " |"


def _count(r: Row, name: str) -> str:
    """Return the number of regions of a kind that were found; where it is not the expected one, both."""
    seen = r.seen.get(name, "?")
    return f"**{seen}**" if " of " in seen else seen


def _reason(why: str, method: str) -> str:
    """The first sentence, without the numbers of one model and the name of one method."""
    first = why.split(". ")[0].rstrip(".") + "."
    aside = re.compile(r" \((?:[^()]|\([^()]*\))*\)")  # with asides of its own
    plain = aside.sub(lambda found: "" if re.search(r"\d", found[0]) else found[0], first)
    return plain.replace(f"'{method}'", "the method")


TITLES = (
    "| family | attentions | norms | activations | gates | residuals | streams | traced = plain | batch | padding "
    "| eager = SDPA | patches | books off by | coverage | methods | |"
)
LEGEND = """
- **attentions, streams**: what the trace found. Attentions were counted by hand from the architecture: where the trace
  finds another number, both stand there. Streams with their numbers of tokens.
- **norms, activations, gates, residuals**: how many the trace found between the input and the target. They are
  compared with a plain forward pass, in which calls of norm and activation modules are counted, products of two
  functions of the input (gates), and sums of a tensor and a function of it (residuals). Where the trace finds another
  number, both stand there.
- **traced = plain**: the traced forward has the value of the plain one.
- **batch, padding, eager = SDPA**: `conservative-lrp`, `gradient-x-input`, `generic-attention` and `rollout`, where
  they apply, give the same scores alone and in a batch, with and without padding (whose scores are 0), and with either
  implementation of attention. A dash: the family has no padding mask, or one implementation.
- **patches**: where the pixels of one cell of the patch grid are changed, the embedding of that patch changes, and no
  patch that does not touch the cell. Where a patch sees the whole image, the centre of the changes follows the cell. A
  dash: the explanation has no patches (text, sound, video).
- **books off by**: how far the ledger of `conservative-lrp` fails to account for relevance, relative to the largest
  sum.
- **coverage**: the share of operations with a rule under `conservative-lrp`.
- **methods**: how many apply; which do not, and why, stands at the end.
"""
