"""The same checks on models of timm: ``make conformance-timm``.

timm brings torchvision and the newest torch, several gigabytes, so it has an environment of its own (``.venv-timm``)
and no part in CI. Each model is of timm's own class, small where timm lets it be, and with random weights; nothing is
downloaded. Exit code 1 if a check fails. With ``--write`` the table goes to ``docs/architectures-timm.md`` (if all
models were run).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import whence
from tools.conformance.checks import row
from tools.conformance.family import Family, pixels
from tools.conformance.table import table

TABLE = Path(__file__).resolve().parents[2] / "docs" / "architectures-timm.md"
HEAD = """# Architectures of timm

Made by `make conformance-timm`, not by hand: a small seeded model of each of timm's classes, its weights random, with
every method ({count} models; torch {torch}, timm {timm}).
"""


class Model(NamedTuple):
    """A model of timm.

    Attributes:
        group: the heading under which it stands.
        options: what makes it small.
        attentions: how many it has, counted by hand from its configuration.
        tokens: how many enter its first attention; of a model without one, or of which a part of the picture goes
            round it, pixels.
        note: what a reader of the table should know.
    """

    group: str
    options: Mapping[str, Any]
    attentions: int
    tokens: int
    note: str = ""


PLAIN, STAGES, NONE = "One set of tokens", "Stages, windows, convolutions", "No attention"
SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 32, "num_heads": 4, "img_size": 32, "patch_size": 8}  # 16 patches
FOUR: dict[str, Any] = {"depths": (2, 1, 1, 1), "embed_dim": 16, "num_heads": (2, 2, 2, 2), "img_size": 64}

MODELS: dict[str, Model] = {
    "vit_tiny_patch16_224": Model(PLAIN, SMALL, 2, 17),
    "vit_small_patch14_reg4_dinov2": Model(PLAIN, SMALL, 2, 21, "[CLS], 4 registers"),
    "vit_small_patch16_dinov3": Model(PLAIN, SMALL, 2, 21, "[CLS], 4 registers; rotated positions"),
    "vit_base_patch16_siglip_224": Model(PLAIN, SMALL, 3, 16, "the last attention reads all tokens at the end"),
    "vit_small_patch16_18x2_224": Model(PLAIN, SMALL, 4, 17, "two attentions side by side in each block"),
    "vit_pwee_patch16_reg1_gap_256": Model(PLAIN, SMALL, 2, 17, "attention and MLP side by side; a register, a mean"),
    "vit_relpos_small_patch16_224": Model(PLAIN, SMALL, 2, 16, "relative positions, a mean"),
    "deit_tiny_distilled_patch16_224": Model(PLAIN, SMALL, 2, 18, "[CLS] and a distillation token"),
    "deit3_small_patch16_224": Model(PLAIN, SMALL, 2, 17),
    "beit_base_patch16_224": Model(PLAIN, SMALL, 2, 17),
    "eva02_tiny_patch14_224": Model(PLAIN, SMALL, 2, 17),
    "cait_xxs24_224": Model(PLAIN, SMALL, 4, 16, "two talking heads; [CLS] comes late and looks at all, twice"),
    "xcit_nano_12_p16_224": Model(
        PLAIN, SMALL | {"patch_size": 16, "img_size": 64}, 4, 16, "two over features (cross-covariance); [CLS] as CaiT"
    ),
    "swin_tiny_patch4_window7_224": Model(
        STAGES, FOUR | {"window_size": 4}, 5, 256, "the second attention is in shifted windows"
    ),
    "swinv2_tiny_window8_256": Model(
        STAGES, FOUR | {"window_size": 4}, 5, 256, "the second attention is in shifted windows"
    ),
    "pvt_v2_b0": Model(
        STAGES, {"depths": (1, 1, 1, 1), "embed_dims": (16, 16, 20, 16)}, 4, 256, "keys are merged tokens"
    ),
    "maxvit_rmlp_pico_rw_256": Model(STAGES, {"img_size": 64}, 22, 256, "11 blocks, each with windows and a grid"),
    "tiny_vit_5m_224": Model(STAGES, {"depths": (1, 1, 1, 1)}, 3, 64, "the first stage is convolutions"),
    "levit_128s": Model(STAGES, {"img_size": 128}, 11, 64, "9 blocks, and 2 attentions that shrink the picture"),
    "coatnet_pico_rw_224": Model(STAGES, {"img_size": 64}, 7, 16, "behind two stages of convolutions; features first"),
    "mobilevit_xxs": Model(STAGES, {"img_size": 64}, 9, 4096, "read at pixels, as convolutions go round attention"),
    "mixer_s16_224": Model(NONE, {"img_size": 32}, 0, 1024),
    "convnext_atto": Model(NONE, {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)}, 0, 4096),
}


def build(implementation: str, *, name: str, options: Mapping[str, Any]) -> nn.Module:
    """A model of timm, with attention written out or fused."""
    import timm

    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=3, **options)
    with torch.no_grad():
        for p in model.parameters():  # also scales, which begin as almost nothing, and biases, which begin as nothing
            if p.dim() > 1:
                p.normal_(0, p[0].numel() ** -0.5)
            else:
                p.uniform_(0.1, 1)
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
    """A model of timm as a family."""
    of = MODELS[name]
    made = partial(build, name=name, options=of.options)
    both = any(hasattr(module, "fused_attn") for module in made("sdpa").modules())
    return Family(
        name, of.group, lambda kind: Named(made(kind)), partial(pixels, size=int(of.options.get("img_size", 64))),
        of.attentions, {"image": of.tokens}, first, ("eager", "sdpa") if both else ("eager",), note=of.note,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run, print, perhaps write, and say whether all passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for name in options.only:
        start = time.time()
        found = row(family(name), sorted(whence.list_methods()))
        applied = sum(not why for why in found.methods.values())
        seen = f"{found.seen.get('attentions', '?')} attentions, {found.seen.get('streams', '?')}"
        said = "; ".join(found.failed) or "passed"
        print(f"{name:<34} {seen:<28} {applied:>3} methods {time.time() - start:6.1f} s  {said}", flush=True)
        rows.append(found)
    if options.write and len(rows) == len(MODELS):
        import timm

        versions = {"torch": torch.__version__, "timm": timm.__version__}
        TABLE.write_text(table(rows, HEAD.format(count=len(rows), **versions)))
    return int(any(found.failed for found in rows))


if __name__ == "__main__":
    sys.exit(main())
