"""The Ray engine: the same workers as actors, on this machine or on a cluster.

The chunks are a Ray dataset that is streamed, explained by a pool of actors and returned to the driver, which writes
the rows. Ray restarts actors that died, and repeats the work of a lost node.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._utils.optional_imports import need
from ..errors import InputError
from ..explainer.explainer import Explainer
from ..inputs.pretrained import quiet
from .dataset_parts import ChunkedDataset
from .malloc_env import memory_kept
from .worker import ChunkResult, Worker
from .worker_config import WorkerConfig

#: Ray's messages stay in its log files, so that only our progress is shown. Ray runs its workers at niceness 15 by
#: default, which would slow a job that the user waits for.
ENVIRONMENT = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}


class RayEngine:
    """An engine of Ray actors.

    Args:
        workers: how many; by default as many as the cluster's CPUs (or GPUs) allow.
        address: of a running cluster (``auto`` finds one on this machine); by default one is started here, and stopped
            at the end.
        cpus: CPUs for each worker; also its threads.
        gpus: GPUs for each worker.
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, cpus: float = 1, gpus: float = 0
    ) -> None:
        self.workers = workers
        self.address = address
        self.cpus = cpus
        self.gpus = gpus

    @property
    def in_process(self) -> bool:
        """Actors are processes of Ray's."""
        return False

    def results(
        self, config: WorkerConfig, chunks: ChunkedDataset, stopping: Callable[[], bool]
    ) -> Iterator[ChunkResult]:
        """See :class:`whence.jobs.engine.Engine`."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        ray = need("ray", "the engine 'ray'", "ray")
        data = need("ray.data", "the engine 'ray'", "ray")
        if isinstance(config.model, Explainer):
            raise InputError("Ray's workers load the model themselves: give its path or id, not an explainer.")
        started = not ray.is_initialized()
        if started:
            with memory_kept():
                ray.init(address=self.address, log_to_driver=False, include_dashboard=False, logging_level="error")
        try:
            context = data.DataContext.get_current()
            context.enable_progress_bars = False
            context.print_on_execution_start = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            context.target_max_block_size = 1  # one chunk per block, so that chunks go to different workers
            resources = ray.cluster_resources()
            share = self.gpus or self.cpus
            count = self.workers or max(1, int(resources.get("GPU" if self.gpus else "CPU", 1) // max(share, 0.01)))
            read = data.read_datasource(_datasource(data, chunks), override_num_blocks=1, num_cpus=0)
            explained = read.map_batches(
                _Actor, fn_constructor_args=(config, max(1, int(self.cpus))), batch_size=1,
                compute=data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=1),  # chunks are long
                num_cpus=None if self.gpus else self.cpus, num_gpus=self.gpus or None,
            )  # fmt: skip
            for row in explained.iter_rows():
                yield pickle.loads(row["result"])
                if stopping():
                    return
        finally:
            if started:
                ray.shutdown()


class _Actor:
    """A worker in a process of Ray's, with the model loaded once."""

    def __init__(self, config: WorkerConfig, threads: int) -> None:
        import torch

        quiet()
        torch.set_num_threads(threads)
        self.worker = Worker(config)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        results = [pickle.dumps(self.worker(pickle.loads(chunk))) for chunk in batch["chunk"]]
        return {"result": np.array([*results, None], dtype=object)[:-1]}  # an array of objects even for one result


def _datasource(data: Any, chunks: ChunkedDataset) -> Any:
    """Return the chunks as a Ray datasource: one reader, with back-pressure from the workers.

    Chunks and results travel between processes of one job by pickle, as all of Ray's objects do; no pickle is stored.
    """
    arrow = need("pyarrow", "runs over datasets", "data")
    metadata = need("ray.data.block", "the engine 'ray'", "ray").BlockMetadata

    def read() -> Iterator[Any]:
        for chunk in chunks:
            yield arrow.table({"chunk": [pickle.dumps(chunk)]})

    class ChunkSource(data.Datasource):  # type: ignore[misc]  # Ray is imported only when it is used
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            unknown = {"num_rows": None, "size_bytes": None, "exec_stats": None, "input_files": None}
            return [data.ReadTask(read, metadata(**unknown))]

    return ChunkSource()
