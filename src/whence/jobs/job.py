"""``whence.run``: a dataset, a model and a method in; a directory of rows out."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..datasets import Dataset
from ..datasets import load as load_dataset
from ..errors import InputError
from ..explainer.explainer import Explainer
from ..methods.registry import create as create_method
from .dataset_parts import Chunks
from .engine import create
from .line import Line
from .output_dir import Shards, prepare, tables
from .worker_config import Task


@dataclass
class Job:
    """A run that has ended.

    Attributes:
        directory: where its rows are.
        samples: how many samples of the dataset are in it.
        failed: how many rows have an error.
        new: how many samples were explained now; the others were done already.
        seconds: how long that took.
        warned: what there was to say, with how often.
    """

    directory: Path
    samples: int
    failed: int
    new: int = 0
    seconds: float = 0.0
    warned: Counter[str] = field(default_factory=Counter)

    def tables(self) -> Iterator[Any]:
        """The rows, part by part, as Arrow tables.

        Example:
            >>> for table in job.tables():
            ...     print(table.to_pandas()[["id", "prediction"]])
        """
        return tables(self.directory)


def run(
    dataset: str | Path | Dataset,
    model: str | Path | Explainer,
    method: str | Sequence[str] = "conservative-lrp",
    out: str | Path = "whence-run",
    *,
    target: Any = None,
    options: Mapping[str, Any] | None = None,
    engine: str = "local",
    workers: int | None = 1,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    resume: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    shard_size: int = 512,
    root: str | Path | None = None,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    progress: bool | None = None,
    **loading: Any,
) -> Job:
    """Explain every sample of a dataset, and keep what was found in parquet files.

    A run that was stopped, in whatever way, goes on with ``resume=True``; no row is doubled or lost. What cannot be
    explained is a row with its reason. The rows depend neither on the engine nor on the number of workers, to the bit.

    Args:
        dataset: a name, a path, or what :func:`whence.datasets.load` returns; read as a stream.
        model: a directory or an id on the hub; with one local worker also an explainer.
        method: one, or several: each has a row for each sample.
        out: the directory.
        target: as for :func:`whence.explain` (a class for all); ``"label"`` explains each sample's own.
        options: the method's options.
        engine: ``"local"``, or ``"ray"``.
        workers: how many processes, each with the model; 1 is this one, ``None`` as many as there are cores. A script
            that asks for several has to be guarded by ``if __name__ == "__main__"``, as for all of Python's processes.
        address: of a Ray cluster that is running.
        cpus, gpus: of Ray, for each worker.
        resume: go on with what ``out`` holds.
        limit: only the first samples.
        batch_size: how many are explained together, at most; fewer where texts are long.
        shard_size: samples in one file.
        root, split, columns: as for :func:`whence.datasets.load`.
        progress: show on stderr how far it has come; ``None``: if that is a terminal.
        loading: ``device``, ``dtype``, ``truncate`` and what else :meth:`whence.Explainer.from_pretrained` takes.

    Example:
        >>> job = whence.run("reviews.jsonl", "my-model", out="why")
        >>> job.samples, job.failed
        (20000, 3)
    """
    names = [method] if isinstance(method, str) else list(method)
    if not names or shard_size < 1 or batch_size < 1 or (limit is not None and limit < 1):
        raise InputError("A run needs a method, and at least 1 sample in a batch, in a file, and in all.")
    for name in names:
        create_method(name, dict(options or {}))
    source = (
        dataset if isinstance(dataset, Dataset) else load_dataset(dataset, root=root, split=split, **(columns or {}))
    )
    prepare(Path(out), resume)
    given = str(model) if isinstance(model, Path) else model
    ways = tuple((name, dict(options or {})) for name in names)
    task = Task(given, ways, target, batch_size, {"truncate": False, **loading})
    explainer = task.explainer()
    settings = task.settings(explainer)
    task = replace(task, fingerprint=settings["model"]["fingerprint"])
    settings |= {"split": source.split, "limit": limit, "shard size": shard_size}
    shards = Shards(out, settings, source.name)
    known = shards.done()
    chunks = Chunks(source, shard_size, limit)
    shards.same(chunks, known)
    chosen = _engine(engine, workers, address, cpus, gpus)
    if isinstance(task.model, str) and engine == "local" and workers == 1:
        task = replace(task, model=explainer)  # loaded already
    del explainer
    return _work(shards, task, replace(chunks, skip=frozenset(known)), chosen, known, progress)


def _engine(name: str, workers: int | None, address: str | None, cpus: float, gpus: float) -> Any:
    if name == "ray":
        return create(name, workers=workers, address=address, cpus=cpus, gpus=gpus)
    if address is not None:
        raise InputError("An address is that of a Ray cluster: choose engine='ray' (--engine ray).")
    return create(name, workers=workers)


def _work(shards: Shards, task: Task, chunks: Chunks, engine: Any, known: Mapping[int, Any], show: bool | None) -> Job:
    total = chunks.dataset.count
    if chunks.limit is not None:
        total = chunks.limit if total is None else min(total, chunks.limit)
    samples, failed = (sum(each[key] for each in known.values()) for key in ("samples", "failed"))
    line, warned, start = Line(samples, failed, total, show), Counter[str](), time.monotonic()
    with _asked_to_stop() as stopping, closing(line):
        for done in engine.results(task, chunks, stopping):
            shards.add(done)
            warned.update(done.warned)
            samples, failed = samples + done.samples, failed + done.failed
            line.update(samples, failed)
        stopped = stopping()
    shards.manifest(complete=not stopped, samples=samples, failed=failed)
    if stopped:
        raise KeyboardInterrupt
    new = samples - sum(each["samples"] for each in known.values())
    return Job(shards.directory, samples, failed, new, time.monotonic() - start, warned)


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether the user has asked to stop: by Ctrl-C once; the second time it is an interruption as always."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(*_: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
