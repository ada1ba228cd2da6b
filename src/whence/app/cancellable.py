"""Tasks that report their progress and can be cancelled.

Everything that takes long runs the model. A hook on the model checks before each forward pass whether the task of the
current thread was cancelled, so no other part of Whence needs to know about cancellation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from torch import nn

from ..capture.model_state import Observer
from ..errors import WhenceError

T = TypeVar("T")


class CancelledError(WhenceError):
    """The task was cancelled."""


class CancellableTask:
    """The progress of a task, and the means to cancel it.

    Attributes:
        step: the current step, in words.
        passes: forward passes of the model in this step.
    """

    def __init__(self) -> None:
        self.step = ""
        self.passes = 0
        self._reason = ""
        self._cancelled = threading.Event()

    def cancel(self, reason: str = "Cancelled.") -> None:
        """End the task at the model's next forward pass."""
        self._reason = reason
        self._cancelled.set()

    def check(self) -> None:
        """Raise :class:`CancelledError` if the task was cancelled."""
        if self._cancelled.is_set():
            raise CancelledError(self._reason)

    def begin(self, step: str) -> None:
        """Begin the next step."""
        self.check()
        self.step = step
        self.passes = 0

    def count_pass(self) -> None:
        """Count a forward pass of the model, unless the task was cancelled."""
        self.check()
        self.passes += 1

    @contextmanager
    def current(self) -> Iterator[None]:
        """Attribute the forward passes of this thread to this task."""
        token = _current_task.set(self)
        try:
            yield
        finally:
            _current_task.reset(token)


_current_task: ContextVar[CancellableTask | None] = ContextVar("current_task", default=None)  # of this thread


def make_cancellable(model: nn.Module) -> None:
    """Let the current task be cancelled before each forward pass of a model; replays of captures are too short."""

    def hook(*_: Any) -> None:
        task = _current_task.get()
        if task is not None:
            task.count_pass()

    model.register_forward_pre_hook(Observer(hook))


class RunningTask(Generic[T]):
    """A task that runs in a thread of a pool.

    Args:
        pool: the threads.
        task: its progress.
        function: what it computes.

    Example:
        >>> running = RunningTask(pool, task, lambda: slow())
        >>> for message in running.progress(0.2):
        ...     print(message)
        >>> running.result()
    """

    def __init__(self, pool: ThreadPoolExecutor, task: CancellableTask, function: Callable[[], T]) -> None:
        self.task = task

        def run() -> T:
            with task.current():
                return function()

        self._future: Future[T] = pool.submit(run)

    def progress(self, seconds: float) -> Iterator[str]:
        """Yield what the task is doing, every so many seconds, until it is done."""
        while True:
            try:
                self._future.exception(seconds)
                return
            except FutureTimeoutError:
                passes = f", {self.task.passes} passes of the model" if self.task.passes > 1 else ""
                yield f"{self.task.step}{passes}"

    def result(self) -> T:
        """Wait for the result; raise what the task raised."""
        return self._future.result()
