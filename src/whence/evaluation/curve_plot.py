"""Figures of the measured curves."""

from __future__ import annotations

import math
from pathlib import Path

from .._utils.optional_imports import need
from .results import Evaluation

COLUMNS = 3


def save_curves(found: Evaluation, directory: str | Path) -> list[Path]:
    """Draw the mean curve of every method, one panel per measure, to ``curves.png`` and ``curves.svg``.

    Returns:
        The files; none if no measure is a curve.

    Example:
        >>> save_curves(found, "results/sst2")
    """
    panels = [name for name in found.measures if any(found.curve(m, name) is not None for m in found.methods)]
    if not panels:
        return []
    need("matplotlib", "figures", "figures").use("Agg")
    plt = need("matplotlib.pyplot", "figures", "figures")
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.4 * columns, 3.4 * rows), squeeze=False)
    colours = [*plt.get_cmap("tab10").colors, *plt.get_cmap("tab20").colors[1::2]]
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, panels, strict=False):
        for i, method in enumerate(found.methods):
            curve = found.curve(method, name)
            if curve is not None:
                axis.plot(*curve, label=method, color=colours[i % 20], linestyle="-" if i < 20 else "--", linewidth=1.4)
        better = {True: "higher is better", False: "lower is better", None: ""}[found.measures[name].higher]
        axis.set_title(f"{name} ({better})", fontsize=10)
        axis.set_xlabel(found.measures[name].along, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=8, frameon=False, bbox_to_anchor=(0.5, 0.0))
    lines = math.ceil(len(labels) / 4)
    figure.tight_layout(rect=(0, (0.05 + 0.2 * lines) / (3.4 * rows), 1, 1))
    paths = [Path(directory) / f"curves.{ending}" for ending in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return paths
