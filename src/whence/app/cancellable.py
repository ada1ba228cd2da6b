"""A piece of work that says how far it is, and can be cancelled.

Whatever Whence does, it runs the model; before each of its forwards the model asks the work of its thread whether to go
on. So nothing below has to know that it may be cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from torch import nn

from ..errors import WhenceError

T = TypeVar("T")
_here = threading.local()


class CancelledError(WhenceError):
    """The visitor asked for it no longer."""


class Work:
    """Of one visitor, one at a time.

    Attributes:
        step: what is done now, in words.
        passes: forwards of the model in this step.
    """

    def __init__(self) -> None:
        self.step = ""
        self.passes = 0
        self._why = ""
        self._cancelled = threading.Event()

    def cancel(self, why: str = "Cancelled.") -> None:
        """End it, at the model's next forward."""
        self._why = why
        self._cancelled.set()

    def check(self) -> None:
        """Raise if it was cancelled."""
        if self._cancelled.is_set():
            raise CancelledError(self._why)

    def begin(self, step: str) -> None:
        """The next step."""
        self.check()
        self.step, self.passes = step, 0

    @contextmanager
    def here(self) -> Iterator[None]:
        """Forwards of this thread are of this work."""
        _here.work = self
        try:
            yield
        finally:
            _here.work = None


def ask_first(model: nn.Module) -> None:
    """Let a model ask before each forward whether to go on."""

    def hook(*_: Any) -> None:
        work: Work | None = getattr(_here, "work", None)
        if work is not None:
            work.check()
            work.passes += 1

    model.register_forward_pre_hook(hook)


class Running(Generic[T]):
    """Work in a thread of its own, looked at from time to time.

    Example:
        >>> running = Running(pool, work, lambda: slow())
        >>> for words in running.watched(0.2):
        ...     print(words)
        >>> running.result()
    """

    def __init__(self, pool: ThreadPoolExecutor, work: Work, task: Callable[[], T]) -> None:
        self.work = work

        def inside() -> T:
            with work.here():
                return task()

        self._future: Future[T] = pool.submit(inside)

    def watched(self, seconds: float) -> Iterator[str]:
        """What it is doing, until it is done."""
        while True:
            try:
                self._future.exception(seconds)
                return
            except NotYet:
                passes = f", {self.work.passes} passes of the model" if self.work.passes > 1 else ""
                yield f"{self.work.step}{passes}"

    def result(self) -> T:
        """What it came to; raises what it raised."""
        return self._future.result()
