"""Examples of the documentation that need another library run, and print what stands below them, where it is installed.

On these pages, a block of Python that always runs is fenced by ``python``, one that needs a library beyond the extras
and development packages of Whence by ``py``. Every such block goes on from the blocks of the page that always run.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import matplotlib
import pytest

from tools.docgen.snippets import Snippet, differences, printed, python

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to"
PAGES = [HOW_TO / "results.md", HOW_TO / "coming-from.md"]
OPTIONAL = re.compile(r"```py\n(.*?)```\n((?:\n| {4}[^\n]*\n)*)", re.DOTALL)


def optional(path: Path) -> list[Snippet]:
    """Every block that needs another library, with the indented text below it."""
    found = OPTIONAL.finditer(path.read_text(encoding="utf-8"))
    return [Snippet(m.start(), m[1], re.sub("^    ", "", m[2], flags=re.MULTILINE), True) for m in found]


def modules(code: str) -> list[str]:
    """The modules that a block imports."""
    out = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            out += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            out.append(node.module)
    return out


BLOCKS = [(path, k) for path in PAGES for k in range(len(optional(path)))]


@pytest.mark.parametrize(("path", "k"), BLOCKS, ids=lambda value: getattr(value, "stem", str(value)))
def test_an_example_with_another_library_runs_and_prints_what_is_written(path, k, tmp_path, monkeypatch):
    snippet = optional(path)[k]
    for module in modules(snippet.code):
        pytest.importorskip(module, reason="shown in the documentation, not a dependency", exc_type=ImportError)
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    scope: dict = {}
    for before in python(path):
        printed(before.code, scope, str(path))
    out = printed(snippet.code, scope, str(path))
    assert not out.strip() or not (wrong := differences(out, snippet.shown)), "\n".join(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_pages_have_such_examples(path):
    assert len(optional(path)) >= 5
