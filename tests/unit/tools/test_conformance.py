"""The conformance matrix in small: families of every group, the cheap methods. All of it: ``make conformance``."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import whence
from tools.conformance import (
    captured,
    families,  # noqa: F401  # adds them
)
from tools.conformance.checks import CHEAP, Row, row
from tools.conformance.family import FAMILIES
from tools.conformance.run import cells, regressions
from tools.conformance.timm_matrix import MODELS, main
from whence.explainer.captured import Capture

SAMPLE = [
    "BERT", "GPT-2", "T5", "ViT", "DETR", "Wav2Vec2", "CLIP", "LLaVA", "FLAVA", "PatchTST", "TAPAS", "nn.Transformer",
    "Handwritten, einsum and fused", "Llama 4", "Mamba-2", "Perceiver", "Hiera", "RT-DETR", "Falcon",
]  # fmt: skip
#: one of each kind: of gradients, of maps, of relevance
METHODS = [*CHEAP, "lrp", "transformer-attribution"]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_family_passes_its_checks(name):
    found = row(FAMILIES[name], METHODS)
    assert not found.failed
    assert set(found.methods) == set(METHODS)


@pytest.mark.parametrize(
    "name", ["TimeSformer", "RWKV", "Mask2Former", "NLLB-MoE", "LED", "Nyströmformer", "Longformer"]
)
def test_regions_and_attentions_are_as_many_as_the_model_has(name):
    found = row(FAMILIES[name], [])
    assert found.passed["attentions"]
    assert found.passed["regions"]


def test_every_group_is_among_them():
    assert {FAMILIES[name].group for name in SAMPLE} == {family.group for family in FAMILIES.values()}


def test_a_cell_that_is_lost_is_told():
    found = Row(FAMILIES["BERT"])
    found.check("batch", False, "differs")
    found.methods = {"rollout": "", "legrad": "It refuses."}
    found.passed["padding"] = None
    assert cells(found) == ["method rollout"]
    before = {"BERT": ["batch", "method legrad", "method rollout"]}
    assert regressions([found], before) == ["BERT: batch passed before", "BERT: method legrad passed before"]
    assert regressions([found], {}) == []


class Patches(nn.Module):
    """What timm's ViT looks like from outside."""

    class Block(nn.Module):
        fused_attn = True

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.norm = heads, nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            if self.fused_attn:
                y = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                y = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
            return x + self.proj(y.transpose(1, 2).flatten(2))

    def __init__(self, depth: int, embed_dim: int, num_heads: int, patch_size: int, num_classes: int, **_) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, embed_dim, patch_size, patch_size)
        self.cls, self.head = nn.Parameter(torch.zeros(1, 1, embed_dim)), nn.Linear(embed_dim, num_classes)
        self.blocks = nn.Sequential(*(self.Block(embed_dim, num_heads) for _ in range(depth)))

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        return self.head(self.blocks(torch.cat([self.cls.expand(len(x), -1, -1), x], 1))[:, 0])


def test_the_matrix_of_timm_does_what_it_says(monkeypatch, capsys):
    """timm itself is not installed here."""
    stub = ModuleType("timm")
    stub.create_model = lambda name, pretrained, **options: Patches(**options)
    monkeypatch.setitem(sys.modules, "timm", stub)
    every = whence.list_methods()
    monkeypatch.setattr(whence, "methods", lambda: {name: every[name] for name in CHEAP})
    assert main(["--only", "vit_tiny_patch16_224"]) == 0
    assert "2 attentions, image 17" in capsys.readouterr().out
    monkeypatch.setitem(MODELS, "vit_tiny_patch16_224", MODELS["vit_tiny_patch16_224"]._replace(attentions=5))
    assert main(["--only", "vit_tiny_patch16_224"]) == 1
    assert "5 expected" in capsys.readouterr().out


def test_captured_explanations_are_compared_with_usual_ones(monkeypatch):
    assert captured.outcome(FAMILIES["BERT"], "attn-lrp") == "replayed"
    assert captured.outcome(FAMILIES["BERT"], "occlusion").startswith("not captured: ")
    assert captured.outcome(FAMILIES["BERT"], "dave") == ""
    usual = Capture.replay

    def slightly(self, inputs):
        found = usual(self, inputs)
        for one in found:
            one.explanation.scores.mul_(1.01)
        return found

    monkeypatch.setattr(Capture, "replay", slightly)
    assert captured.outcome(FAMILIES["BERT"], "attn-lrp") == "DIFFERENT by 1e-02"
