"""This machine: one process, or a pool of them, each with the model loaded once."""

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
from .dataset_parts import Chunk, Chunks
from .malloc_env import memory_kept
from .worker import Done, Worker
from .worker_config import Task

TRIES = 5  # of a part whose worker died
AHEAD = 2  # parts per worker that are begun or waiting


class Local:
    """Worker processes on this machine.

    Args:
        workers: how many; 1: this process itself. By default one per core, and one where there is a GPU or where the
            model is given as an object, not as a path.

    A worker that dies (killed, or out of memory) is replaced, and its part is explained again.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"A run has at least 1 worker, not {workers}.")
        self.workers = workers

    def results(self, task: Task, chunks: Chunks, stopping: Callable[[], bool]) -> Iterator[Done]:
        """See :class:`Engine`."""
        count = self.workers or self._default(task)
        if count == 1:
            worker = Worker(task)
            for chunk in chunks:
                yield worker(chunk)
                if stopping():
                    return
            return
        if isinstance(task.model, Explainer):
            raise InputError("Several workers load the model themselves: give its path or id, not an explainer.")
        with memory_kept():
            yield from self._pool(task, iter(chunks), stopping, count)

    def _default(self, task: Task) -> int:
        device = str(task.loading.get("device") or "cpu")
        return 1 if isinstance(task.model, Explainer) or not device.startswith("cpu") else (os.cpu_count() or 1)

    def _pool(self, task: Task, chunks: Iterator[Chunk], stopping: Callable[[], bool], count: int) -> Iterator[Done]:
        tries: Counter[int] = Counter()
        left: deque[Chunk] = deque()  # parts that were taken and are not begun, those of workers that died among them
        while True:
            pool = _executor(task, count)
            running: dict[Future[Done], Chunk] = {}
            try:
                while True:
                    while len(running) < AHEAD * count and not stopping():
                        left.extend([] if left else islice(chunks, 1))
                        if not left:
                            break
                        running[pool.submit(_explain, left[0])] = left[0]
                        left.popleft()
                    if not running:
                        return
                    for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                        done = future.result()
                        del running[future]
                        yield done
            except BrokenProcessPool:
                for future in [f for f in running if f.done() and f.exception() is None]:
                    del running[future]
                    yield future.result()
                left.extendleft(sorted(running.values(), key=lambda chunk: -chunk.number))
                tries.update(chunk.number for chunk in running.values())
                worst, times = max(tries.items(), key=lambda item: item[1], default=(0, 0))
                if times > TRIES:
                    raise ModelError(
                        f"A worker died {times} times while part {worst} of the dataset was explained: it was killed, "
                        "or its memory was not enough. Try fewer workers or a smaller batch size, with --resume."
                    ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _executor(task: Task, count: int) -> ProcessPoolExecutor:
    threads = max(1, (os.cpu_count() or 1) // count)
    return ProcessPoolExecutor(
        count, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(task, threads, os.getpid())
    )


_worker: Worker | None = None


def _begin(task: Task, threads: int, parent: int) -> None:
    """Load the model; leave interruptions to the parent, and end if it does."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    quiet()
    torch.set_num_threads(threads)
    _worker = Worker(task)


def _explain(chunk: Chunk) -> Done:
    assert _worker is not None
    return _worker(chunk)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
