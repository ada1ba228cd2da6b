"""How far a run has come, on one line of stderr: done, rate, what remains, failures."""

from __future__ import annotations

import sys
import time

EVERY = 0.5  # seconds between two looks at a terminal


class Line:
    """A line that is written over.

    Args:
        done: samples that are done already.
        failed: rows of them that have an error.
        total: how many samples there are, if that is known.
        show: ``None``: if stderr is a terminal.

    Example:
        >>> line = Line(0, 0, 1000, show=True)
        >>> line.update(512, 3)
        512 of 1,000 samples, 51.2 a second, 10 s left, 3 failed
    """

    def __init__(self, done: int, failed: int, total: int | None, show: bool | None = None) -> None:
        self.first, self.total = done, total
        self.show = sys.stderr.isatty() if show is None else show
        self.start = self.shown = time.monotonic()
        self.text = ""
        if self.show and done:
            print(f"whence: {done:,} samples are done already.", file=sys.stderr)

    def told(self, done: int, failed: int) -> str:
        """The line."""
        spent = max(time.monotonic() - self.start, 1e-9)
        rate = (done - self.first) / spent
        of = "" if self.total is None else f" of {self.total:,}"
        left = "" if self.total is None or rate <= 0 else f", {duration((self.total - done) / rate)} left"
        return f"{done:,}{of} samples, {rate:.3g} a second{left}" + (f", {failed:,} failed" if failed else "")

    def update(self, done: int, failed: int) -> None:
        """Show how far it is now."""
        now = time.monotonic()
        if self.show and (now - self.shown > EVERY or not self.text):
            text = self.told(done, failed)
            print(f"\r{text:<{len(self.text)}}", end="", file=sys.stderr, flush=True)
            self.text, self.shown = text, now

    def close(self) -> None:
        """End the line."""
        if self.text:
            print(file=sys.stderr)


def duration(seconds: float) -> str:
    """Seconds in words: ``45 s``, ``12 min``, ``3 h 5 min``, ``2 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"
