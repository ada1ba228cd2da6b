"""Progress of long work on stderr: a bar of rich, or one plain line where rich is not installed."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
#: takes how many items are done, and how many of them failed
Update = Callable[[int, int], None]

REFRESH = 0.5  # seconds between two plain lines
_active: ContextVar[bool] = ContextVar("progress_active", default=False)


def track(items: Iterable[T], total: int | None, what: str, show: bool | None = None) -> Iterator[T]:
    """Yield the items while a progress bar is shown; work inside other tracked work has no bar of its own.

    Args:
        items: what is worked through.
        total: how many there are, if that is known.
        what: the work in a word or two.
        show: ``None`` shows the bar if stderr is a terminal and there is more than one item.

    Example:
        >>> for batch in track(batches, len(batches), "Explaining"):
        ...     ...
    """
    if show is None and total == 1:
        show = False
    done = 0
    with display(what, total, show=show) as update:
        for item in items:
            update(done, 0)
            yield item
            done += 1
        update(done, 0)


@contextmanager
def display(
    what: str, total: int | None, *, done: int = 0, unit: str = "", show: bool | None = None, keep: bool = False
) -> Iterator[Update]:
    """Show progress while the block runs, and give the function that updates it.

    Args:
        what: the work in a word or two.
        total: how many items there are, if that is known.
        done: how many were done before.
        unit: what the items are called.
        show: ``None`` shows it if stderr is a terminal.
        keep: leave the last state on the screen.

    Example:
        >>> with display("Explaining", 1000, unit="samples") as update:
        ...     update(512, 3)
    """
    if _active.get():
        yield _ignore
        return
    _active.set(True)
    try:
        if not (sys.stderr.isatty() if show is None else show):
            yield _ignore
            return
        if done:
            print(f"whence: {done:,} {unit} are done already.", file=sys.stderr)
        shown = _plain_line(what, total, done, unit) if _lacks_rich() else _rich_bar(what, total, done, keep)
        with shown as update:
            yield update
    finally:
        _active.set(False)


def _ignore(done: int, failed: int) -> None:
    """Show no progress."""


def _lacks_rich() -> bool:
    return importlib.util.find_spec("rich") is None


@contextmanager
def _rich_bar(what: str, total: int | None, before: int, keep: bool) -> Iterator[Update]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=not keep) as bar:
        task = bar.add_task(what, total=total, completed=before, rate="", failed="")

        def update(done: int, failed: int) -> None:
            rate = f"{_rate(done - before, start):.3g} a second"
            bar.update(task, completed=done, rate=rate, failed=f"{failed:,} failed" if failed else "")

        yield update


@contextmanager
def _plain_line(what: str, total: int | None, before: int, unit: str) -> Iterator[Update]:
    line = _PlainLine(what, total, before, unit)
    try:
        yield line.update
    finally:
        line.close()


class _PlainLine:
    """A line of text that is overwritten at each update."""

    def __init__(self, what: str, total: int | None, before: int, unit: str) -> None:
        self.what = what
        self.total = total
        self.before = before
        self.unit = unit
        self.start = time.monotonic()
        self.printed = -REFRESH  # when, in seconds from the start
        self.text = ""

    def update(self, done: int, failed: int) -> None:
        elapsed = time.monotonic() - self.start
        if elapsed - self.printed >= REFRESH:
            text = self._status(done, failed)
            print(f"\r{text:<{len(self.text)}}", end="", file=sys.stderr, flush=True)
            self.text = text
            self.printed = elapsed

    def close(self) -> None:
        if self.text:
            print(file=sys.stderr)

    def _status(self, done: int, failed: int) -> str:
        rate = _rate(done - self.before, self.start)
        count = f"{done:,}" if self.total is None else f"{done:,} of {self.total:,}"
        parts = [f"{count} {self.unit}".rstrip(), f"{rate:.3g} a second"]
        if self.total is not None and rate > 0:
            parts.append(f"{duration((self.total - done) / rate)} left")
        if failed:
            parts.append(f"{failed:,} failed")
        return f"{self.what}: {', '.join(parts)}"


def _rate(done: int, start: float) -> float:
    """Return the items done per second since ``start``."""
    return done / max(time.monotonic() - start, 1e-9)


def duration(seconds: float) -> str:
    """Return seconds in words: ``45 s``, ``12 min``, ``3 h 5 min``, ``2 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"
