"""Every Python block of the documentation runs, and prints what stands below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docgen.snippets import differences, printed, python
from whence.methods.registry import REGISTRY

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if python(path))


@pytest.fixture
def own_methods():
    """Methods that an example registers are gone after it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_the_examples_run_and_print_what_is_written(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    for snippet in python(path):
        out = printed(snippet.code, scope, str(path))
        assert not out.strip() or not (wrong := differences(out, snippet.shown)), "\n".join(wrong)
