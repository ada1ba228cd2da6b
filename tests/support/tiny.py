"""Tiny seeded models of every shape that the tests need."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

import whence

#: those that run the model once; the others repeat what gradient-x-input does, and have tests of their own
METHODS = sorted(name for name, method in whence.list_methods().items() if method.forwards == 1)
VOCABULARY = 60


def bert(layers: int = 2, heads: int = 4, implementation: str = "sdpa", seed: int = 0, **more) -> nn.Module:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=8 * heads, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=24, max_position_embeddings=40, num_labels=3, pad_token_id=0, initializer_range=0.3,
        attn_implementation=implementation, **more,
    )  # fmt: skip
    return BertForSequenceClassification(config).eval()


def vit(layers: int = 2, heads: int = 4, implementation: str = "sdpa", seed: int = 0, **more) -> nn.Module:
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=8 * heads, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=24,
        image_size=12, patch_size=4, num_labels=3, initializer_range=0.3, attn_implementation=implementation, **more,
    )  # fmt: skip
    return ViTForImageClassification(config).eval()


def llama(
    layers: int = 2, heads: int = 4, implementation: str = "sdpa", seed: int = 0, classify: bool = False
) -> nn.Module:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8 * heads, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2), intermediate_size=24, max_position_embeddings=40, num_labels=3,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3, attn_implementation=implementation,
    )  # fmt: skip
    return (LlamaForSequenceClassification if classify else LlamaForCausalLM)(config).eval()


def gpt2(layers: int = 2, heads: int = 4, implementation: str = "sdpa", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=8 * heads, n_layer=layers, n_head=heads, n_positions=40, bos_token_id=1,
        eos_token_id=2, initializer_range=0.3, attn_implementation=implementation,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def mixtral(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, num_local_experts=4, num_labels=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        max_position_embeddings=40, initializer_range=0.3,
    )  # fmt: skip
    return MixtralForSequenceClassification(config).eval()


class Encoder(nn.Module):
    """``nn.TransformerEncoder`` as people wrap it: sequence first or batch first, pre- or post-norm."""

    def __init__(self, batch_first: bool = True, norm_first: bool = False, activation: str = "gelu", layers: int = 2):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 24, batch_first=batch_first, norm_first=norm_first, activation=activation
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=batch_first and not norm_first)
        self.head = nn.Linear(32, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        padding = None if attention_mask is None else attention_mask == 0
        if not self.batch_first:
            return self.head(self.encoder(x.transpose(0, 1), src_key_padding_mask=padding)[0])
        return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])


class Handwritten(nn.Module):
    """Packed qkv with chunk, einsum attention, an RMSNorm, a QuickGELU and a gate written out, mean pooling."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = blocks
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(32, 32)
        self.head = nn.Linear(32, 3)
        self.gain = nn.Parameter(torch.ones(32))

    def norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for _ in range(self.blocks):
            q, k, v = (t.unflatten(-1, (4, 8)) for t in self.qkv(self.norm(x)).chunk(3, -1))
            a = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5).softmax(-1)
            x = x + self.out(torch.einsum("bhqk,bkhd->bqhd", a, v).flatten(2))
            g, u = self.up(self.norm(x)).chunk(2, -1)
            x = x + self.down(g * torch.sigmoid(1.702 * g) * u)
        return self.head(x.mean(1))


def ids(batch: int = 3, length: int = 7, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(lengths: list[int], left: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """A padded batch: ids, mask and the positions that make left padding the same as none."""
    width = max(lengths)
    tokens = ids(len(lengths), width, seed)
    at = torch.arange(width)[None]
    n = torch.tensor(lengths)[:, None]
    mask = (at >= width - n) if left else (at < n)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    return {"input_ids": tokens * mask, "attention_mask": mask.long(), "position_ids": positions}


def pixels(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def no_biases(model: nn.Module) -> nn.Module:
    """The same model with every bias (also of the norms) at zero."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.zero_()
    return model
