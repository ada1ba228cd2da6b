"""The tests that watch the equations, and which of them runs which line."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .copy import ROOT, Copy

#: what rules are held to: each by itself, and published outputs
EQUATIONS = (
    "unit/propagation/test_rules.py",
    "unit/propagation/test_gradient_rules.py",
    "unit/propagation/test_linear_rules.py",
    "goldens/test_rules.py",
    "goldens/test_lrp.py",
    "goldens/test_cvpr.py",
    "goldens/test_iccv.py",
    "goldens/test_icml.py",
    "goldens/test_attnlrp.py",
    "goldens/test_palrp.py",
    "unit/propagation/test_ledger.py",
    "unit/propagation/test_fused_attention.py",
    "unit/runs/test_batched_targets.py",
)
#: what the modules around them and the methods are held to, too: properties, unusual models
AROUND = (
    "goldens/test_attention.py",
    "goldens/test_blocks.py",
    "goldens/test_libragrad.py",
    "goldens/test_flashtrace.py",
    "properties/test_gradients.py",
    "unit/readout/test_map_walk.py",
    "unit/readout/test_cross_stream_rollup.py",
    "properties/test_invariances.py",
    "unit/tracing/test_tracer.py",
    "unit/readout/test_block_relevance.py",
    "properties/test_unusual.py",
    "properties/test_timm_like.py",
    "unit/methods/test_dave.py",
    "unit/methods/test_pa_lrp.py",
    "unit/methods/test_flash_trace.py",
    "unit/methods/test_perturbation.py",
    "unit/propagation/test_weight_abs_cache.py",
    "unit/runs/test_checkpointing.py",
    "unit/test_errors.py",
    "unit/_utils/test_type_checks.py",
    "unit/runs/test_token_streams.py",
)

#: those that need no model and little time: most mutants do not get past them
QUICK = EQUATIONS[:4]

Watchers = dict[str, dict[int, list[str]]]  #: module -> line -> tests that run it


class Suite:
    """Which tests run a line, and how long each takes.

    Args:
        watchers: by module and line.
        seconds: by test.
    """

    def __init__(self, watchers: Watchers, seconds: dict[str, float]) -> None:
        self.watchers, self.seconds = watchers, seconds

    def tests(self, module: str, lines: Sequence[int], budget: float) -> list[str]:
        """The tests that run the first of some lines that any runs, the quickest of each file first.

        Args:
            module: the file.
            lines: the line of an expression, and that of its statement: what is only continued there is not seen.
            budget: for how many seconds there are to be tests.
        """
        watching = self.watchers.get(module, {})
        found = next((tests for line in lines if (tests := watching.get(line))), [])
        ranks: dict[str, int] = defaultdict(int)
        ordered = []
        for test in sorted(found, key=lambda t: self.seconds.get(t, 0.0)):
            file = test.partition("::")[0]
            ordered.append((ranks[file], self.seconds.get(test, 0.0), test))
            ranks[file] += 1
        kept: list[str] = []
        spent = 0.0
        for _, seconds, test in sorted(ordered):
            if kept and spent + seconds > budget:
                continue
            kept.append(test)
            spent += seconds
        return kept


class _Times:
    """A plugin of pytest that notes how long each test takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begin = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begin = time.process_time()  # others may use the machine, too

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.process_time() - self.begin


def fingerprint(name: str) -> str:
    """Of all sources, what tests share, and one file of tests."""
    found = hashlib.sha256()
    for folder in ("src/whence", "tools/conformance"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(file.read_bytes())
    for file in [*sorted((ROOT / "tests" / "support").glob("*.py")), ROOT / "tests" / name]:
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def observed(copy: Copy, name: str, out: Path) -> None:
    """Run a file of tests in this process, with each line's tests noted, into a file."""
    copy.enter()
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, source_pkgs=["whence"], config_file=False)
    times = _Times()
    measured.start()
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-m", "not slow", f"tests/{name}"]
    code = pytest.main(arguments, plugins=[times, _Contexts(measured)])
    measured.stop()
    if code != 0:
        raise SystemExit(f"{name} fails without any mutant (pytest answers {int(code)}): mend it first.")
    data, package = measured.get_data(), copy.root / "src" / "whence"
    watchers = {
        str(Path(file).relative_to(package)): {
            line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    out.write_text(json.dumps({"watchers": watchers, "seconds": times.seconds}))


class _Contexts:
    """A plugin of pytest that tells coverage which test is running."""

    def __init__(self, measured: Any) -> None:
        self.measured = measured

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.measured.switch_context(nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self.measured.switch_context("")


def suite(copy: Copy, folder: Path, jobs: int, files: Sequence[str]) -> Suite:
    """Which tests run which line: read from files, or made by running the tests once, ``jobs`` files at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    outs = {name: folder / f"{name.replace('/', '-')}-{fingerprint(name)}.json" for name in files}
    waiting = [name for name, out in outs.items() if not out.exists()]
    running = 0
    while waiting or running:
        if waiting and running < jobs:
            name = waiting.pop(0)
            print(f"Running {name} once, to know which tests run which line", flush=True)
            if os.fork() == 0:
                _leave(functools.partial(observed, copy, name, outs[name]))
            running += 1
            continue
        if os.waitstatus_to_exitcode(os.wait()[1]) != 0:
            raise SystemExit("Which tests run which line could not be found out: see above.")
        running -= 1
    watchers: Watchers = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, float] = {}
    for out in outs.values():
        found = json.loads(out.read_text())
        seconds |= found["seconds"]
        for module, lines in found["watchers"].items():
            for line, tests in lines.items():
                watchers[module][int(line)] += tests
    return Suite(watchers, seconds)


def _leave(work: Callable[[], None]) -> None:
    """Do some work in a forked process and end it there."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as stop:
        print(stop, file=sys.stderr)
    finally:
        sys.stdout.flush()
        os._exit(code)
