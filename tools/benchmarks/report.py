"""``docs/performance.md`` and its figures, from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import whence
from tools.benchmarks.costs import BATCHES
from tools.benchmarks.kept import Kept
from tools.benchmarks.models import MODELS
from tools.benchmarks.peers import table as peers
from tools.benchmarks.scaling import GROWING, METHODS, TARGETS

PROJECT = Path(__file__).parents[2]
PAGE, FIGURES = PROJECT / "docs" / "performance.md", PROJECT / "docs" / "performance"

#: what we hold ourselves to, as multiples of a plain forward + backward
LIMITS = {
    **dict.fromkeys(("conservative-lrp", "attn-lrp", "gradient-x-input"), 1.05),
    **dict.fromkeys(("generic-attention", "grad-cam", "rollout"), 1.25),
    **dict.fromkeys(("transformer-attribution", "lrp"), 2.5),
    **dict.fromkeys(("res-lrp", "libragrad", "legrad"), 1.5),
}
WORDS = {"vit": "ViT-B/16", "bert": "BERT-base, 128 tokens", "llama": "a 12-layer decoder, 1,024 tokens"}


def write() -> Path:
    """Write the page from all measurements that are there; what is not there is left out."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    costs, scaling, length = Kept("costs").rows, Kept("scaling").rows, Kept("length").rows
    parts = [HEAD.format(torch=torch.__version__), *_costs(costs), *_scaling(scaling)]
    parts += [*_length(length), "## Other libraries", "", PEERS, peers.markdown(peers.load())]
    PAGE.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return PAGE


def _costs(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A table for each model: time and memory of every method, for each batch size."""
    out = ["## Every method", "", COSTS]
    for name in MODELS:
        batches = [b for b in BATCHES if f"{name}/{b}/plain" in rows]
        if not batches:
            continue
        base = [rows[f"{name}/{b}/plain"] for b in batches]
        told = "; ".join(f"batch {b} on {r['threads']} core(s): {r['seconds']:.2f} s, {r['memory']:.0f} MiB, "
                         f"a training step {r['step']:.2f}"
                         for b, r in zip(batches, base, strict=True))  # fmt: skip
        out += [f"### {WORDS[name]}", "", f"Plain forward + backward: {told}.", ""]
        out += [
            "| method | at most | " + " | ".join(f"batch {b} | of a step | memory | per second" for b in batches) + " |"
        ]
        out += ["|---|---|" + "---|---|---|---|" * len(batches)]
        for method in sorted(whence.list_methods()):
            cells = [
                _cost(rows.get(f"{name}/{b}/{method}"), method, b, r["step"])
                for b, r in zip(batches, base, strict=True)
            ]
            out.append(f"| `{method}` | {LIMITS.get(method, '')} | " + " | ".join(cells) + " |")
        out += ["", *_batches(rows, name)]
    return out


def _batches(rows: dict[str, dict[str, Any]], name: str) -> list[str]:
    """The method that gains least from a batch."""
    times = {
        method: several["seconds"] / one["seconds"]
        for method in whence.list_methods()
        if "seconds" in (one := rows.get(f"{name}/1/{method}", {}))
        and "seconds" in (several := rows.get(f"{name}/8/{method}", {}))
    }
    if not times:
        return []
    worst = max(times, key=lambda method: times[method])
    return [f"A batch of 8 takes at most {times[worst]:.1f} times as long as one sample (`{worst}`).", ""]


def _cost(row: dict[str, Any] | None, method: str, batch: int, step: float) -> str:
    if row is None:
        return "- | - | - | -"
    if "error" in row:
        return "does not apply | - | - | -"
    limit, value = LIMITS.get(method), row["value"]
    shown = f"{value:.2f} ({row['low']:.2f} to {row['high']:.2f})" if row["repeats"] > 1 else f"{value:.2f}"
    shown = f"**{shown}**" if limit is not None and value > limit else shown
    return f"{shown} | {value / step:.2f} | {row['memory'] / row['base']:.2f} | {batch / row['seconds']:.3g}"


def _scaling(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A figure of what grows, and a table of targets."""
    if not rows:
        return []
    out = ["## How it grows", "", _figure(rows), "", TARGETS_TEXT]
    for name, words in (
        ("small", "6 layers, 384 wide, 128 tokens"),
        ("short", "BERT-base, 32 tokens"),
        ("base", "BERT-base, 128 tokens"),
    ):
        out += [f"**{words}**", "", "| targets | " + " | ".join(f"`{m}`" for m in METHODS) + " |"]
        out += ["|---|" + "---|" * len(METHODS)]
        for n in TARGETS:
            found = [rows.get(f"targets-{name}/{n}/{m}") for m in METHODS]
            out.append(f"| {n} | " + " | ".join("-" if r is None else f"{r['value']:.2f}" for r in found) + " |")
        out.append("")
    return out


def _figure(rows: dict[str, dict[str, Any]]) -> str:
    """Time and memory against what grows; returns the line that shows the figure. Without rows it stays as it is."""
    line = "![time and memory against the length, the batch and the layers](performance/scaling.png)"
    if not any(key.split("/")[0] in GROWING for key in rows):
        return line if (FIGURES / "scaling.png").exists() else ""
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
    figure.savefig(FIGURES / "scaling.png", dpi=130)
    plt.close(figure)
    return line


def _length(rows: dict[str, dict[str, Any]]) -> list[str]:
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
GPU, float32. A time is a multiple of **one plain forward and one backward to the input** of the same model on the same
input, parameters needing no gradient; the baseline is run before and after each call, and the median of the ratios is
given, with the extremes. A training step also makes the gradients of the weights; "of a step" is the time as a
multiple of one (without its optimiser).
"""
COSTS = """Memory is the growth of the resident set during a call, as a multiple of the baseline's. Bold: more than we
hold ourselves to. Methods that run the model many times are measured for one sample, those that run it more often the
more tokens there are on the shortest input alone.

What a method with one backward takes beyond the baseline is, for one short text, mostly Python: BERT-base has some 260
operations, and each is looked at (what kind it is, where its axes come from, what its bias takes). Of a batch, or of a
longer input, it is a smaller part. `transformer-attribution` makes five products where the baseline makes two.
"""
TARGETS_TEXT = """**Several targets** of one input (`whence.every`), as multiples of one: the forward is shared, and the
backwards go together. One forward and ten backwards are 5.5 times one of each: less than that is what is saved.
"""
LENGTH = """A 6-layer, 384-wide BERT with fused attention, batch 1; each case in a process of its own, growth of its
largest resident set. Input-level methods keep the kernel fused; methods of maps have those of one layer, or of some of
its heads, in memory. Checkpoints keep a part of what the backward needs, and give free pages back to the system.
"""
PEERS = """The same weights, input and target, in one process; times as above, memory as growth in MiB. Where the method
is the same, the numbers have to agree.
"""
