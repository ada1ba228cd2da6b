"""Explain a few cases of each trained model and say how much relevance lies where it should.

    python -m tools.training.relations.sanity [--count 20] [--seed 0] [--kinds vqa clip detr]

Per method, kind of case and modality: the share of relevance (positive part) on the true patches or words, and the
share of these among all patches or words, which is what a map without knowledge would have.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

import whence
from tools.training.relations.cases import CLASSES, Case, cases, load

METHODS = ("generic-attention", "conservative-lrp")


def shares(scores: Tensor, true: Tensor) -> tuple[float, float]:
    """The share of positive scores [positions] on the true ones, and the share of the true ones among all."""
    positive = scores.clamp(min=0)
    return float(positive[true].sum() / positive.sum().clamp(min=1e-12)), float(true.float().mean())


def measure(case: Case, streams: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Shares by modality, where something of it is known to matter; special tokens of texts are left out."""
    found = {}
    if case.patches.any():
        found["image"] = shares(streams["image"][0, -len(case.patches) :], case.patches)
    if case.words.any():
        found["text"] = shares(streams["text"][0, 1:-1], case.words[1:-1])
    return found


def main() -> None:
    """Print a line for each model, method and modality."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(CLASSES), choices=list(CLASSES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for kind in arguments.kinds:
        model = load(kind)
        chosen = list(cases(kind, arguments.count, arguments.seed, model))
        print(f"{kind}: {np.mean([case.right for case in chosen]):.0%} of {len(chosen)} right")
        for method in METHODS:
            found = defaultdict(list)
            for case in chosen:
                e = whence.explain(model, case.inputs, method, case.target)
                for modality, pair in measure(case, e.streams).items():
                    found[case.kind, modality].append(pair)
            for (asked, modality), pairs in sorted(found.items()):
                mass, area = np.mean(pairs, axis=0)
                print(f"  {method:18} {asked:9} {modality:6} {mass:.3f} on {area:.3f} ({len(pairs)} cases)")


if __name__ == "__main__":
    main()
