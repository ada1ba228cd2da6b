"""How well masks and boxes fit: the tables of ``docs/localisation.md``.

python -m tools.benchmarks.localisation [--only pets digits detector] [--limit N]

Needs the shared data and weights (``WHENCE_SHARED``); the detector is made by ``make models``. What was measured stays
in ``build/bench/localisation.json`` and is not measured again; remove the file to begin anew.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whence
from tools.benchmarks.measurements import Measurements
from whence._utils.progress import track
from whence.datasets import load
from whence.evaluation.bootstrap import interval
from whence.evaluation.case import Floats
from whence.evaluation.measures.segmentation import IntersectionOverUnion
from whence.localisation import Detection, box_of, detect, largest, threshold_of
from whence.localisation.locate import locate
from whence.localisation.region import Box
from whence.localisation.segment import within
from whence.models import MODELS

PROJECT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("WHENCE_SHARED", PROJECT.parent / "shared"))

METHODS = [
    "generic-attention", "transformer-attribution", "conservative-lrp", "attn-lrp", "libragrad", "grad-cam", "rollout",
    "attention", "random",
]  # fmt: skip
THRESHOLDS: tuple[str | float, ...] = ("mean", "otsu", 0.1, 0.2)
ENOUGH = 0.5  # of the union: a box that overlaps this much has found its object
Measured = dict[str, list[Floats]]  # by threshold


def vector(found: torch.Tensor, truth: torch.Tensor, box: Box | None = None) -> Floats:
    """Intersection and union of the object, of the background, and the overlap of the boxes.

    Args:
        found: ``[H, W]``, bool.
        truth: ``[H, W]``: 1 the object, 0 the background, -1 not known.
        box: what was found, if it is not the box of the mask.
    """
    known, there = truth >= 0, truth > 0
    a, b = found[known], there[known]
    counts = [(a & b).sum(), (a | b).sum(), (~a & ~b).sum(), (~a | ~b).sum()]
    return np.array([*map(float, counts), overlap(box or box_of(found), box_of(there))])


def overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes."""
    across, down = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    areas = [(right - left) * (bottom - top) for left, top, right, bottom in (a, b)]
    return across * down / max(sum(areas) - across * down, 1e-9)


def masks(e: whence.Explanation) -> Iterator[tuple[str, torch.Tensor]]:
    """The mask by each threshold, and its largest part."""
    for threshold in THRESHOLDS:
        (region,) = locate(e, threshold)
        yield str(threshold), region.mask
        yield f"{threshold}, largest part", largest(region.mask)


# -- what is measured --------------------------------------------------------------------------------------------------


def pets(method: str, limit: int | None) -> Measured:
    """Photographs of pets, explained for the predicted class by a ViT-Ti that was trained on ImageNet."""
    explainer = whence.Explainer.from_pretrained(SHARED / "weights" / "vit_tiny_patch16_224_hf")
    items = list(itertools.islice(load("pets", root=SHARED / "data"), limit))
    explained = explainer.stream([item.input for item in items], method)
    out: Measured = {}
    for item, e in track(zip(items, explained, strict=True), len(items), f"pets, {method}"):
        truth = torch.from_numpy(np.asarray(item.mask()))
        for name, mask in masks(e):
            out.setdefault(name, []).append(vector(mask, truth))
    return out


def digits(method: str, limit: int | None) -> Measured:
    """Scenes of two digits, each explained by the model that comes with Whence."""
    from scenes import draw, load_mnist

    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    scenes = draw(load_mnist("t10k"), limit or 100, np.random.default_rng(0))
    out: Measured = {}
    for image, labels, truths in track(
        zip(scenes.images, scenes.labels, scenes.masks, strict=True), len(scenes.images), f"digits, {method}"
    ):
        each = explainer(image, method, whence.every(labels.tolist()))
        for e, truth in zip(each, truths, strict=True):
            for name, mask in masks(e):
                out.setdefault(name, []).append(vector(mask, torch.from_numpy(truth).int()))
    return out


