"""``docs/performance.md`` and its figures, from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import whence
from tools.benchmarks import stamp
from tools.benchmarks.costs import BATCHES
from tools.benchmarks.limits import LIMITS, TARGET_LIMIT, ModelLimits
from tools.benchmarks.measurements import DIRECTORY, Measurements
from tools.benchmarks.models import MODELS
from tools.benchmarks.peers import table as peers
from tools.benchmarks.scaling import GROWING, METHODS, TARGETS

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "performance.md"

#: what we hold every first explanation of large models to, as multiples of a plain forward + backward
FIRST_LIMITS = {
    **dict.fromkeys(("conservative-lrp", "attn-lrp", "gradient-x-input"), 1.05),
    **dict.fromkeys(("generic-attention", "grad-cam", "rollout"), 1.25),
    **dict.fromkeys(("transformer-attribution", "lrp"), 2.5),
    **dict.fromkeys(("res-lrp", "libragrad", "legrad"), 1.5),
}
NAMES = {
    "tiny": "BERT, 12 layers of width 32, 32 tokens",
    "vit": "ViT-B/16",
    "bert": "BERT-base, 128 tokens",
    "llama": "a 12-layer decoder, 1,024 tokens",
}
LEAST_MEMORY = 5  # MiB of the baseline, below which a multiple of it says nothing
Rows = dict[str, dict[str, Any]]


def write(directory: Path = DIRECTORY, into: Path | None = None) -> Path:
    """Write the page from all measurements that are there; what is not there is left out.

    Args:
        directory: where the measurements are.
        into: where page and figures are written; ``docs`` if not given.
    """
    page = PAGE if into is None else into / PAGE.name
    figures = page.parent / "performance"
    figures.mkdir(parents=True, exist_ok=True)
    parts = {name: Measurements(name, directory).rows for name in ("costs", "scaling", "length", "page", "job")}
    every = [row for rows in parts.values() for row in rows.values()]
    text = [HEAD.format(torch=torch.__version__, stamp=stamp.described(every))]
    text += [*_limits(parts["costs"], parts["scaling"]), *_costs(parts["costs"])]
    text += [*_scaling(parts["scaling"], figures), *_length(parts["length"])]
    text += [*_page(parts["page"]), *_job(parts["job"])]
    compared = peers.load(directory / peers.FILE.name)
    text += ["## Other libraries", "", PEERS, f"{stamp.described(compared)}\n", peers.markdown(compared)]
    page.write_text("\n".join(text).rstrip() + "\n", encoding="utf-8")
    return page


def _limits(costs: Rows, scaling: Rows) -> list[str]:
    """The limits of the project, each with what was measured."""
    out = ["## Limits", "", LIMITS_TEXT]
    out += ["| model | method | first, at most | first | warm, at most | warm |", "|---|---|---|---|---|---|"]
    for limits in LIMITS:
        for model in limits.models:
            out += [_limit(costs.get(f"{model}/1/{m}"), NAMES[model], m, limits) for m in limits.methods]
    out += [
        "",
        f"Ten targets (`whence.every`) of BERT-base, 128 tokens, take at most {TARGET_LIMIT} times as long as one:",
    ]
    out += ["", "| method | ten targets | replayed |", "|---|---|---|"]
    for method in METHODS:
        found = [scaling.get(f"targets-base{warm}/10/{method}") for warm in ("", "-warm")]
        out.append(f"| `{method}` | " + " | ".join(_within(row, TARGET_LIMIT) for row in found) + " |")
    return [*out, ""]


def _limit(row: dict[str, Any] | None, model: str, method: str, limits: ModelLimits) -> str:
    found = row or {}
    first, warm = _within(found.get("first"), limits.first), _within(found.get("warm"), limits.warm)
    return f"| {model} | `{method}` | {limits.first} | {first} | {limits.warm} | {warm} |"


def _within(row: dict[str, Any] | None, limit: float | None) -> str:
    """A ratio with its extremes, in bold where it is above a limit."""
    if row is None:
        return "-"
    shown = f"{row['value']:.2f}"
    if row["low"] < row["high"]:
        shown += f" ({row['low']:.2f} to {row['high']:.2f})"
    return f"**{shown}**" if limit is not None and row["value"] > limit else shown


def _costs(rows: Rows) -> list[str]:
    """A table for each model: time and memory of every method, for each batch size."""
    out = ["## Every method", "", COSTS]
    for name in MODELS:
        batches = [b for b in BATCHES if f"{name}/{b}/plain" in rows]
        if not batches:
            continue
        base = {b: rows[f"{name}/{b}/plain"] for b in batches}
        told = "; ".join(f"batch {b} on {r['threads']} core(s): {_time(r['seconds'])}, {r['memory']:.0f} MiB, "
                         f"a training step {r['step']:.2f}" for b, r in base.items())  # fmt: skip
        out += [f"### {NAMES[name]}", "", f"Plain forward + backward: {told}.", ""]
        columns = ["method", "at most"]
        for b in batches:
            columns += [f"batch {b}", "warm", "capture", "memory", "warm memory", "per second", "warm per second"]
        out += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        for method in sorted(whence.list_methods()):
            limit = None if name == "tiny" else FIRST_LIMITS.get(method)
            cells = [cell for b in batches for cell in _cost(rows.get(f"{name}/{b}/{method}"), limit, b)]
            out.append(f"| `{method}` | {limit or ''} | " + " | ".join(cells) + " |")
        out += ["", *_batches(rows, name)]
    return [*out, *_refusals(rows)]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def _batches(rows: Rows, name: str) -> list[str]:
    """The method that gains least from a batch."""
    times = {
        method: several["first"]["seconds"] / one["first"]["seconds"]
        for method in whence.list_methods()
        if "first" in (one := rows.get(f"{name}/1/{method}", {}))
        and "first" in (several := rows.get(f"{name}/8/{method}", {}))
    }
    if not times:
        return []
    worst = max(times, key=lambda method: times[method])
    return [f"A batch of 8 takes at most {times[worst]:.1f} times as long as one sample (`{worst}`).", ""]


def _cost(row: dict[str, Any] | None, limit: float | None, batch: int) -> list[str]:
    if row is None:
        return ["-"] * 7
    if "error" in row:
        return ["does not apply", *["-"] * 6]
    first, warm, captured = row["first"], row.get("warm"), row.get("captured")
    return [
        _within(first, limit),
        _within(warm, None),
        f"{captured['value']:.1f}" if captured else "-",
        _memory(row["memory"], row["base"]),
        _memory(row.get("warm_memory"), row["base"]),
        f"{batch / first['seconds']:.3g}",
        f"{batch / warm['seconds']:.3g}" if warm else "-",
    ]


def _memory(grown: float | None, base: float) -> str:
    return "-" if grown is None or base < LEAST_MEMORY else f"{grown / base:.2f}"


def _refusals(rows: Rows) -> list[str]:
    """Why some explanations are not captured."""
    found: dict[str, set[str]] = {}
    for name, row in rows.items():
        if row.get("refusal") and row["refusal"] != "not measured":
            found.setdefault(row["refusal"], set()).add(f"`{name.split('/')[-1]}`")
    if not found:
        return []
    return ["Not captured:", "", *(f"- {', '.join(sorted(m))}: {why}" for why, m in sorted(found.items())), ""]


def _page(rows: Rows) -> list[str]:
    """The first and the tenth explanation of the web page."""
    if not rows:
        return []
    out = ["## The web page", "", PAGE_TEXT, "| model | method | first, ms | tenth, ms | plain, ms |"]
    out.append("|---|---|---|---|---|")
    for key, row in rows.items():
        model, method = key.split("/")
        times = " | ".join(f"{1000 * row[word]:.1f}" for word in ("first", "tenth", "plain"))
        out.append(f"| {model} | `{method}` | {times} |")
    return [*out, ""]


def _job(rows: Rows) -> list[str]:
    """A dataset with captures and without."""
    if not rows:
        return []
    out = ["## A dataset", "", JOB_TEXT, "| explanations | texts | workers | seconds | samples per second |"]
    out.append("|---|---|---|---|---|")
    for key, row in rows.items():
        rate = row["texts"] / row["seconds"]
        out.append(f"| {key.split('/')[0]} | {row['texts']:,} | {row['workers']} | {row['seconds']:.0f} | {rate:.1f} |")
    return [*out, ""]


def _scaling(rows: Rows, figures: Path) -> list[str]:
    """A figure of what grows, and a table of targets."""
    if not rows:
        return []
    out = ["## How it grows", "", _figure(rows, figures), "", TARGETS_TEXT]
    for name, words in (
        ("small", "6 layers, 384 wide, 128 tokens"),
        ("base", "BERT-base, 128 tokens"),
    ):
        out += [f"**{words}**", "", "| targets | " + " | ".join(f"`{m}`" for m in METHODS) + " |"]
        out += ["|---|" + "---|" * len(METHODS)]
        for n in TARGETS:
            found = [rows.get(f"targets-{name}/{n}/{m}") for m in METHODS]
            out.append(f"| {n} | " + " | ".join("-" if r is None else f"{r['value']:.2f}" for r in found) + " |")
        warm = [rows.get(f"targets-{name}-warm/{TARGETS[-1]}/{m}") for m in METHODS]
        out += [
            f"| {TARGETS[-1]}, replayed | " + " | ".join("-" if r is None else f"{r['value']:.2f}" for r in warm) + " |"
        ]
        out.append("")
    return out


def _figure(rows: Rows, figures: Path) -> str:
    """Time and memory against what grows; returns the line that shows the figure. Without rows it stays as it is."""
    line = "![time and memory against the length, the batch and the layers](performance/scaling.png)"
    if not any(key.split("/")[0] in GROWING for key in rows):
        return line if (figures / "scaling.png").exists() else ""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(GROWING), figsize=(4 * len(GROWING), 6), squeeze=False)
    for column, (what, (values, _)) in enumerate(GROWING.items()):
        for i, method in enumerate(METHODS):
            found = [(n, rows[key]) for n in values if (key := f"{what}/{n}/{method}") in rows]
            ns = [n for n, _ in found]
            axes[0, column].plot(ns, [r["value"] for _, r in found], "o-", color=f"C{i}", markersize=3, label=method)
            axes[1, column].plot(ns, [r["memory"] for _, r in found], "o-", color=f"C{i}", markersize=3)
        base = [(n, rows[key]) for n in values if (key := f"{what}/{n}/{METHODS[0]}") in rows]
        axes[1, column].plot([n for n, _ in base], [r["base"] for _, r in base], "k--", linewidth=1, label="plain")
        axes[0, column].axhline(1, color="k", linestyle="--", linewidth=1)
        for row, word in enumerate(("x plain forward + backward", "MiB")):
            axes[row, column].set_xscale("log", base=2)
            axes[row, column].set_xlabel(what)
            axes[row, column].set_ylabel(word)
            axes[row, column].spines[["top", "right"]].set_visible(False)
        axes[0, column].set_ylim(bottom=0)
        axes[1, column].set_yscale("log")
    axes[0, 0].legend(fontsize=7, frameon=False)
    axes[1, 0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(figures / "scaling.png", dpi=130)
    plt.close(figure)
    return line


def _length(rows: Rows) -> list[str]:
    """Memory of long inputs."""
    if not rows:
        return []
    out = ["## Long inputs", "", LENGTH, "| tokens | | MiB | x plain | seconds |", "|---|---|---|---|---|"]
    for key, row in sorted(rows.items(), key=lambda item: int(item[0].split("/")[0])):
        tokens, method = key.split("/")
        times = row["memory"] / rows[f"{tokens}/plain"]["memory"]
        out.append(f"| {int(tokens):,} | `{method}` | {row['memory']:.0f} | {times:.2f} | {row['seconds']:.0f} |")
    return [*out, ""]


HEAD = """# Performance

