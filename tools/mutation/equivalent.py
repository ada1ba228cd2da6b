"""Mutants that no test can kill, because they are the same function: named, each with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from .mutant import Mutant

FILE = Path(__file__).parent / "equivalent.json"


def reasons(every: Iterable[Mutant] = ()) -> dict[str, str]:
    """The reason of each, by the mutant's name.

    Args:
        every: all mutants that there are, if the list is to be held to them.
    """
    found: dict[str, str] = json.loads(FILE.read_text())
    names = {mutant.name for mutant in every}
    gone = [name for name in found if names and name not in names]
    if gone:
        raise SystemExit(f"{FILE.name} names mutants that are no longer made; take them out: {', '.join(gone)}")
    return found
