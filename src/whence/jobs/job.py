"""``whence.run``: explain a dataset, and write one row per sample to parquet files."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._utils.progress import display
from ..datasets import Dataset
from ..datasets import load as load_dataset
from ..errors import InputError
from ..explainer.explainer import Explainer
from ..methods.registry import create as create_method
from .dataset_parts import ChunkedDataset
from .engine import Engine, create_engine
from .output_dir import RunDirectory, prepare, tables
from .worker_config import Methods, WorkerConfig

TOO_FEW = "A run needs a method, and at least 1 sample in a batch, in a file, and in all."


@dataclass
class Job:
    """A finished run.

    Attributes:
        directory: where its rows are.
        samples: the number of samples in it.
        failed: the number of rows with an error.
        new: the number of samples that were explained now, not in an earlier run that was resumed.
        seconds: how long that took.
        warned: the warnings, each with its count.
    """

    directory: Path
    samples: int
    failed: int
    new: int = 0
    seconds: float = 0.0
    warned: Counter[str] = field(default_factory=Counter)

    def tables(self) -> Iterator[Any]:
        """Yield the rows, part by part, as Arrow tables.

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
    """Explain every sample of a dataset, and write the results to parquet files.

    An interrupted or killed run continues with ``resume=True``; no row is duplicated or lost. A sample that cannot be
    explained gives a row with its error. The rows are bit-identical for any engine and any number of workers.

    Args:
        dataset: a name, a path, or what :func:`whence.datasets.load` returns; read as a stream.
        model: a directory or an id on the hub; with one local worker also an explainer.
        method: one, or several: there is one row per sample and method.
        out: the output directory.
        target: as for :func:`whence.explain` (one class for all); ``"label"`` explains each sample's own label.
        options: the method's options.
        engine: ``"local"``, or ``"ray"``.
        workers: the number of processes, each with the model; 1 is this process, ``None`` one per core. A script with
            several workers needs the guard ``if __name__ == "__main__"``, as Python's multiprocessing does.
        address: the address of a running Ray cluster.
        cpus, gpus: per Ray worker.
        resume: continue the run that ``out`` holds.
        limit: explain only the first samples.
        batch_size: the largest number of samples in a batch; fewer where texts are long.
        shard_size: the number of samples in one file.
        root, split, columns: as for :func:`whence.datasets.load`.
        progress: show progress on stderr; ``None``: if stderr is a terminal.
        loading: ``device``, ``dtype``, ``truncate`` and other arguments of :meth:`whence.Explainer.from_pretrained`.

    Example:
        >>> job = whence.run("reviews.jsonl", "my-model", out="why")
        >>> job.samples, job.failed
        (20000, 3)
    """
    _require_positive(shard_size, batch_size, limit)
    methods = _checked_methods(method, options or {})
    source = dataset if isinstance(dataset, Dataset) else load_dataset(dataset, root=root, split=split, **columns or {})
    prepare(Path(out), resume)
    config = WorkerConfig(model, methods, target, batch_size, {"truncate": False, **loading})
    chosen = create_engine(engine, workers, address, cpus, gpus)
    return _run(config, ChunkedDataset(source, shard_size, limit), chosen, Path(out), progress)


def _require_positive(*counts: int | None) -> None:
    if any(count is not None and count < 1 for count in counts):
        raise InputError(TOO_FEW)


def _checked_methods(method: str | Sequence[str], options: Mapping[str, Any]) -> Methods:
    """Return each method with its options; raise if there is none, or if one does not exist."""
    names = [method] if isinstance(method, str) else list(method)
    if not names:
        raise InputError(TOO_FEW)
    for name in names:
        create_method(name, dict(options))
    return tuple((name, dict(options)) for name in names)


def _run(config: WorkerConfig, chunks: ChunkedDataset, engine: Engine, out: Path, show: bool | None) -> Job:
    """Check the directory against the settings, and explain the chunks that are not finished."""
    explainer = config.explainer()
    settings = config.settings(explainer)
    config = replace(config, fingerprint=settings["model"]["fingerprint"])
    settings |= {"split": chunks.dataset.split, "limit": chunks.limit, "shard size": chunks.size}
    directory = RunDirectory(out, settings, chunks.dataset.name)
    finished = directory.finished_parts()
    directory.require_same_samples(chunks, finished)
    if engine.in_process:
        config = replace(config, model=explainer)  # the model is loaded already
    del explainer
    return _work(directory, config, replace(chunks, skip=frozenset(finished)), engine, finished, show)


def _work(
    directory: RunDirectory,
    config: WorkerConfig,
    chunks: ChunkedDataset,
    engine: Engine,
    finished: Mapping[int, Mapping[str, Any]],
    show: bool | None,
) -> Job:
    """Explain chunks and write their rows until all are done or the user interrupts."""
    before = sum(part["samples"] for part in finished.values())
    samples = before
    failed = sum(part["failed"] for part in finished.values())
    warned: Counter[str] = Counter()
    start = time.monotonic()
    shown = display("Explaining", chunks.total, done=before, unit="samples", show=show, keep=True)
    with _interruption() as interrupted, shown as update:
        for result in engine.results(config, chunks, interrupted):
            directory.add(result)
            warned.update(result.warned)
            samples += result.samples
            failed += result.failed
            update(samples, failed)
        stopped = interrupted()
    directory.write_manifest(complete=not stopped, samples=samples, failed=failed)
    if stopped:
        raise KeyboardInterrupt
    return Job(directory.directory, samples, failed, samples - before, time.monotonic() - start, warned)


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether the user pressed Ctrl-C; a second Ctrl-C interrupts at once."""
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
