"""docs/mutation.md: the score of each module, what survived, what cannot be killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from .mutant import Mutant
from .record import key
from .trial import BUDGET, Verdict

HEAD = """# Mutation check

What `make mutation` found: each equation broken in one place at a time (another sign, a factor or a term left out,
operands swapped, a detach forgotten, another comparison, number or dimension), in a copy of the project. A mutant is
*killed* when a test fails. The score is killed / (tried - equivalent), where *equivalent* mutants compute the same, for
the reasons below.
"""


def report(
    drawn: list[Mutant], made: int, verdicts: Mapping[str, Verdict], known: Mapping[str, str], settings: dict[str, Any]
) -> str:
    """The page.

    Args:
        drawn: the mutants that were to be tried.
        made: how many there are in all.
        verdicts: by :func:`mutation.record.key`.
        known: why some are equivalent, by name.
        settings: caps, seed and test files of the run.
    """
    groups: dict[str, list[Mutant]] = defaultdict(list)
    tried = [m for m in drawn if m.name in known or key(m) in verdicts]
    for mutant in tried:
        groups[mutant.module].append(mutant)
    rules = [m for m in tried if m.module.startswith("propagation/rules/")]
    rest = [m for m in tried if not m.module.startswith("propagation/rules/")]
    head = "| module | tried | killed | equivalent | survived | score |\n|---|---|---|---|---|---|"
    rows = [_row(f"`{module}`", found, verdicts, known) for module, found in groups.items()]
    rows += [_row(f"**{name}**", m, verdicts, known) for name, m in (("rules", rules), ("the rest", rest)) if m]
    caps = settings["caps"]
    how = (
        f"Of {made} mutants {len(drawn)} were drawn with seed {settings['seed']}: at most {caps['rules']} of each "
        f"function in the rules and {caps['rest']} elsewhere. {len(tried)} of them were tried. Each met the tests that "
        f"run its line, the quickest of each file first, up to {BUDGET:.0f} seconds of them, out of "
        f"{len(settings['files'][0])} files of tests, and for what is no rule {len(settings['files'][1])} more. "
        "A mutant once killed is not tried again while its module is unchanged."
    )
    return "\n".join([HEAD, how, "", head, *rows, "", *_survivors(drawn, verdicts, known), *_equivalent(known), ""])


def _row(name: str, found: list[Mutant], verdicts: Mapping[str, Verdict], known: Mapping[str, str]) -> str:
    same = sum(m.name in known for m in found)
    killed = sum(verdicts[key(m)].killed for m in found if m.name not in known)
    rest = len(found) - same
    score = f"{100 * killed / rest:.1f} %" if rest else "none"
    return f"| {name} | {len(found)} | {killed} | {same} | {rest - killed} | {score} |"


def _survivors(drawn: list[Mutant], verdicts: Mapping[str, Verdict], known: Mapping[str, str]) -> list[str]:
    alive = [m for m in drawn if m.name not in known and key(m) in verdicts and not verdicts[key(m)].killed]
    if not alive:
        return ["No mutant survived.", ""]
    lines = ["## Survivors", "", "| module, line | function | slip | change | |", "|---|---|---|---|---|"]
    for m in alive:
        change = f"{_code(m.before)} → {_code(m.after)}"
        how = verdicts[key(m)].how
        lines.append(f"| `{m.module}` {m.line} | `{m.function}` | {m.kind} | {change} | {how} |")
    return [*lines, ""]


def _equivalent(known: Mapping[str, str]) -> list[str]:
    if not known:
        return []
    lines = ["## Equivalent", "", "| mutant | why it computes the same |", "|---|---|"]
    return [*lines, *(f"| {_code(name)} | {why} |" for name, why in known.items())]


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in text else f"`{escaped}`"
