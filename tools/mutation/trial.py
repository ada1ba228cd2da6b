"""One mutant on trial: do the tests that run its line still pass?"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .copy import Copy
from .mutant import Mutant
from .suite import QUICK, Suite

BUDGET = 45.0  # seconds of tests a mutant, as they take without it
BROKEN = 70  # the exit code of a child that never came to its tests
PATIENCE = 60.0  # seconds more than three times that, before a mutant counts as hanging


@dataclass(frozen=True)
class Verdict:
    """How a trial ended.

    Attributes:
        killed: whether a test failed.
        how: ``"test"``, ``"time"`` (it hangs), ``"import"``, ``"nothing failed"`` or ``"no test runs it"``.
        tests: how many tests were to run.
        seconds: how long it took.
    """

    killed: bool
    how: str
    tests: int
    seconds: float


class _Chosen:
    """A plugin of pytest that keeps some tests, in a given order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: i for i, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid])


def trial(copy: Copy, suite: Suite, mutant: Mutant) -> Verdict:
    """Run the tests of a mutant's line, the quick ones first, until the first that fails.

    They run in a process that is a fork of this one, which has torch and transformers in memory but not Whence.
    """
    tests = suite.tests(mutant.module, (mutant.line, mutant.runs), BUDGET)
    if not tests:
        return Verdict(False, "no test runs it", 0, 0.0)
    begin = time.monotonic()
    quick = [test for test in tests if Path(test.partition("::")[0]).name in QUICK]
    how = "nothing failed"
    with copy.changed(mutant.module, mutant.source):
        for part in (quick, [test for test in tests if test not in quick]):
            if part and how == "nothing failed":
                how = _tried(copy, part, sum(suite.seconds.get(test, 0.0) for test in part))
    return Verdict(how != "nothing failed", how, len(tests), time.monotonic() - begin)


def _tried(copy: Copy, tests: list[str], expected: float) -> str:
    """How some tests ended."""
    child = os.fork()
    if child == 0:
        _run(copy, tests)
    code = _wait(child, 3 * expected + PATIENCE)
    if code == BROKEN:
        raise RuntimeError(f"The tests could not be started: {', '.join(tests)}.")
    if code is None:
        return "time"
    return "nothing failed" if code == 0 else "test" if code == 1 else "import"


def _run(copy: Copy, tests: list[str]) -> None:
    """In the child: pytest on the files of the chosen tests, silently."""
    code = BROKEN
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.setpgid(0, 0)
        copy.enter()
        import pytest

        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        flags = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:logging", "--tb=no"]
        code = int(pytest.main([*flags, *files], plugins=[_Chosen(tests)]))
    finally:
        os._exit(code)


def _wait(child: int, limit: float) -> int | None:
    """The child's exit code, or ``None`` if it had to be ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
