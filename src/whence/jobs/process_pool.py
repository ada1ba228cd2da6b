"""The local engine: this process, or a pool of worker processes, each with the model loaded once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

import torch

from ..errors import InputError, ModelError
from ..explainer.explainer import Explainer
from ..inputs.pretrained import quiet
from .dataset_parts import Chunk, ChunkedDataset
from .malloc_env import memory_kept
from .worker import ChunkResult, Worker
from .worker_config import WorkerConfig

TRIES = 5  # for a chunk whose worker died
AHEAD = 2  # chunks per worker that are running or queued


class ProcessPoolEngine:
    """An engine of worker processes on this machine.

    Args:
        workers: how many; 1: this process itself. By default one per core, and one where there is a GPU or where the
            model is given as an object, not as a path.

    A worker that dies (killed, or out of memory) is replaced, and its chunk is explained again.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"A run has at least 1 worker, not {workers}.")
        self.workers = workers

    @property
    def in_process(self) -> bool:
        """Whether this process is the only worker."""
        return self.workers == 1

    def results(
        self, config: WorkerConfig, chunks: ChunkedDataset, stopping: Callable[[], bool]
    ) -> Iterator[ChunkResult]:
        """See :class:`whence.jobs.engine.Engine`."""
        count = self.workers or self._default_workers(config)
        if count == 1:
            worker = Worker(config)
            for chunk in chunks:
                yield worker(chunk)
                if stopping():
                    return
            return
        if isinstance(config.model, Explainer):
            raise InputError("Several workers load the model themselves: give its path or id, not an explainer.")
        with memory_kept():
            yield from self._pool(config, iter(chunks), stopping, count)

    def _default_workers(self, config: WorkerConfig) -> int:
        device = str(config.loading.get("device") or "cpu")
        return 1 if isinstance(config.model, Explainer) or not device.startswith("cpu") else (os.cpu_count() or 1)

    def _pool(
        self, config: WorkerConfig, chunks: Iterator[Chunk], stopping: Callable[[], bool], count: int
    ) -> Iterator[ChunkResult]:
        tries: Counter[int] = Counter()
        queue: deque[Chunk] = deque()  # chunks that were read and are not running, including those of dead workers
        while True:
            pool = _executor(config, count)
            running: dict[Future[ChunkResult], Chunk] = {}
            try:
                while True:
                    while len(running) < AHEAD * count and not stopping():
                        queue.extend([] if queue else islice(chunks, 1))
                        if not queue:
                            break
                        running[pool.submit(_explain, queue[0])] = queue[0]
                        queue.popleft()
                    if not running:
                        return
                    for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        del running[future]
                        yield result
            except BrokenProcessPool:
                for future in [f for f in running if f.done() and f.exception() is None]:
                    del running[future]
                    yield future.result()
                queue.extendleft(sorted(running.values(), key=lambda chunk: -chunk.number))
                tries.update(chunk.number for chunk in running.values())
                worst, times = max(tries.items(), key=lambda item: item[1], default=(0, 0))
                if times > TRIES:
                    raise ModelError(
                        f"A worker died {times} times while part {worst} of the dataset was explained: it was killed, "
                        "or its memory was not enough. Try fewer workers or a smaller batch size, with --resume."
                    ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _executor(config: WorkerConfig, count: int) -> ProcessPoolExecutor:
    threads = max(1, (os.cpu_count() or 1) // count)
    return ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(config, threads, os.getpid())
    )


_worker: Worker | None = None


def _start_worker(config: WorkerConfig, threads: int, parent: int) -> None:
    """Load the model; ignore interrupts, which the parent handles, and exit when the parent exits."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    quiet()
    torch.set_num_threads(threads)
    _worker = Worker(config)


def _explain(chunk: Chunk) -> ChunkResult:
    assert _worker is not None
    return _worker(chunk)


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