Made by `make bench` (and `make bench-peers`) from measurements in `tools/benchmarks/measured`: torch {torch}, no
GPU, float32. {stamp}

A time is a multiple of **one plain forward and one backward pass to the input** of the same model on the same input;
parameters need no gradient. The baseline runs before and after each call; given is the median of the ratios, with the
extremes.

- *first*: `whence.explain`, which traces the model and computes the explanation.
- *warm*: `whence.compile` on an input of a signature that it has captured: the explanation is
  [replayed](how-to/fast.md).
- *capture*: the first call of `whence.compile`, which also records the explanation.
"""
LIMITS_TEXT = """What we hold ourselves to, with one sample. Bold: above the limit.
"""
COSTS = """Memory is the growth of the resident set during a call, as a multiple of the baseline's; it is left out
where the baseline takes less than 5 MiB. "At most" is the limit of the first explanation; bold: above it. A training
step computes the gradients of the weights as well, without its optimiser; its time is a multiple of the baseline, too.

Batches of BERT-base and the decoder are measured with five methods. Methods that run the model many times are measured
few times, on the smallest model all of them, on large models those that take seconds. A capture that would take longer
than 30 seconds is not measured.

The first explanation takes longer than the baseline mostly because of Python: each operation of the model is traced and
classified. That share is smaller for larger models, batches and longer inputs, and there is none in a replay.
`transformer-attribution` computes five matrix products where the baseline computes two.
"""
TARGETS_TEXT = """**Several targets** of one input (`whence.every`), as multiples of one target: the forward pass is
shared, and the backward passes are batched. One forward and ten backward passes are 5.5 times one of each. The last
line compares replays of ten targets with replays of one.
"""
LENGTH = """A 6-layer, 384-wide BERT with fused attention, batch 1. Each case runs in a process of its own; memory is
the growth of its largest resident set. Methods that explain the input keep attention fused. Methods that read
attention maps hold those of one layer, or of some of its heads, in memory. Checkpoints keep a part of the activations
and recompute the others.
"""
PAGE_TEXT = """Queries through the service of the [web page](serve.md), with different inputs of one shape, in
milliseconds. The first is the median of three services just started; the tenth is the median of the tenth to
twentieth. Plain is one forward and backward pass of the model.
"""
JOB_TEXT = """`whence run` on sentences of SST-2 with a MiniLM of 6 layers, `conservative-lrp`, batches of 32, with
captured explanations and without (`--no-capture`), one after the other. Seconds are of the whole command.
"""
PEERS = """The same weights, input and target, in one process; times as above, memory as growth in MiB. *Ours* is
`whence.explain`, *ours, warm* a replay by `whence.compile`; a dash: not captured. Where the method is the same, the
numbers have to agree. Bold: a peer is ahead by more than 5 % of time, or 10 % and 5 MiB of memory, compared with the
replay where there is one.
"""
