"""What a page shows: pieces of Python with what they print, and commands."""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import WhenceWarning

PYTHON = re.compile(r"```python\n(.*?)```\n((?:\n| {4}[^\n]*\n)*)", re.DOTALL)
COMMANDS = re.compile(r"(?<=\n\n)((?: {4}(?:whence|make|pip|python) [^\n]*\n)+)(?:\n```text\n(.*?)```\n)?", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


@dataclass
class Snippet:
    """A piece of Python or a command, and what a page says that it prints.

    Attributes:
        place: where it begins, in characters.
        code: Python, or one command.
        shown: what is printed; empty if the page does not say.
        python: whether it is Python.
    """

    place: int
    code: str
    shown: str
    python: bool


def python(path: Path) -> list[Snippet]:
    """Every block of Python, with the indented text below it."""
    found = PYTHON.finditer(path.read_text(encoding="utf-8"))
    return [Snippet(m.start(), m[1], re.sub("^    ", "", m[2], flags=re.MULTILINE), True) for m in found]


def everything(path: Path) -> list[Snippet]:
    """Blocks of Python and commands, in order; below commands there may be a block of text, what the last prints."""
    text = path.read_text(encoding="utf-8")
    found = python(path)
    inside = [(m.start(), m.end()) for m in PYTHON.finditer(text)]
    for m in COMMANDS.finditer(text):
        if any(start <= m.start() < end for start, end in inside):
            continue
        lines = m[1].strip("\n").split("\n")
        found += [
            Snippet(m.start() + i, line.strip(), (m[2] or "") if i + 1 == len(lines) else "", False)
            for i, line in enumerate(lines)
        ]
    return sorted(found, key=lambda snippet: snippet.place)


def printed(code: str, scope: dict[str, Any], name: str) -> str:
    """What a piece of Python prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore", WhenceWarning)  # what they warn of, the page says
        exec(compile(code, name, "exec"), scope)
    return out.getvalue()


def differences(printed: str, shown: str) -> list[str]:
    """Sentences that say where what was printed is not what is shown; whitespace at the ends of lines is no matter."""
    lines, wanted = ([line.strip() for line in text.strip("\n").splitlines()] for text in (printed, shown))
    if len(lines) != len(wanted):
        return [f"{len(lines)} lines are printed, {len(wanted)} are shown:\n{printed}"]
    return [f"prints {a!r}, shown is {b!r}" for a, b in zip(lines, wanted, strict=True) if not same(a, b)]


def same(printed: str, shown: str) -> bool:
    """The same words, and numbers that agree to the digits shown; rounding noise is noise on any machine."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", shown):
        return False
    pairs = zip(map(float, NUMBER.findall(printed)), map(float, NUMBER.findall(shown)), strict=True)
    return all(math.isclose(a, b, rel_tol=2e-2, abs_tol=1e-12) or _are_rounding(a, b) for a, b in pairs)


def _are_rounding(a: float, b: float) -> bool:
    """Return whether two numbers are rounding of single precision, which differs from one kind of CPU to another."""
    low, high = sorted((abs(a), abs(b)))
    return high < 1e-5 and high <= 5 * low
