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
    "its time", "our time", "its MiB", "our MiB", "plain MiB", "",
]  # fmt: skip


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
        return [*names, *["-"] * 7, f"{note}`{row['error']}`"]
    time, memory = row["time"], row["memory"]
    return [
        *names,
        difference(row["difference"]) if row["same"] else "another method",
        f"{row['rank_correlation']:.3f}",
        *(f"{time[who]:.3g}" for who in ("theirs", "ours")),
        *(f"{memory[who]:.0f}" for who in ("theirs", "ours", "plain")),
        row["note"],
    ]


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
