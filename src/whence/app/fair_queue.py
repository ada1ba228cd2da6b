"""Who is next: so many at once, and visitors take turns, so that one who asks much does not hold up the others."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import WhenceError

POLL = 0.2  # seconds between looks at whether a waiting one has given up


class BusyError(WhenceError):
    """Too many are waiting."""


class Turns:
    """A queue for each visitor, served in rotation.

    Args:
        places: how many are served at once.
        most: how many may wait, of all visitors together.

    Example:
        >>> turns = Turns(2)
        >>> with turns.turn("visitor"):
        ...     work()
    """

    def __init__(self, places: int, most: int = 200) -> None:
        self.places, self.most = places, most
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[threading.Event]] = OrderedDict()
        self._free = deque(range(places))
        self._given: dict[threading.Event, int] = {}

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @property
    def serving(self) -> int:
        """How many are being served."""
        return self.places - len(self._free)

    @contextmanager
    def turn(self, visitor: str, check: Callable[[], None] = lambda: None) -> Iterator[int]:
        """Wait for a turn, and have it until the block ends; gives the number of the place, from 0.

        Args:
            visitor: who; each has a queue of his own.
            check: called while waiting; what it raises ends the wait.
        """
        mine = threading.Event()
        with self._lock:
            if sum(map(len, self._waiting.values())) >= self.most:
                raise BusyError(f"{self.most} explanations are waiting already: please try again in a minute.")
            self._waiting.setdefault(visitor, deque()).append(mine)
            self._call()
        try:
            while not mine.wait(POLL):
                check()
            yield self._given[mine]
        finally:
            with self._lock:
                if mine.is_set():
                    self._free.append(self._given.pop(mine))
                else:
                    self._leave(visitor, mine)
                self._call()

    def _call(self) -> None:
        while self._waiting and self._free:
            visitor, own = self._waiting.popitem(last=False)
            chosen = own.popleft()
            self._given[chosen] = self._free.popleft()
            chosen.set()
            if own:
                self._waiting[visitor] = own  # behind all others

    def _leave(self, visitor: str, mine: threading.Event) -> None:
        self._waiting[visitor].remove(mine)
        if not self._waiting[visitor]:
            del self._waiting[visitor]
