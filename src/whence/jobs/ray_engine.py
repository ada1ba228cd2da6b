"""Ray: the same workers as actors, on this machine or on a cluster.

The parts of the dataset are a Ray dataset that is read as a stream, explained by a pool of actors and brought back to
the driver, which writes them. Ray itself starts actors anew that died, and repeats what was lost with a node.
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
from .dataset_parts import Chunks
from .malloc_env import memory_kept
from .worker import Done, Worker
from .worker_config import Task

#: Ray's own messages go to its log files; what a user sees is one line of ours. Its workers yield to every other
#: process of a machine by default (niceness 15); a job that was asked for does not.
OWN = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}


class OnRay:
    """A pool of Ray actors.

    Args:
        workers: how many; by default as many as the cluster's CPUs (or GPUs) allow.
        address: of a cluster that is running (``auto`` finds one on this machine); by default one is started here, and
            stopped at the end.
        cpus: CPUs for each worker; also its threads.
        gpus: GPUs for each worker.
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, cpus: float = 1, gpus: float = 0
    ) -> None:
        self.workers, self.address, self.cpus, self.gpus = workers, address, cpus, gpus

    def results(self, task: Task, chunks: Chunks, stopping: Callable[[], bool]) -> Iterator[Done]:
        """See :class:`Engine`."""
        for name, value in OWN.items():
            os.environ.setdefault(name, value)
        ray = need("ray", "the engine 'ray'", "ray")
        data = need("ray.data", "the engine 'ray'", "ray")
        if isinstance(task.model, Explainer):
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
            context.target_max_block_size = 1  # a part is a block: they go to different workers
            there = ray.cluster_resources()
            share = self.gpus or self.cpus
            count = self.workers or max(1, int(there.get("GPU" if self.gpus else "CPU", 1) // max(share, 0.01)))
            read = data.read_datasource(_source(data, chunks), override_num_blocks=1, num_cpus=0)
            explained = read.map_batches(
                _Actor, fn_constructor_args=(task, max(1, int(self.cpus))), batch_size=1,
                compute=data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=1),  # parts are long
                num_cpus=None if self.gpus else self.cpus, num_gpus=self.gpus or None,
            )  # fmt: skip
            for row in explained.iter_rows():
                yield pickle.loads(row["done"])
                if stopping():
                    return
        finally:
            if started:
                ray.shutdown()


class _Actor:
    """A worker that is loaded once, in a process of Ray's."""

    def __init__(self, task: Task, threads: int) -> None:
        import torch

        quiet()
        torch.set_num_threads(threads)
        self.worker = Worker(task)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [pickle.dumps(self.worker(pickle.loads(part))) for part in batch["chunk"]]
        return {"done": np.array([*done, None], dtype=object)[:-1]}  # an array of objects, also of one


def _source(data: Any, chunks: Chunks) -> Any:
    """The parts as a datasource of Ray's: one reader, which goes on as fast as they are explained.

    Parts and results cross between processes of one job by pickle, as all of Ray's own objects do; no file is one.
    """
    arrow = need("pyarrow", "runs over datasets", "data")
    metadata = need("ray.data.block", "the engine 'ray'", "ray").BlockMetadata

    def read() -> Iterator[Any]:
        for chunk in chunks:
            yield arrow.table({"chunk": [pickle.dumps(chunk)]})

    class Parts(data.Datasource):  # type: ignore[misc]  # Ray is there only when it is used
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            known = {"num_rows": None, "size_bytes": None, "exec_stats": None, "input_files": None}
            return [data.ReadTask(read, metadata(**known))]

    return Parts()
