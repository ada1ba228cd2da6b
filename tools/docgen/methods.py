"""The parts of the methods' pages that are facts: what a method's class says of it, what it cost, what it answers.

A page is written by hand between two parts that are written here, from ``whence.list_methods()``, from the tables of
``docs/performance.md``, and by running the method on a model that comes with Whence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import whence
from tools.docgen.page import between
from tools.docgen.snippets import printed

DOCS = Path(__file__).resolve().parents[2] / "docs"
SECTION = re.compile(r"^### (.*)$", re.MULTILINE)
SHORT = {
    "BERT, 12 layers of width 32, 32 tokens": "tiny BERT",
    "BERT-base, 128 tokens": "BERT-base",
    "a 12-layer decoder, 1,024 tokens": "decoder, 1,024 tokens",
}

TEXT = """\
import whence
from whence.models import MODELS

explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
e = explainer("The acting is superb, but the story goes nowhere.", method="{name}")
largest = max(abs(w.score) for w in e.words[0])
print(*(f"{{w.text}} {{w.score / largest:+.2f}}" for w in e.words[0]))
"""
SAME = """\
The model says *negative*. The same sentence is on every method's page; scores are over the largest of a word.

"""
PICTURE = """\
import whence
from whence.models import MODELS

explainer = whence.Explainer.from_pretrained(MODELS / "digits")
e = explainer(MODELS / "digits" / "examples" / "0-6.png", method="{name}")
strongest = divmod(int(e.heatmap()[0].argmax()), e.heatmap().shape[-1])
print(e.target_names[0], tuple(e.heatmap().shape), "strongest at row, column", strongest)
"""


class Cost(NamedTuple):
    """Multiples of one forward and backward, as the tables have them; empty if not measured.

    Attributes:
        time: of one sample, the first explanation.
        warm: the same of a replay.
        memory: of one sample.
        eight: time of eight samples, as a multiple of that of eight.
    """

    time: str
    warm: str
    memory: str
    eight: str


def costs() -> dict[str, dict[str, Cost]]:
    """For each method and model what it cost, without what was not measured: ``{method: {model: cost}}``."""
    found: dict[str, dict[str, Cost]] = {}
    parts = SECTION.split((DOCS / "performance.md").read_text(encoding="utf-8"))[1:]
    for model, text in zip(parts[::2], parts[1::2], strict=True):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
        for row in rows:
            cell = dict(zip(reversed(rows[0]), reversed(row), strict=False))  # of two columns of a name, the first
            time, warm, memory, eight = (number(cell.get(c, "")) for c in ("batch 1", "warm", "memory", "batch 8"))
            if time and row[0].startswith("`"):
                cost = Cost(time, warm, memory, eight)
                found.setdefault(row[0].strip("`"), {})[SHORT.get(model, model)] = cost
    return found


def number(cell: str) -> str:
    """The number that a cell begins with, also in bold; empty if it has none."""
    found = re.match(r"\**([\d.]+)", cell)
    return found[1] if found else ""


def facts(row: dict[str, Any], cost: dict[str, Cost]) -> str:
    """What is known of a method, as a table."""
    times = {model: found.time for model, found in cost.items()}
    warm = {model: found.warm for model, found in cost.items() if found.warm}
    memory = {model: found.memory for model, found in cost.items() if found.memory}
    lines = [
        ("shows", row["shows"]),
        ("beware", row["beware"]),
        ("paper", row["paper"]),
        ("differs between answers", "yes" if row["class_specific"] else "no, but for the rows that it reads"),
        ("keeps what it hands on", "yes, but for what the ledger says" if row["conservative"] else "no"),
        ("needs", row["needs"]),
        ("passes", f"{passes(row['forwards'], 'forward')}, {passes(row['backwards'], 'backward')}"),
        ("time, of one forward and backward", listed(times)),
        ("time of a [replay](../how-to/fast.md), of the same", listed(warm)),
        ("memory, of the same", listed(memory)),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in lines if value and value != "none")
    note = "\n\nMeasured by `make bench`: [performance.md](../performance.md)." if cost else ""
    return f"| | |\n|---|---|\n{table}{note}"


def passes(count: int | str, noun: str) -> str:
    """A number of passes in words."""
    if count == 0:
        return f"no {noun}"
    return f"{count} {noun}" + ("" if count == 1 else "s")


def listed(values: dict[str, str]) -> str:
    """Values and the models that they are of, in a line."""
    return " · ".join(f"{value} ({model})" for model, value in values.items())


def example(row: dict[str, Any]) -> str:
    """The method on a shipped model, and what it answers."""
    pictures = row["needs"] == "pictures"
    code = (PICTURE if pictures else TEXT).format(name=row["name"])
    shown = "\n".join(f"    {line}" for line in printed(code, {}, row["name"]).splitlines())
    lead = "" if pictures else SAME
    return f"## Example\n\n{lead}```python\n{code}```\n\n{shown}"


def pages() -> dict[Path, str]:
    """Every method's page, with its generated parts made anew."""
    cost, made = costs(), {}
    for row in whence.list_methods().rows():
        path = DOCS / "methods" / f"{row['name']}.md"
        text = path.read_text(encoding="utf-8")
        text = between(text, "facts", facts(row, cost.get(row["name"], {})), after=f"# `{row['name']}`\n")
        made[path] = between(text, "example", example(row))
    return made
