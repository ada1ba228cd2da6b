"""A whole dataset: 20,000 real texts on each engine, against bare batched forward + backward on the same cores.

python -m tools.benchmarks.dataset [--only bare local ray stages] [--workers 2]     (draws docs/scale/memory.png)

Needs the shared data and weights (``WHENCE_SHARED``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import torch

import whence
from tools.benchmarks.measurements import DIRECTORY, Measurements
from whence.datasets import load
from whence.inputs.sample import batches, collate
from whence.jobs.dataset_parts import Chunk, ChunkedDataset
from whence.jobs.output_dir import RunDirectory
from whence.jobs.worker import TOKENS, Worker
from whence.jobs.worker_config import WorkerConfig

SHARED = Path(os.environ.get("WHENCE_SHARED", Path(__file__).parents[3] / "shared"))
MODEL, SENTENCES, REVIEWS = SHARED / "weights" / "minilm_l6_sst2", 18_000, 2_000
FOLDER, BATCH, SHARD = DIRECTORY / "dataset", 32, 512


def texts() -> Path:
    """The texts as JSON lines: sentences of SST-2, then reviews of IMDB."""
    path = FOLDER / "texts.jsonl"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        sets = (("sst2", "train", SENTENCES), ("imdb", "test", REVIEWS))
        with path.open("w", encoding="utf-8") as file:
            for name, split, count in sets:
                for item in islice(load(name, root=SHARED / "data", split=split), count):
                    row = {"id": f"{name}-{item.id}", "text": item.input, "label": item.label}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def bare(workers: int) -> float:
    """Seconds of plain forwards and backwards of the same batches, in as many processes; reading is not timed."""
    chunks = list(ChunkedDataset(load(texts()), SHARD))
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // workers)
    with context.Pool(workers) as pool:
        return max(pool.starmap(_bare, [(chunks[i::workers], threads) for i in range(workers)], chunksize=1))


def _bare(chunks: list[Chunk], threads: int) -> float:
    torch.set_num_threads(threads)
    explainer = whence.Explainer.from_pretrained(MODEL)
    model = explainer.model.requires_grad_(False)
    ready = []
    for chunk in chunks:
        samples = [explainer.read(given.input) for given in chunk.samples]
        ready += [collate([samples[i] for i in places]) for places in batches(samples, BATCH, TOKENS)]
    start = time.perf_counter()
    for inputs in ready:
        given = dict(inputs)
        rows = model.get_input_embeddings()(given.pop("input_ids")).detach().requires_grad_()
        logits = model(inputs_embeds=rows, **given).logits
        torch.autograd.grad(logits.max(-1).values.sum(), rows)
    return time.perf_counter() - start


def stages(made: Measurements) -> None:
    """What a sample costs at each stage, on one core: reading, tokenising, explaining, writing; and its bytes."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    config = WorkerConfig(str(MODEL), (("conservative-lrp", {}),), batch_size=BATCH)
    worker = Worker(config)
    spent = {"loading": time.perf_counter() - start}
    start = time.perf_counter()
    chunks = list(ChunkedDataset(load(texts()), SHARD))
    spent["reading"] = time.perf_counter() - start
    chosen = chunks[:: len(chunks) // 8]
    count = sum(len(chunk.samples) for chunk in chosen)
    start = time.perf_counter()
    for chunk in chosen:
        for given in chunk.samples:
            worker.explainer.read(given.input)
    spent["tokenising"] = (time.perf_counter() - start) / count
    start = time.perf_counter()
    done = [worker(chunk) for chunk in chosen]
    spent["explaining, tokenising among it"] = (time.perf_counter() - start) / count
    start = time.perf_counter()
    sent = [len(pickle.dumps(part)) for part in done]
    spent["sending to the driver"] = (time.perf_counter() - start) / count
    shutil.rmtree(FOLDER / "stages", ignore_errors=True)
    directory = RunDirectory(FOLDER / "stages", {})
    start = time.perf_counter()
    for part in done:
        directory.add(part)
    spent["writing"] = (time.perf_counter() - start) / count
    spent["reading"] /= sum(len(chunk.samples) for chunk in chunks)
    given = sum(len(str(sample.input).encode()) for chunk in chosen for sample in chunk.samples)
    stored = sum(path.stat().st_size for path in directory.files.parts.iterdir())
    tokens = sum(len(row) for part in done for row in part.table["tokens"].to_pylist())
    sizes = {"text": given, "sent": sum(sent), "stored": stored, "tokens": tokens}
    made.add("stages", {"seconds": spent, "bytes": {name: size / count for name, size in sizes.items()}})
    for name, seconds in spent.items():
        print(f"{name:<34}{seconds:12.6f} s" + ("" if name == "loading" else " a sample"))
    for name, size in sizes.items():
        print(f"{name:<34}{size / count:12.1f}" + (" a sample" if name == "tokens" else " bytes a sample"))


def explained(engine: str, workers: int, made: Measurements) -> None:
    """One run of the command, with the memory of all its processes once a second."""
    out = FOLDER / engine
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-W", "ignore", "-m", "whence", "run", str(texts()), "--model", str(MODEL)]
    command += ["--out", str(out), "--engine", engine, "--workers", str(workers), "--truncate"]
    command += ["--batch-size", str(BATCH), "--shard-size", str(SHARD)]
    start, seen = time.perf_counter(), []
    running = subprocess.Popen(command, start_new_session=True)
    watch = threading.Thread(target=_watch, args=(running, start, seen, out))
    watch.start()
    code = running.wait()
    seconds = time.perf_counter() - start
    watch.join()
    if code:
        raise SystemExit(f"whence run ended with {code}.")
    made.add(engine, {"seconds": seconds, "samples": SENTENCES + REVIEWS, "workers": workers, "memory": seen})
    print(f"{engine:<8}{seconds:8.1f} s {(SENTENCES + REVIEWS) / seconds:8.1f} samples a second", flush=True)


def _watch(running: subprocess.Popen[bytes], start: float, seen: list[list[float]], out: Path) -> None:
    while running.poll() is None:
        done = len(list((out / "rows").glob("part-*")))
        seen.append([round(time.perf_counter() - start, 1), round(_resident(running.pid) / 2**20, 1), done])
        time.sleep(10.0)  # looking is not free: the maps of every process are walked


def _resident(session: int) -> int:
    """Bytes in memory, shared ones counted by share, of all processes of a session."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rsplit(")", 1)[1].split()[3]) == session:
                rolled = (stat.parent / "smaps_rollup").read_text()
                total += 1024 * int(next(line for line in rolled.splitlines() if line.startswith("Pss:")).split()[1])
        except (OSError, StopIteration, IndexError):
            continue
    return total


def main() -> None:
    """Measure, compare the rows of both engines, and draw the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["bare", "local", "ray", "stages"])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    made = Measurements("dataset")
    for name in options.only:
        if name == "bare":
            made.add("bare", {"seconds": bare(options.workers), "samples": SENTENCES + REVIEWS})
            print(f"bare    {made.rows['bare']['seconds']:8.1f} s", flush=True)
        elif name == "stages":
            stages(made)
        else:
            explained(name, options.workers, made)
    if {"local", "ray"} <= made.rows.keys():
        same = [p.read_bytes() for p in sorted((FOLDER / "local" / "rows").iterdir())] == [
            p.read_bytes() for p in sorted((FOLDER / "ray" / "rows").iterdir())
        ]
        print("the files of both engines are", "the same, byte for byte" if same else "NOT the same")
    for name in ("local", "ray"):
        if name in made.rows and "bare" in made.rows:
            print(f"{name}: {made.rows['bare']['seconds'] / made.rows[name]['seconds']:.0%} of bare")
    draw(made)


def draw(made: Measurements) -> None:
    """Memory over time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3))
    for name in ("local", "ray"):
        if name in made.rows:
            times, sizes, _ = zip(*made.rows[name]["memory"], strict=True)
            axes.plot(times, sizes, label=name)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB, all processes")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    folder = Path(__file__).parents[2] / "docs" / "scale"
    folder.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(folder / "memory.png", dpi=130)


if __name__ == "__main__":
    main()
