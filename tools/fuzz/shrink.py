"""A failing case made as plain as it can be while the same property still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tools.fuzz.case import ASKED, Case, joined
from tools.fuzz.grammar import CHOICES
from tools.fuzz.properties import Outcome, tried

Check = Callable[[Case], Outcome]


def shrunk(case: Case, name: str, check: Check = tried) -> Case:
    """The plainest case found, by one feature at a time, of which the property ``name`` of a check fails."""
    settled = False
    while not settled:
        settled = True
        for plainer in simpler(case):
            outcome = check(plainer)
            if outcome.kind == "failed" and outcome.name == name:
                case, settled = plainer, False
                break
    return case


def simpler(case: Case) -> Iterator[Case]:
    """Cases that are plainer in one feature."""
    for feature, choices in CHOICES.items():
        for value in below(choices, getattr(case.architecture, feature)):
            yield from _other(case, joined(replace(case, architecture=replace(case.architecture, **{feature: value}))))
    if case.options:
        yield replace(case, options={})
    for part, choices in ASKED.items():
        for value in below(choices, getattr(case, part)):
            yield from _other(case, joined(replace(case, **{part: value})))


def below(choices: tuple[Any, ...], value: Any) -> list[Any]:
    """What is plainer than a value; of seeds, the first alone."""
    known = list(dict.fromkeys(choices))
    return known[: known.index(value)] if len(known) < 20 else known[: min(1, known.index(value))]


def _other(case: Case, plainer: Case) -> Iterator[Case]:
    """It is one, if putting its parts together has not undone the change or undone more than was gained."""
    if plainer != case and weight(plainer) < weight(case):
        yield plainer


def weight(case: Case) -> int:
    """How far a case is from the plainest."""
    total = 1 if case.options else 0
    for feature, choices in CHOICES.items():
        total += list(dict.fromkeys(choices)).index(getattr(case.architecture, feature)) > 0
        total += len(below(choices, getattr(case.architecture, feature)))
    return total + sum(len(below(choices, getattr(case, part))) for part, choices in ASKED.items())
