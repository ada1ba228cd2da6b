"""The rows of the comparison, kept in a file and printed as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FILE = Path(__file__).parents[2] / "measured" / "peers.json"
LIMIT = 1e-4  # of the largest score: what float32 may make of the same method
HEAD = [
    "peer", "model", "its method", "Whence", "largest difference", "rank correlation",
    "its time", "our time", "our time, warm", "its MiB", "our MiB", "our MiB, warm", "plain MiB", "",
]  # fmt: skip
#: how much more counts as noise: of the peer's median time; of its memory, and MiB besides
TIME_NOISE, MEMORY_NOISE = 1.05, (1.1, 5)


def load(file: Path = FILE) -> list[Row]:
    """The rows measured so far."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def save(rows: Sequence[Row], peers: Iterable[str], file: Path = FILE) -> None:
    """Put rows in place of what the file has of some peers; what it has of others stays."""
    anew = set(peers)
    kept = [row for row in load(file) if row["peer"] not in anew]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([*kept, *rows], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def disagreeing(rows: Iterable[Row]) -> list[Row]:
    """The rows of the same method whose numbers are not the same."""
    return [row for row in rows if row["same"] and "error" not in row and not row["difference"] <= LIMIT]


def markdown(rows: Sequence[Row]) -> str:
    """The table, and what it was measured with. Rows of one peer stay together."""
    together = sorted(rows, key=lambda row: row["peer"])
    lines = [line(HEAD), line(["---"] * len(HEAD)), *(line(cells(row)) for row in together)]
    return "\n".join([*lines, "", *settings(together)]) + "\n"


def cells(row: Row) -> list[str]:
    """One row; of a peer that could not run, its error and nothing else."""
    names = [row["peer"], row["case"].replace("_", " "), row["method"], f"`{row['whence']}`"]
    if "error" in row:
        note = f"{row['note']}: " if row["note"] else ""
        return [*names, *["-"] * 9, f"{note}`{row['error']}`"]
    bold = {("time", compared(row["time"])): slower(row), ("memory", compared(row["memory"])): larger(row)}

    def shown(what: str, who: str, form: str) -> str:
        value = row[what].get(who)
        text = "-" if value is None else format(value, form)
        return f"**{text}**" if bold.get((what, who)) else text

    return [
        *names,
        difference(row["difference"]) if row["same"] else "another method",
        f"{row['rank_correlation']:.3f}",
        *(shown("time", who, ".3g") for who in ("theirs", "ours", "warm")),
        *(shown("memory", who, ".0f") for who in ("theirs", "ours", "warm", "plain")),
        row["note"],
    ]


def compared(values: dict[str, float]) -> str:
    """Which of ours is compared with the peer: the replay where there is one."""
    return "warm" if "warm" in values else "ours"


def slower(row: Row) -> bool:
    """Whether ours takes longer than the peer, beyond noise."""
    time = row["time"]
    return bool(time[compared(time)] > TIME_NOISE * time["theirs"])


def larger(row: Row) -> bool:
    """Whether ours takes more memory than the peer, beyond noise."""
    memory = row["memory"]
    ours, theirs = memory[compared(memory)], memory["theirs"]
    share, least = MEMORY_NOISE
    return bool(ours > share * theirs and ours > theirs + least)


def behind(rows: Iterable[Row]) -> list[Row]:
    """The rows in which a peer is ahead of ours, replayed where it can be, in time or in memory."""
    return [row for row in rows if "error" not in row and (slower(row) or larger(row))]


def difference(value: float) -> str:
    """In bold where it is too large."""
    shown = f"{value:.0e}" if value else "0"
    return shown if value <= LIMIT else f"**{shown}**"


def settings(rows: Sequence[Row]) -> list[str]:
    """For each environment, a line with its versions and the peers measured in it."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        here = f"torch {row['torch']}, transformers {row['transformers']}, threads: {row['threads']}"
        found.setdefault(here, {})[f"{row['peer']} {row['version']}"] = None
    return [f"- {', '.join(peers)}: {here}" for here, peers in found.items()]


def line(values: Iterable[str]) -> str:
    """A line of a table; a bar inside a cell would begin another."""
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"
