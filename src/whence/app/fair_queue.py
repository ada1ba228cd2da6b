"""A queue that serves visitors in rotation, so that one with many requests does not hold up the others."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import WhenceError

POLL_SECONDS = 0.2  # between checks whether a waiting request was cancelled


class BusyError(WhenceError):
    """Too many requests are waiting."""


class FairQueue:
    """One queue per visitor, served round-robin.

    Args:
        slots: how many requests run at once.
        max_waiting: how many requests may wait, of all visitors together.

    Example:
        >>> queue = FairQueue(2)
        >>> with queue.slot("visitor"):
        ...     work()
    """

    def __init__(self, slots: int, max_waiting: int = 200) -> None:
        self.slots = slots
        self.max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()
        self._free = deque(range(slots))
        self._assigned: dict[threading.Event, int] = {}

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        with self._lock:
            return self._count_waiting()

    @property
    def serving(self) -> int:
        """The number of requests that run."""
        return self.slots - len(self._free)

    @contextmanager
    def slot(self, visitor: str, check: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Wait for a free slot and hold it until the block ends; yield its number, from 0.

        Args:
            visitor: whose queue to wait in.
            check: called while waiting; what it raises ends the wait.
        """
        ready = threading.Event()
        with self._lock:
            if self._count_waiting() >= self.max_waiting:
                raise BusyError(f"{self.max_waiting} explanations are waiting already: please try again in a minute.")
            self._waiting.setdefault(visitor, deque()).append(ready)
            self._dispatch()
        try:
            while not ready.wait(POLL_SECONDS):
                check()
            yield self._assigned[ready]
        finally:
            with self._lock:
                if ready.is_set():
                    self._free.append(self._assigned.pop(ready))
                else:
                    self._remove(visitor, ready)
                self._dispatch()

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _dispatch(self) -> None:
        """Assign the free slots to the visitors that are next."""
        while self._waiting and self._free:
            visitor, requests = self._waiting.popitem(last=False)
            ready = requests.popleft()
            self._assigned[ready] = self._free.popleft()
            ready.set()
            if requests:
                self._waiting[visitor] = requests  # behind all other visitors

    def _remove(self, visitor: str, ready: threading.Event) -> None:
        self._waiting[visitor].remove(ready)
        if not self._waiting[visitor]:
            del self._waiting[visitor]
