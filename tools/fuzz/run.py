"""``python -m tools.fuzz``: try cases, shrink what fails, count what is refused and why.

python -m tools.fuzz --cases 5000 --seed 0            # what `make fuzz` does
python -m tools.fuzz --case method=lrp norm=post ...  # one case again, as a failure prints it
python -m tools.fuzz --only captured --cases 1000     # captured explanations against usual ones, nothing else
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

from tools.fuzz.captured import tried_captured
from tools.fuzz.case import Case, case_of, draw_case
from tools.fuzz.properties import Outcome, tried
from tools.fuzz.shrink import Check, shrunk

#: what is checked of a case: all properties, or one by name
CHECKS: dict[str, Check] = {"": tried, "captured": tried_captured}


@dataclass
class Report:
    """What a run found.

    Attributes:
        seed: of the cases.
        cases: how many were tried.
        passed: how many had all properties.
        named: the numbers of the cases that passed in each way, where there are several.
        refused: how often each sentence was said, numbers and names of methods left out.
        failures: what failed, each with its number, property and the plainest case that fails alike.
        seconds: that it took.
        only: the one check that was made; empty for all.
    """

    seed: int
    cases: int = 0
    passed: int = 0
    named: dict[str, list[int]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0
    only: str = ""

    def table(self) -> str:
        """Counts, refusals by reason, and failures with the command that repeats them."""
        lines = [
            f"{self.cases} cases of seed {self.seed} in {self.seconds:.0f} s: {self.passed} passed, "
            f"{self.refused.total()} refused, {len(self.failures)} failed"
        ]
        for name, found in sorted(self.named.items(), key=lambda item: -len(item[1])):
            lines += [f"{len(found):>6}  {name} (case {found[0]})"]
        lines += [f"{n:>6}  refused, {reason}" for reason, n in self.refused.most_common()]
        for failure in self.failures:
            lines += [f"FAILED case {failure['index']}, {failure['property']}: {failure['said']}"]
            only = f"--only {self.only} " if self.only else ""
            lines += [f"  python -m tools.fuzz {only}--case {failure['case']}"]
        return "\n".join(lines)


def reason(said: str) -> str:
    """A refusal without what changes from case to case: numbers, methods, names of tensors."""
    plain = re.sub(r"(?<!\w)'[^']*'|\([^()]*(\([^()]*\)[^()]*)*\)|\[.*?\]+", "…", said.strip())
    return re.sub(r"\d+", "n", re.split(r"(?<=[.:]) ", plain)[0])


def run(cases: range, seed: int, shrink: bool = True, say: bool = False, only: str = "") -> Report:
    """Try the cases of some numbers; with ``only``, by one check of :data:`CHECKS`."""
    report, start, check = Report(seed, only=only), time.time(), CHECKS[only]
    for index in cases:
        case = draw_case(seed, index)
        outcome = check(case)
        report.cases += 1
        report.passed += outcome.kind == "passed"
        if outcome.kind == "passed" and outcome.name:
            report.named.setdefault(outcome.name, []).append(index)
        if outcome.kind == "refused":
            report.refused[f"{outcome.name}: {reason(outcome.said)}"] += 1
        elif outcome.kind == "failed":
            report.failures.append(_failure(index, case, outcome, shrink, check))
            if say:
                print(json.dumps(report.failures[-1]), flush=True)
        if say and report.cases % 100 == 0:
            print(f"{report.cases} tried, {len(report.failures)} failed", file=sys.stderr, flush=True)
    report.seconds = time.time() - start
    return report


def _failure(index: int, case: Case, outcome: Outcome, shrink: bool, check: Check) -> dict[str, object]:
    small = shrunk(case, outcome.name, check) if shrink else case
    said = check(small).said
    return {"index": index, "property": outcome.name, "said": said, "case": small.words(), "drawn": case.words()}


def main(words: list[str] | None = None) -> int:
    """Run, print, and fail if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", nargs="+", metavar="NAME=VALUE", help="one case, as a failure prints it")
    parser.add_argument("--only", default="", choices=[name for name in CHECKS if name], help="one check alone")
    parser.add_argument("--out", type=Path, help="also write the report as JSON")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.case:
        outcome = CHECKS[options.only](case_of(options.case))
        print(f"{outcome.kind} {outcome.name}: {outcome.said}".rstrip(": "))
        return int(outcome.kind == "failed")
    report = run(range(options.first, options.first + options.cases), options.seed, say=True, only=options.only)
    print(report.table())
    if options.out is not None:
        options.out.write_text(json.dumps({**vars(report)}, indent=1))
    return int(bool(report.failures))
