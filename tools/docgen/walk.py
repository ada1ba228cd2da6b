"""A stranger's walk: every command and snippet of README and quickstart, in order, in a fresh directory.

``make walk``, or ``python -m tools.docgen.walk``. What is printed is compared with what the pages show. What the pages
say is the reader's own is there: ``my-classifier`` and ``my-vit`` are the models that come with Whence,
``two-digits.png`` is one of their pictures.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.docgen.snippets import Snippet, differences, everything, printed
from whence.models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "quickstart.md")
#: commands that are not run, and why
LEFT_OUT = {
    "make demo": "needs a clone: tests/unit/cli/test_demo.py makes the same report",
    "make test": "needs a clone, and minutes: CI runs it",
    "pip": "would install what is being tried: `make dist` installs it into an empty environment",
    "whence serve": "runs until it is stopped: tests/browser/test_app_page.py opens it in a browser",
}


def walk(pages: tuple[Path, ...] = PAGES) -> list[str]:
    """Go through the pages, telling of each step.

    Returns:
        What was not as the pages say, a sentence each.
    """
    wrong = []
    with fresh_directory() as folder:
        for page in pages:
            scope: dict[str, Any] = {}
            for snippet in everything(page):
                told = step(snippet, scope, folder)
                wrong += [f"{page.name}: {first(snippet)}: {sentence}" for sentence in told]
    return wrong


@contextlib.contextmanager
def fresh_directory() -> Iterator[Path]:
    """An empty directory, but for what a reader is said to have; the walk is inside of it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(MODELS / "sentiment", folder / "my-classifier")
        shutil.copytree(MODELS / "digits", folder / "my-vit")
        shutil.copy(MODELS / "digits" / "examples" / "3-6.png", folder / "two-digits.png")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def step(snippet: Snippet, scope: dict[str, Any], folder: Path) -> list[str]:
    """Run one snippet; what is not as shown."""
    reason = next((why for start, why in LEFT_OUT.items() if f"{snippet.code} ".startswith(f"{start} ")), None)
    if not snippet.python and reason:
        print(f"left out  {first(snippet)}  ({reason})")
        return []
    start = time.perf_counter()
    try:
        out = printed(snippet.code, scope, "a page") if snippet.python else command(snippet.code, folder)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    print(f"{time.perf_counter() - start:6.1f} s  {first(snippet)}")
    return differences(out, snippet.shown) if snippet.shown or snippet.python else []


def command(line: str, folder: Path) -> str:
    """What a command prints; one that fails, or does not write what ``--out`` names, is an error."""
    words = shlex.split(line, comments=True)
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    program = [sys.executable, "-W", "ignore", "-m"] if words[0] == "whence" else []
    done = subprocess.run([*program, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"it ends with {done.returncode}: {done.stderr.strip()}")
    if "--out" in words and not (folder / words[words.index("--out") + 1]).exists():
        raise RuntimeError("it wrote nothing")
    return done.stdout


def first(snippet: Snippet) -> str:
    """A line that says which snippet it is."""
    return snippet.code.strip().splitlines()[0][:90]


if __name__ == "__main__":
    found = walk()
    print("\n".join(found) or "All is as the pages say.")
    sys.exit(1 if found else 0)
