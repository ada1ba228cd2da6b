"""What trials have shown, in a file that a run can go on from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from .mutant import Mutant
from .trial import Verdict


def key(mutant: Mutant) -> str:
    """A mutant by its whole source: the same change of another version is another mutant."""
    return hashlib.sha256(f"{mutant.module}\n{mutant.source}".encode()).hexdigest()[:20]


class Record:
    """Verdicts by mutant, one line each.

    Args:
        folder: where the files are; each process that writes has its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def verdicts(self) -> dict[str, Verdict]:
        """All that is known, the latest of each."""
        lines = [json.loads(line) for p in self.folder.glob("verdicts-*.jsonl") for line in p.read_text().splitlines()]
        return {n["key"]: Verdict(**n["verdict"]) for n in sorted(lines, key=lambda n: n["at"])}

    def add(self, mutant: Mutant, verdict: Verdict, at: float, worker: int) -> None:
        """Append one."""
        with (self.folder / f"verdicts-{worker}.jsonl").open("a") as file:
            file.write(json.dumps({"key": key(mutant), "at": at, "verdict": asdict(verdict)}) + "\n")
