"""The interface of engines, which distribute the chunks of a dataset over workers, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ..errors import InputError
from .dataset_parts import ChunkedDataset
from .worker import ChunkResult
from .worker_config import WorkerConfig


class Engine(Protocol):
    """An engine: it runs workers on the chunks of a dataset."""

    @property
    def in_process(self) -> bool:
        """Whether all work is done by this process, which can then share its model."""
        ...

    def results(
        self, config: WorkerConfig, chunks: ChunkedDataset, stopping: Callable[[], bool]
    ) -> Iterator[ChunkResult]:
        """Yield the result of each chunk as it is finished.

        Args:
            config: what each worker needs.
            chunks: the dataset.
            stopping: returns whether to start no further chunk, and to end when the running ones are finished.
        """
        ...


def create_engine(
    name: str, workers: int | None = None, address: str | None = None, cpus: float = 1, gpus: float = 0
) -> Engine:
    """Return an engine by its name: ``local`` or ``ray``.

    Args:
        name: of the engine.
        workers: the number of workers.
        address: of a running Ray cluster.
        cpus, gpus: per Ray worker.

    Example:
        >>> create_engine("local", workers=4)
    """
    if name == "ray":
        from .ray_engine import RayEngine

        return RayEngine(workers, address, cpus, gpus)
    if address is not None:
        raise InputError("An address is that of a Ray cluster: choose engine='ray' (--engine ray).")
    if name == "local":
        from .process_pool import ProcessPoolEngine

        return ProcessPoolEngine(workers)
    raise InputError(f"There is no engine '{name}': choose local or ray.")
