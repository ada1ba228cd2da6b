"""Heads switched off: how far the logit of the predicted class falls without the k strongest, weakest and random heads.

python -m tools.benchmarks.heads [--texts 200]   (prints a table for docs/inside.md; needs shared data and weights)
"""

from __future__ import annotations

import argparse
import os
from itertools import islice
from pathlib import Path

import torch

import whence
from whence.datasets import load
from whence.models import MODELS

SHARED = Path(os.environ.get("WHENCE_SHARED", Path(__file__).parents[3] / "shared"))
NAMED = {
    "sentiment (4 x 4 heads)": MODELS / "sentiment",
    "minilm_l6_sst2 (6 x 12 heads)": SHARED / "weights/minilm_l6_sst2",
}
METHODS = ("conservative-lrp", "attn-lrp", "gradient-x-input", "generic-attention")


def fall(explainer: whence.Explainer, texts: list[str], method: str, share: float, generator: torch.Generator) -> str:
    """Mean fall of the logit without a share of the heads: the strongest, random ones, the weakest."""
    found = torch.zeros(3)
    for text in texts:
        inputs = explainer.read(text).tensors
        e = explainer(text, method)
        heads = e.heads[0].flatten()
        k = max(1, round(share * len(heads)))
        orders = heads.argsort(descending=True), torch.randperm(len(heads), generator=generator), heads.argsort()
        for i, order in enumerate(orders):
            chosen = [divmod(int(at), e.heads.shape[2]) for at in order[:k]]
            after = whence.without(explainer.model, inputs, heads=chosen).logits[0, int(e.target)]
            found[i] += (e.value[0] - after) / len(texts)
    return " | ".join(f"{value:+.2f}" for value in found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200)
    options = parser.parse_args()
    texts = [str(item.input) for item in islice(load("sst2", root=SHARED / "data", split="dev"), options.texts)]
    print("| model | heads off | method | strongest | random | weakest |\n|---|---|---|---|---|---|")
    for name, path in NAMED.items():
        explainer = whence.Explainer.from_pretrained(path)
        for share in (0.1, 0.25):
            for method in METHODS:
                row = fall(explainer, texts, method, share, torch.Generator().manual_seed(0))
                print(f"| {name} | {share:.0%} | `{method}` | {row} |", flush=True)


if __name__ == "__main__":
    main()
