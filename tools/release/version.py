"""The version, which stands in one place and must agree with the changelog and the tag.

It is written in ``src/whence/__init__.py``, so that a clone without tags, or a copy without git, builds the same.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def written(root: Path) -> str:
    """The version in the source."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "src" / "whence" / "__init__.py").read_text(), re.M)
    if found is None:
        raise SystemExit('src/whence/__init__.py has no line __version__ = "...".')
    return found[1]


def tags(root: Path) -> list[str]:
    """The tags of the commit at hand that are versions; none where there is no git."""
    asked = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return [tag for tag in asked.stdout.split() if re.fullmatch(r"v\d+\.\d+\.\d+\S*", tag)]


def changes(root: Path) -> list[tuple[str, str]]:
    """The versions of the changelog, newest first, with their dates."""
    return re.findall(r"^## \[(.+?)\] \u2013 (.+)$", (root / "CHANGELOG.md").read_text(), re.M)


def disagreements(version: str, at: list[str], listed: list[tuple[str, str]]) -> list[str]:
    """What does not agree, as sentences.

    Args:
        version: what is written in the source.
        at: tags of the commit.
        listed: versions and dates of the changelog.

    Example:
        >>> disagreements("0.1.0", ["v0.2.0"], [("0.1.0", "2026-01-31")])
        ["The commit is tagged v0.2.0 and __version__ is 0.1.0."]
    """
    found = [f"The commit is tagged {tag} and __version__ is {version}." for tag in at if tag != f"v{version}"]
    if not listed or listed[0][0] != version:
        found.append(
            f"The changelog begins with {listed[0][0] if listed else 'nothing'}, and __version__ is {version}."
        )
    dates = [date for _, date in listed]
    if at and listed and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", dates[0]):
        found.append(f"The commit is tagged, and the changelog has '{dates[0]}' in place of a date.")
    if any(not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) for date in dates[1:]):
        found.append("The changelog has an earlier version without a date.")
    return found