def detector(method: str, limit: int | None) -> Measured:
    """Scenes of one to three digits, each that a small DETR finds (right class, half of the union shared)."""
    from relations.detr import draw
    from scenes import load_mnist

    explainer = whence.Explainer.from_pretrained(PROJECT / "build" / "models" / "scenes-detr")
    scenes = draw(load_mnist("t10k"), limit or 200, np.random.default_rng(0), training=False).scenes
    options: dict[str, Any] = {"readout": "full-grad"} if method == "libragrad" else {}  # its default does not apply
    out: Measured = {}
    for image, labels, truths in track(
        zip(scenes.images, scenes.labels, scenes.masks, strict=True), len(scenes.images), f"detector, {method}"
    ):
        found = detect(explainer, image)
        each = explainer(image, method, whence.every(one.logit for one in found), **options)
        for one, e in zip(found, each, strict=True):
            for truth in torch.from_numpy(truths[labels == one.category]).int():
                if overlap(one.box, box_of(truth > 0)) >= ENOUGH:
                    for name, mask in found_masks(one, e):
                        out.setdefault(name, []).append(vector(mask, truth))
                    box = within(one.box, truth)
                    out.setdefault("the detector's box, filled", []).append(vector(box, truth, one.box))
    return out


def found_masks(one: Detection, e: whence.Explanation) -> Iterator[tuple[str, torch.Tensor]]:
    """The mask of an object by each threshold, cut by the detector's box, and as the published code makes it."""
    for threshold in THRESHOLDS:
        (region,) = locate(e, threshold)
        yield str(threshold), region.mask
        yield f"{threshold}, cut", region.mask & within(one.box, region.mask)
    heat, (patches,) = e.heatmap(), e.patches
    cells = (patches > threshold_of(patches, "otsu")).float()[None, None]
    yield "otsu, as published", torch.nn.functional.interpolate(cells, heat.shape[1:], mode="bilinear")[0, 0] > 0


# -- the tables --------------------------------------------------------------------------------------------------------

MEASURES = {
    "mIoU": IntersectionOverUnion().finish,
    "pixel accuracy": lambda mean: (mean[..., 0] + mean[..., 2]) / (mean[..., 0] + mean[..., 3]),
    "IoU of the object": lambda mean: mean[..., 0] / mean[..., 1],
    "IoU of the boxes": lambda mean: mean[..., 4],
}
SHOWN = {
    "pets": ("mIoU", "pixel accuracy", "IoU of the boxes"),
    "digits": ("IoU of the object", "IoU of the boxes"),  # background is nearly all there is
    "detector": ("IoU of the object",),  # it draws better boxes than any mask has
}


def table(measure: str, found: dict[str, dict[str, list[list[float]]]]) -> str:
    """A row for each method, a column for each threshold: per cent, with half of the 95 % interval of a bootstrap."""
    finish, names = MEASURES[measure], next(iter(found.values()))
    out = [f"| {measure} | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for method, measured in found.items():
        cells = []
        for vectors in map(np.array, measured.values()):
            low, high = interval(vectors, finish, 2000, 0)
            cells.append(f"{100 * float(finish(vectors.mean(0))):.1f} ± {50 * (high - low):.1f}")
        out.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(out)


def main() -> None:
    """Measure what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--limit", type=int, help="the first pictures alone; nothing is made")
    options = parser.parse_args()
    made = Measurements("localisation")
    for name in options.only:
        found = {}
        for method in options.methods:
            key = f"{name}/{method}"
            if options.limit or key not in made:
                measured = {k: np.array(v).tolist() for k, v in DATA[name](method, options.limit).items()}
                if not options.limit:
                    made.add(key, measured)
            found[method] = measured if options.limit else made.rows[key]
        for measure in SHOWN[name]:
            print(f"\n{name}\n\n{table(measure, found)}", flush=True)


DATA = {"pets": pets, "digits": digits, "detector": detector}

if __name__ == "__main__":
    main()
