"""``python -m tools.spellings``: compare spellings of one model, print what is not equal, count outcomes.

python -m tools.spellings --cases 5000 --seed 0             # every named spelling, then random compositions
python -m tools.spellings --cases 0                         # the named spellings alone
python -m tools.spellings --only norm/layer/divide-pow      # one spelling; or a slot (norm), or a kind (norm/layer)
python -m tools.spellings --only reordering --methods rollout,attn-lrp
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict

import torch

import whence
from tools.spellings.case import SLOTS, Case, case_of, drawn, named
from tools.spellings.compare import CORE, SAMPLED, Outcome, compared, every_method

GROUPS = {"core": CORE, "sampled": SAMPLED}
KINDS = ("equal", "noted", "refused", "SILENT", "CRASH", "inapplicable")
#: how many methods a composition tries, if none are named
FEW = 5


def methods_of(words: str | None) -> list[str]:
    """Return methods from names and groups, joined by commas; all of them where nothing is given."""
    if not words or words == "all":
        return every_method()
    methods = [m for word in words.split(",") for m in GROUPS.get(word, (word,))]
    unknown = set(methods) - set(whence.list_methods())
    if unknown:
        raise SystemExit(f"No method or group is named {', '.join(sorted(unknown))}; groups: {', '.join(GROUPS)}, all.")
    return methods


def turn(methods: list[str], seed: int, index: int) -> list[str]:
    """Return the methods that a composition tries: a few of the cheap ones, and one that samples now and then."""
    rng = random.Random(f"{seed}:{index}:methods")
    cheap = [m for m in methods if m not in SAMPLED]
    sampled = [m for m in methods if m in SAMPLED]
    few = rng.sample(cheap, min(FEW, len(cheap)))
    return few + ([rng.choice(sampled)] if sampled and index % 4 == 0 else [])


def selected(only: str | None) -> list[Case]:
    """Return the named spellings, or those of a slot, a kind, a name, or a composition's name."""
    if only is None:
        return named()
    found = [case for case in named() if case.name == only or case.name.startswith(only + "/")]
    return found or [case_of(only)]


def shrunk(case: Case, method: str, kind: str) -> Case:
    """Return a small case with the same outcome: one thing after the other is left out where that keeps it."""
    for change in case.changes():
        smaller = change(case)
        if smaller.entries and smaller != case and compared(smaller, [method])[method].kind == kind:
            case = smaller
    return case


class Report:
    """Outcomes by slot; every case that is not all equal is printed once."""

    def __init__(self, sentences: bool = False) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.cases: Counter[str] = Counter()
        self.found: Counter[tuple[str, str, str]] = Counter()
        self.sentences = sentences

    def add(self, case: Case, outcomes: dict[str, Outcome], composed: bool = False) -> None:
        """Count a case and print what is not equal; of a composition, the smallest case that fails alike."""
        slot = "composition" if composed else case.entries[0][0] if case.entries else "usual"
        self.cases[slot] += 1
        self.counts[slot].update(o.kind for o in outcomes.values())
        if not composed:
            self._print(case.name, outcomes)
            return
        for method, o in outcomes.items():
            if o.failed and not self._known(case, method, o.kind):
                small = shrunk(case, method, o.kind)
                self._print(small.name, compared(small, [method]))

    def _known(self, case: Case, method: str, kind: str) -> bool:
        """Return whether a spelling in a composition has the same outcome by itself, and was printed."""
        names = ["/".join(entry) for entry in case.entries]
        return any(self.found[f"{name}{reads}", method, kind] for name in names for reads in ("", "+reads/image"))

    def _print(self, name: str, outcomes: dict[str, Outcome]) -> None:
        """Print one line: methods by outcome, and the command that repeats those that failed."""
        new = {m: o for m, o in outcomes.items() if o.kind not in ("equal", "inapplicable")}
        new = {m: o for m, o in new.items() if not self.found[name, m, o.kind]}
        self.found.update((name, m, o.kind) for m, o in outcomes.items())
        if not new:
            return
        failed = [m for m, o in new.items() if o.failed]
        again = f"  [python -m tools.spellings --only {name} --methods {','.join(failed)}]" if failed else ""
        print(f"{name}: {'; '.join(self._words(new))}{again}", flush=True)

    def _words(self, outcomes: dict[str, Outcome]) -> list[str]:
        words = []
        for kind in KINDS:
            mine = {m: o.said if o.failed or self.sentences else "" for m, o in outcomes.items() if o.kind == kind}
            alike: dict[str, list[str]] = defaultdict(list)
            for m, said in mine.items():
                alike[said].append(m)
            words += [f"{kind} {', '.join(ms)}{f' ({said})' if said else ''}" for said, ms in alike.items()]
        return words

    @property
    def total(self) -> Counter[str]:
        """How often each outcome was met."""
        return sum(self.counts.values(), Counter())

    def table(self) -> str:
        """Return the counts of each slot and of all."""
        lines = [f"{'':>12}  cases " + " ".join(f"{k:>8}" for k in KINDS[:-1])]
        for slot, n in [*self.cases.items(), ("all", self.cases.total())]:
            counts = self.total if slot == "all" else self.counts[slot]
            lines.append(f"{slot:>12} {n:>6} " + " ".join(f"{counts[k]:>8}" for k in KINDS[:-1]))
        compared_ = sum(self.total[k] for k in KINDS[:-1])
        lines.append(f"{self.total['equal'] / max(compared_, 1):.1%} of {compared_} comparisons are equal")
        return "\n".join(lines)

    @property
    def failed(self) -> bool:
        """Whether anything differed in silence or crashed."""
        return bool(self.total["SILENT"] or self.total["CRASH"])


def spelling_counts() -> dict[str, int]:
    """Return how many spellings each slot has beside the usual ones; those composed of steps are not counted."""
    counts = {slot: sum(len(table) - 1 for table in kinds.values()) for slot, kinds in SLOTS.items()}
    return counts | {"reordering": len(next(iter(SLOTS["reordering"].values()))) - 1}


def run(options: argparse.Namespace) -> Report:
    """Compare the cases that the options name."""
    report, methods, start = Report(sentences=options.only is not None), methods_of(options.methods), time.time()
    chosen = selected(options.only)
    for case in chosen:
        report.add(case, compared(case, methods))
    for index in range(len(chosen), 0 if options.only is not None else options.cases):
        case = drawn(options.seed, index)
        mine = methods if options.methods else turn(methods, options.seed, index)
        report.add(case, compared(case, mine), composed=True)
        if index % 100 == 0:
            print(f"{index} cases, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    return report


def main(words: list[str] | None = None) -> int:
    """Run, print, and return 1 if anything differed in silence or crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="named spellings first, then compositions up to this")
    parser.add_argument("--seed", type=int, default=0, help="of the compositions")
    parser.add_argument("--only", metavar="NAME", help="a slot, slot/kind, slot/kind/spelling, or several joined by +")
    parser.add_argument("--methods", help="names or groups (core, sampled, all), joined by commas")
    parser.add_argument("--list", action="store_true", help="print the names of all spellings, and how many there are")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    if options.list:
        print("\n".join(case.name for case in named()))
        print(", ".join(f"{slot} {n}" for slot, n in spelling_counts().items()))
        return 0
    report = run(options)
    print(report.table())
    return int(report.failed)
