"""Encoders of text."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import nn

from conformance.family import PADDED_TEXT, VOCABULARY, add, text

GROUP = "Text encoders"
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 40, "num_labels": 3, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip


def build(implementation: str, *, model: str, config: str, **options: Any) -> nn.Module:
    """A sequence classifier."""
    configuration = getattr(transformers, config)(**SMALL, **options, attn_implementation=implementation)
    made: nn.Module = getattr(transformers, model)(configuration)
    return made


add(
    "BERT", GROUP, attentions=2, streams={"text": 7}, inputs=text, **PADDED_TEXT,
    build=partial(build, model="BertForSequenceClassification", config="BertConfig"),
)  # fmt: skip
