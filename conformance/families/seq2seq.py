"""Encoders with a decoder that reads them."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import Tensor, nn

from conformance.family import PADDED_TEXT, VOCABULARY, Inputs, add, ids, text

GROUP = "Encoder-decoders"
SPECIAL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "initializer_range": 0.3, "init_std": 0.3, "tie_word_embeddings": False,
}  # fmt: skip
FAIRSEQ: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40,
}  # fmt: skip
T5: dict[str, Any] = {
    "d_model": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 4, "d_ff": 24,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "initializer_factor": 2.0,
}  # fmt: skip


def inputs(samples: int) -> Inputs:
    """Seven tokens for the encoder, five for the decoder."""
    return {**text(samples), "decoder_input_ids": ids(samples, 5)}


def last(outputs: Any) -> Tensor:
    """The logit of a token behind the decoder's last."""
    logit: Tensor = outputs.logits[:, -1, 5]
    return logit


def build(implementation: str, *, prefix: str, head: str, **options: Any) -> nn.Module:
    """A model that writes a text."""
    configuration = getattr(transformers, f"{prefix}Config")(
        **{**SPECIAL, **options}, attn_implementation=implementation
    )
    made: nn.Module = getattr(transformers, f"{prefix}{head}")(configuration)
    return made


def writer(
    name: str, prefix: str, parts: dict[str, Any] | None = None, *, head: str = "ForConditionalGeneration",
    **options: Any
) -> None:  # fmt: skip
    """Add a model of two layers each: two attentions in the encoder, two and two to the encoder in the decoder."""
    add(name, GROUP, **{
        "attentions": 6, "streams": {"encoder": 7, "decoder": 5}, "inputs": inputs, "target": last, **PADDED_TEXT,
        "build": partial(build, prefix=prefix, head=head, **options),
        **(parts or {}),
    })  # fmt: skip


EAGER: dict[str, Any] = {"implementations": ("eager",)}  # transformers has no fused attention for these

writer("T5", "T5", **T5)
writer("T5 gated", "T5", **T5, feed_forward_proj="gated-gelu")
writer("BART", "Bart", **FAIRSEQ)
writer("mBART", "MBart", **FAIRSEQ)
writer("Marian", "Marian", head="MTModel", **FAIRSEQ)
writer("Pegasus", "Pegasus", **FAIRSEQ)
writer("M2M100", "M2M100", **FAIRSEQ)
writer("mT5", "MT5", **T5)
writer("UMT5", "UMT5", EAGER, **T5)
