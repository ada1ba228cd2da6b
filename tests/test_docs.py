"""Every Python block of the documentation runs, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from pathlib import Path

import pytest

from whence.errors import WhenceWarning
from whence.methods import REGISTRY

DOCS = Path(__file__).resolve().parents[1] / "docs"
FENCE = re.compile(r"```python\n(.*?)```\n((?:\n| {4}[^\n]*\n)*)", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def same(printed: str, written: str) -> bool:
    """The same words, and numbers that agree to the digits shown; rounding noise is noise on any machine."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", written):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(written), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=2e-2, abs_tol=1e-12) for a, b in pairs)


def blocks(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text())


@pytest.fixture
def own_methods():
    """Methods that an example registers are gone after it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("path", sorted(p for p in DOCS.glob("*.md") if blocks(p)), ids=lambda p: p.name)
def test_the_examples_run_and_print_what_is_written(path):
    scope: dict = {}
    for code, below in blocks(path):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # what they warn of, the page says
            exec(compile(code, str(path), "exec"), scope)
        printed = [line.rstrip() for line in out.getvalue().strip("\n").splitlines()]
        written = [line[4:].rstrip() for line in below.strip("\n").splitlines()]
        if not printed:
            continue
        assert len(printed) == len(written), out.getvalue()
        for a, b in zip(printed, written, strict=True):
            assert same(a.strip(), b.strip()), f"prints {a!r}, written {b!r}"
