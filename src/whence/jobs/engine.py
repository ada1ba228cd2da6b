"""Who does the work: one small interface, and its kinds by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..errors import InputError
from .dataset_parts import Chunks
from .worker import Done
from .worker_config import Task


class Engine(Protocol):
    """Explains the parts of a dataset."""

    def results(self, task: Task, chunks: Chunks, stopping: Callable[[], bool]) -> Iterator[Done]:
        """What became of each part, in the order in which they are done.

        Args:
            task: what is done with each sample.
            chunks: the parts.
            stopping: whether to begin no other part, and to end when those that were begun are done.
        """
        ...


def create(name: str, **options: Any) -> Engine:
    """An engine by its name: ``local`` or ``ray``.

    Example:
        >>> create("local", workers=4)
    """
    if name == "local":
        from .process_pool import Local

        return Local(**options)
    if name == "ray":
        from .ray_engine import OnRay

        return OnRay(**options)
    raise InputError(f"There is no engine '{name}': choose local or ray.")
