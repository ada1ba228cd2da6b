"""The models whose explanations are timed, with seeded random weights: cost does not depend on what was learned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

Inputs = dict[str, Tensor]


def vit(batch: int, layers: int = 12) -> tuple[nn.Module, Inputs]:
    """ViT-B/16, 197 tokens."""
    model = ViTForImageClassification(ViTConfig(num_labels=1000, num_hidden_layers=layers))
    return model, {"pixel_values": torch.randn(batch, 3, 224, 224)}


def tiny(batch: int) -> tuple[nn.Module, Inputs]:
    """BERT with 12 layers of width 32, 32 tokens: most of the time goes into starting operations, not arithmetic."""
    return bert(batch, tokens=32, width=32, heads=4)


def bert(batch: int, tokens: int = 128, layers: int = 12, width: int = 768, heads: int = 0) -> tuple[nn.Module, Inputs]:
    """BERT-base; without a number of heads, each is 64 wide."""
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads or width // 64,
        intermediate_size=4 * width, max_position_embeddings=max(512, tokens), num_labels=10,
    )  # fmt: skip
    ids = torch.randint(1000, 20000, (batch, tokens))
    return BertForSequenceClassification(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def llama(batch: int, tokens: int = 1024, layers: int = 12) -> tuple[nn.Module, Inputs]:
    """A decoder of Llama's kind, 768 wide, with grouped queries."""
    config = LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=layers, num_attention_heads=12,
        num_key_value_heads=4, max_position_embeddings=max(2048, tokens), use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": torch.randint(3, 32000, (batch, tokens))}


MODELS: dict[str, Callable[..., tuple[nn.Module, Inputs]]] = {
    "tiny": tiny,
    "vit": vit,
    "bert": bert,
    "llama": llama,
}
#: models that are measured with one thread; the others with as many as torch has chosen
SINGLE_THREADED, THREADS = ("tiny",), torch.get_num_threads()


def build(name: str, batch: int, **sizes: int) -> tuple[nn.Module, Inputs]:
    """A model in evaluation mode whose parameters need no gradient, and a batch for it; sets the number of threads."""
    torch.set_num_threads(1 if name in SINGLE_THREADED else THREADS)
    torch.manual_seed(0)
    model, inputs = MODELS[name](batch, **sizes)
    return model.eval().requires_grad_(False), inputs


def plain(model: nn.Module, inputs: Inputs, weights: bool = False) -> Callable[[], None]:
    """What everything is a multiple of: one forward and one backward, to the input alone or also to the weights.

    Args:
        model: what is run.
        inputs: its keyword arguments.
        weights: as in a training step, which costs about half as much again.
    """

    def run() -> None:
        given = dict(inputs)
        if "input_ids" in given:
            given["inputs_embeds"] = model.get_input_embeddings()(given.pop("input_ids"))
        key = "pixel_values" if "pixel_values" in given else "inputs_embeds"
        given[key] = given[key].detach().requires_grad_()
        logits = model(**given).logits
        best = (logits[:, -1] if logits.dim() == 3 else logits).max(-1).values.sum()
        torch.autograd.grad(best, [given[key], *(model.parameters() if weights else ())], allow_unused=True)

    return run
