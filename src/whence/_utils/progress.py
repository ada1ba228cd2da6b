"""How far a long piece of work has come, on stderr."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_inside = threading.local()


def track(items: Iterable[T], total: int | None, what: str, show: bool | None = None) -> Iterator[T]:
    """The same items, with a progress bar; work inside other such work has none of its own.

    Args:
        items: what is worked through.
        total: how many there are, if that is known.
        what: the work in a word or two.
        show: ``None`` shows the bar if stderr is a terminal and there is more than one item.

    Example:
        >>> for batch in track(batches, len(batches), "Explaining"):
        ...     ...
    """
    if getattr(_inside, "work", False):
        yield from items
        return
    if show is None:
        show = sys.stderr.isatty() and total != 1
    _inside.work = True
    try:
        yield from _shown(items, total, what) if show else items
    finally:
        _inside.work = False


def _shown(items: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    if importlib.util.find_spec("rich") is None:
        yield from _plain(items, total, what)
        return
    from rich.console import Console
    from rich.progress import track as bar

    yield from bar(items, total=total, description=what, console=Console(stderr=True), transient=True)


def _plain(items: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    of = "" if total is None else f" of {total}"
    for done, item in enumerate(items):
        print(f"\r{what}: {done}{of}", end="", file=sys.stderr, flush=True)
        yield item
    print(file=sys.stderr)
