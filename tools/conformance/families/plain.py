"""Models of plain torch: torch's own layers, and Transformers written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor, nn

from tools.conformance.families.multimodal import stirred
from tools.conformance.family import PADDED_TEXT, VOCABULARY, Inputs, add, ids, text

GROUP = "Plain torch"


def first(outputs: Tensor) -> Tensor:
    """A class of a classifier that returns a tensor."""
    return outputs[:, 1]


class Encoder(nn.Module):
    """``nn.TransformerEncoder``, batch first or sequence first, pre- or post-norm."""

    def __init__(self, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=batch_first, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``[batch, classes]``."""
        x, padding = self.embed(input_ids), attention_mask == 0
        if self.batch_first:
            return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])
        return self.head(self.encoder(x.transpose(0, 1), src_key_padding_mask=padding)[0])


class Translator(nn.Module):
    """``nn.Transformer``."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 3)
        self.inner = nn.Transformer(16, 4, 2, 2, 24, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """``[batch, classes]``."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.inner(self.embed(source), self.embed(target), tgt_mask=mask)[:, -1])


class ByHand(nn.Module):
    """Two blocks with an attention of one's own."""

    def __init__(self, attention: Callable[[nn.Module, Tensor], Tensor], extra: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.attention = attention
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(extra() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)) for _ in range(2))

    def forward(self, input_ids: Tensor) -> Tensor:
        """``[batch, classes]``."""
        x = self.embed(input_ids)
        for i in range(2):
            x = x + self.attention(self.blocks[i], self.norms[2 * i](x))
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


def multi_head(layer: nn.Module, x: Tensor) -> Tensor:
    """``nn.MultiheadAttention``."""
    out: Tensor = layer(x, x, x, need_weights=False)[0]
    return out


def einsum(layer: nn.Module, x: Tensor) -> Tensor:
    """Attention in einsums, queries, keys and values in one projection."""
    q, k, v = (t.unflatten(-1, (4, 4)) for t in layer[0](x).chunk(3, -1))
    p = (torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(4)).softmax(-1)
    out: Tensor = layer[1](torch.einsum("bhqk,bkhd->bqhd", p, v).flatten(2))
    return out


def fused(layer: nn.Module, x: Tensor) -> Tensor:
    """Attention by torch's fused kernel."""
    q, k, v = layer[0](x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
    out: Tensor = layer[1](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return out


def projections() -> nn.Module:
    """Queries, keys and values in one; what was read."""
    return nn.Sequential(nn.Linear(16, 48), nn.Linear(16, 16))


def plain(implementation: str, *, make: Callable[[], nn.Module]) -> nn.Module:
    """A model that has no implementations to choose from."""
    return stirred(make())


for name, options in {
    "nn.TransformerEncoder": (True, False),
    "nn.TransformerEncoder, pre-norm": (True, True),
    "nn.TransformerEncoder, sequence first": (False, False),
}.items():
    add(
        name, GROUP, attentions=2, streams={"text": 7}, inputs=text, target=first, implementations=("eager",),
        **PADDED_TEXT,
        build=partial(plain, make=partial(Encoder, *options)),
    )  # fmt: skip


def sentences(samples: int) -> Inputs:
    """Two texts."""
    return {"source": ids(samples), "target": ids(samples, 5)}


add(
    "nn.Transformer", GROUP, attentions=6, streams={"encoder": 7, "decoder": 5}, inputs=sentences, target=first,
    implementations=("eager",), build=partial(plain, make=Translator),
)  # fmt: skip
add(
    "nn.MultiheadAttention, blocks by hand", GROUP, attentions=2, streams={"text": 7}, target=first,
    inputs=lambda n: {"input_ids": ids(n)}, implementations=("eager",),
    build=partial(plain, make=partial(ByHand, multi_head, partial(nn.MultiheadAttention, 16, 4, batch_first=True))),
)  # fmt: skip


def either(implementation: str) -> nn.Module:
    """The same model, with its attention in einsums or fused."""
    return stirred(ByHand(einsum if implementation == "eager" else fused, projections))


add(
    "Handwritten, einsum and fused", GROUP, attentions=2, streams={"text": 7}, target=first, build=either,
    inputs=lambda n: {"input_ids": ids(n)},
)  # fmt: skip
