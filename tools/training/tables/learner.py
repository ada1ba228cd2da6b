"""What the training loop needs of a model, whatever it reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Learner(Protocol):
    """A model with the way from raw inputs to its arguments.

    Attributes:
        model: a stock HuggingFace class.
        card: what there is to say of the model in its README.
    """

    model: nn.Module
    card: str

    def encode(self, raw: Any) -> Any:
        """One raw input, ready to be put into a batch; its `len` says what goes together."""

    def batch(self, encoded: Sequence[Any], rng: random.Random | None) -> dict[str, Tensor]:
        """The model's arguments; varied at random if `rng` is given, for training."""

    def save(self, directory: Path) -> None:
        """Write the model and what reads raw inputs for it."""


def without_mlp(model: nn.Module) -> None:
    """Make and keep every MLP nothing: its output is zero, and the norms of BERT's blocks have no weights.

    BERT's stock block norms twice, after the attention and after the MLP. With an MLP of zero and plain norms, the
    second finds its input already normed and changes nothing, so a block is `norm(x + attention(x))`, as in Ali et al.
    """
    for name, parameter in model.named_parameters():
        inner = ".intermediate." in name or ".mlp." in name
        last = name.split(".encoder.layer.")[-1].split(".", 1)[-1]
        norm = last.startswith(("attention.output.LayerNorm", "output.LayerNorm"))
        if inner or last.startswith("output.dense"):
            parameter.data.zero_()
        elif norm:
            parameter.data.fill_(1.0 if name.endswith("weight") else 0.0)
        if inner or norm or last.startswith("output.dense"):
            parameter.requires_grad_(False)


def masked(ids: Tensor, special: Tensor, mask: int, share: float, rng: random.Random) -> Tensor:
    """Ids [batch, tokens] of which a share, none of the special ones, is the mask."""
    drawn = torch.rand(ids.shape, generator=torch.Generator().manual_seed(rng.getrandbits(40)))
    return torch.where((drawn < share) & ~special, mask, ids)


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of ids filled up to one length, and the attention mask: both int64 [batch, tokens]."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
