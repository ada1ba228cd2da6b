"""The same checks on models of timm: ``make conformance-timm``.

timm brings torchvision and the newest torch, several gigabytes, so it has an environment of its own (``.venv-timm``)
and no part in CI. Each model is of timm's own class, two blocks deep and with random weights; nothing is downloaded.
Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import whence
from conformance.checks import row
from conformance.family import Family, pixels

SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 32, "num_heads": 4, "img_size": 32}
STAGES: dict[str, Any] = {"depths": (1, 1, 1, 1), "embed_dim": 16, "num_heads": (2, 2, 2, 2), "img_size": 64}

#: model -> its options, how many attentions it has (counted by hand), the number of its tokens (``None``: not asked)
MODELS: dict[str, tuple[Mapping[str, Any], int, int | None]] = {
    "vit_tiny_patch16_224": (SMALL | {"patch_size": 8}, 2, 17),
    "vit_small_patch14_reg4_dinov2": (SMALL | {"patch_size": 8}, 2, 21),
    "vit_base_patch16_siglip_224": (SMALL | {"patch_size": 8}, 3, 16),  # and the attention that reads all in the end
    "vit_small_patch16_18x2_224": (SMALL | {"patch_size": 8}, 4, 17),  # two attentions side by side
    "deit_tiny_distilled_patch16_224": (SMALL | {"patch_size": 8}, 2, 18),
    "deit3_small_patch16_224": (SMALL | {"patch_size": 8}, 2, 17),
    "beit_base_patch16_224": (SMALL | {"patch_size": 8}, 2, 17),
    "eva02_tiny_patch14_224": (SMALL | {"patch_size": 8}, 2, 17),
    "cait_xxs24_224": (SMALL | {"patch_size": 8}, 4, None),  # two of them look from [CLS] at all
    "swin_tiny_patch4_window7_224": (STAGES | {"window_size": 2}, 4, None),
    "pvt_v2_b0": ({"depths": (1, 1, 1, 1), "img_size": 64}, 4, None),
    "mixer_s16_224": ({"num_blocks": 2, "embed_dim": 32, "patch_size": 8, "img_size": 32}, 0, None),
    "convnext_atto": ({"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)}, 0, None),
}


def build(implementation: str, *, name: str, options: Mapping[str, Any]) -> nn.Module:
    """A model of timm, with attention written out or fused."""
    import timm

    options = {k: v for k, v in options.items() if k != "img_size" or not name.startswith(("convnext", "pvt"))}
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=3, **options)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.2)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = implementation == "sdpa"
    return model


def first(outputs: Tensor) -> Tensor:
    """A class."""
    return outputs[:, 1]


class Named(nn.Module):
    """timm calls its input ``x``; here it has the name that the checks give it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: Tensor) -> Tensor:
        """``[batch, classes]``."""
        out: Tensor = self.inner(pixel_values)
        return out


def family(name: str) -> Family:
    """A model of timm as a family; streams that are not asked for are those that are found."""
    options, attentions, tokens = MODELS[name]
    size = int(options.get("img_size", 64))
    fused = ("eager", "sdpa") if attentions else ("eager",)
    return Family(
        name, "timm", lambda kind: Named(build(kind, name=name, options=options)), partial(pixels, size=size),
        attentions, {"image": tokens} if tokens else {}, first, fused,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and say whether all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    failed = False
    for name in options.only:
        start, one = time.time(), family(name)
        found = row(one, sorted(whence.methods()))
        wrong = [line for line in found.failed if one.streams or not line.startswith("streams")]
        applied = sum(not why for why in found.methods.values())
        seen = f"{found.seen.get('attentions', '?')} attentions, {found.seen.get('streams', '?')}"
        print(
            f"{name:<34} {seen:<36} {applied:>3} methods {time.time() - start:6.1f} s  {'; '.join(wrong) or 'passed'}"
        )
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
