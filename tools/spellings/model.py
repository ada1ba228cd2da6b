"""The model: a pre-norm Transformer encoder of ids or images, whose parts are the spellings of a case."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tools.spellings.attentions import Branch, Projections
from tools.spellings.case import SLOTS, Case
from tools.spellings.heads import Dense

WIDTH, HIDDEN, HEADS, VOCABULARY, CLASSES = 24, 32, 4, 40, 3
TOKENS, PATCH, IMAGE = 9, 2, (6, 8)
GROUPS = {"grouped": 2, "multi-query": 1}


class Block(nn.Module):
    """The weights of one block, for the heads of keys and values that its attention has and a gated MLP or not."""

    def __init__(self, groups: int, gated: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, WIDTH + 2 * groups * (WIDTH // HEADS)), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * HIDDEN if gated else HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)


class Net(nn.Module):
    """The encoder of a case, in float64; two cases of the same ``weights`` have the same weights."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.table = nn.Parameter(torch.empty(VOCABULARY, WIDTH))
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.empty(1, WIDTH))
        patches = (IMAGE[0] // PATCH) * (IMAGE[1] // PATCH)
        self.positions = nn.Parameter(torch.empty(TOKENS if case.reads == "ids" else patches + 1, WIDTH))
        self.groups = GROUPS.get(case.kind("attention"), HEADS)
        self.blocks = nn.ModuleList(Block(self.groups, case.has("gate")) for _ in range(case.blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.dense, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.parts = {slot: case.spelled(slot) for slot in SLOTS}
        self._initialise()

    def _initialise(self) -> None:
        draw = torch.Generator().manual_seed(100 + self.case.weights)
        self.double().eval()
        for name, p in self.named_parameters():
            noise = torch.randn(p.shape, generator=draw, dtype=torch.float64)
            of_norm = "norm" in name and name.endswith("weight")
            p.data = 1 + 0.2 * noise if of_norm else 0.3 * noise

    def part(self, slot: str, i: int = 0) -> Any:
        """Return the spelling that block ``i`` uses."""
        chosen = self.parts[slot]
        return chosen[i % len(chosen)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits ``[batch, classes]``."""
        with self.part("rewrite")():
            x = self.part("position")(self._embedded(inputs), self.positions)
            x, undo = self._moved(x, "blocks", "tracked")
            for i, block in enumerate(self.blocks):
                x = self._block(i, block, x)
            x = self.part("norm", len(self.blocks))(x, self.norm.weight, self.norm.bias)
            x = self._tracked(x, undo) if self.case.kind("reordering") == "tracked" else undo(x)
            dense = Dense(self.dense.weight, self.dense.bias, self.part("linear"))
            pooled = self.part("head")(x, self.part("pool"), dense)
            return self.part("linear")(pooled, self.classifier.weight, self.classifier.bias)

    def _embedded(self, inputs: Tensor) -> Tensor:
        if self.case.reads == "ids":
            ids, undo = self._moved(inputs, "inputs")
            return undo(self.part("embedding")(ids, self.table))
        x, undo = self._moved(self.part("patches")(inputs, self.patch.weight, self.patch.bias), "inputs")
        return self.part("class-token")(undo(x), self.class_token[0])

    def _moved(self, x: Tensor, *kinds: str) -> Any:
        reorder = self.part("reordering")
        return reorder(x) if self.case.kind("reordering") in kinds and self.case.has("reordering") else (x, lambda y: y)

    def _tracked(self, x: Tensor, undo: Any) -> Tensor:
        """Return the token that is pooled, ``[batch, 1, width]``, from where it was moved; all of them for a mean."""
        pool = self.case.kind("pool")
        if pool == "mean":
            return x
        places = undo(torch.arange(x.shape[1], dtype=x.dtype)[None, :, None].expand(len(x), -1, 1))
        place = places[:, 0 if pool == "first" else -1, 0].round().long()
        return x[torch.arange(len(x)), place].unsqueeze(1)

    def _block(self, i: int, block: Any, x: Tensor) -> Tensor:
        norm, linear, add = self.part("norm", i), self.part("linear", i), self.part("residual", i)
        y, undo = self._moved(norm(x, block.norm_1.weight, block.norm_1.bias), "attention")
        branch = self.part("attention", i)(y, self._projections(block, linear))
        x = add(x, Branch(undo(branch.inputs), branch.weight, branch.bias, linear))
        y = norm(x, block.norm_2.weight, block.norm_2.bias)
        return add(x, Branch(self._hidden(i, block, y), block.down.weight, block.down.bias, linear))

    def _hidden(self, i: int, block: Any, y: Tensor) -> Tensor:
        act = self.part("gate" if self.case.has("gate") else "activation", i)
        return act(self.part("linear", i)(y, block.up.weight, block.up.bias))

    def _projections(self, block: Any, linear: Any) -> Projections:
        qkv, out = block.qkv, block.out
        return Projections(qkv.weight, qkv.bias, out.weight, out.bias, HEADS, self.groups, linear)


def inputs(case: Case) -> Tensor:
    """Return a batch of two: ids ``[2, 9]`` or images ``[2, 3, 6, 8]``."""
    draw = torch.Generator().manual_seed(1 + case.weights)
    if case.reads == "ids":
        return torch.randint(0, VOCABULARY, (2, TOKENS), generator=draw)
    return torch.randn(2, 3, *IMAGE, generator=draw, dtype=torch.float64)
