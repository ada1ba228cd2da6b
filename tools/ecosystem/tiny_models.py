"""Tiny seeded models with weights of trained size, and one fixed input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import whence

INPUTS: dict[str, Tensor] = {
    "input_ids": torch.tensor([[1, 5, 9, 13, 2, 7, 30, 22]]),
    "attention_mask": torch.ones(1, 8, dtype=torch.long),
}

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}


def classifier() -> nn.Module:
    """Return a BERT classifier of three classes."""
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(num_labels=3, **SIZES)).eval()


def language_model() -> nn.Module:
    """Return a Llama language model."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZES)).eval()


def explained(model: nn.Module, target: int | None = 1) -> Callable[[str], Any]:
    """Return a function that explains the fixed input by a method.

    Args:
        model: the model.
        target: the class; ``None``: the prediction.
    """

    def explain(method: str) -> Any:
        torch.manual_seed(0)  # of methods that draw
        return whence.explain(model, INPUTS, method, target=target)

    return explain
