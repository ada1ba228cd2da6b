"""``python -m tools.fuzz``: try cases, shrink what fails, count what is refused and why.

python -m tools.fuzz --cases 5000 --seed 0            # what `make fuzz` does
python -m tools.fuzz --case method=lrp norm=post ...  # one case again, as a failure prints it
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tools.fuzz.case import Case, case_of, draw_case
from tools.fuzz.properties import Outcome, tried
from tools.fuzz.shrink import shrunk


@dataclass
class Report:
    """What a run found.

    Attributes:
        seed: of the cases.
        cases: how many were tried.
        passed: how many had all properties.
        refused: how often each sentence was said, numbers and names of methods left out.
        failures: what failed, each with its number, property and the plainest case that fails alike.
        seconds: that it took.
    """

    seed: int
    cases: int = 0
    passed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        """Counts, refusals by reason, and failures with the command that repeats them."""
        lines = [
            f"{self.cases} cases of seed {self.seed} in {self.seconds:.0f} s: {self.passed} passed, "
            f"{self.refused.total()} refused, {len(self.failures)} failed"
        ]
        lines += [f"{n:>6}  {reason}" for reason, n in self.refused.most_common()]
        for failure in self.failures:
            lines += [f"FAILED case {failure['index']}, {failure['property']}: {failure['said']}"]
            lines += [f"  python -m tools.fuzz --case {failure['case']}"]
        return "\n".join(lines)


def reason(said: str) -> str:
    """A refusal without what changes from case to case: numbers, methods, names of tensors."""
    plain = re.sub(r"(?<!\w)'[^']*'|\([^()]*(\([^()]*\)[^()]*)*\)|\[.*?\]+", "…", said.strip())
    return re.sub(r"\d+", "n", re.split(r"(?<=[.:]) ", plain)[0])


def run(cases: range, seed: int, shrink: bool = True, say: bool = False) -> Report:
    """Try the cases of some numbers."""
    report, start = Report(seed), time.time()
    for index in cases:
        case = draw_case(seed, index)
        outcome = tried(case)
        report.cases += 1
        report.passed += outcome.kind == "passed"
        if outcome.kind == "refused":
            report.refused[f"{outcome.name}: {reason(outcome.said)}"] += 1
        elif outcome.kind == "failed":
            report.failures.append(_failure(index, case, outcome, shrink))
            if say:
                print(json.dumps(report.failures[-1]), flush=True)
        if say and report.cases % 100 == 0:
            print(f"{report.cases} tried, {len(report.failures)} failed", file=sys.stderr, flush=True)
    report.seconds = time.time() - start
    return report


def _failure(index: int, case: Case, outcome: Outcome, shrink: bool) -> dict[str, object]:
    small = shrunk(case, outcome.name) if shrink else case
    said = tried(small).said
    return {"index": index, "property": outcome.name, "said": said, "case": small.words(), "drawn": case.words()}


def main(words: list[str] | None = None) -> int:
    """Run, print, and fail if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", nargs="+", metavar="NAME=VALUE", help="one case, as a failure prints it")
    parser.add_argument("--out", type=Path, help="also write the report as JSON")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.case:
        outcome = tried(case_of(options.case))
        print(f"{outcome.kind} {outcome.name}: {outcome.said}".rstrip(": "))
        return int(outcome.kind == "failed")
    report = run(range(options.first, options.first + options.cases), options.seed, say=True)
    print(report.table())
    if options.out is not None:
        options.out.write_text(json.dumps({**vars(report)}, indent=1))
    return int(bool(report.failures))
