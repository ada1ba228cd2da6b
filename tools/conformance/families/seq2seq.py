"""Encoders with a decoder that reads them."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import Tensor, nn

from tools.conformance.family import PADDED_TEXT, VOCABULARY, Inputs, add, ids, text

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
writer("T5 v1.1", "T5", **T5, feed_forward_proj="gated-gelu")
writer("BART", "Bart", **FAIRSEQ)
writer("mBART", "MBart", **FAIRSEQ)
writer("Marian", "Marian", head="MTModel", **FAIRSEQ)
writer("Pegasus", "Pegasus", **FAIRSEQ)
writer("M2M100", "M2M100", **FAIRSEQ)
writer("mT5", "MT5", **T5)
writer("UMT5", "UMT5", **T5)
writer("Switch Transformers", "SwitchTransformers", EAGER, **T5, num_experts=4, expert_capacity=16,
       num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)  # fmt: skip
writer("LongT5", "LongT5", EAGER, **T5, encoder_attention_type="local", local_radius=2)
LONG: dict[str, Any] = {k: v for k, v in FAIRSEQ.items() if k != "max_position_embeddings"}
writer("LED", "LED", {**EAGER, "note": "its encoder's attention is inside windows: no map is rolled up"}, **LONG,
       max_encoder_position_embeddings=40, max_decoder_position_embeddings=40, attention_window=4)  # fmt: skip
writer("Blenderbot", "Blenderbot", **FAIRSEQ)
writer("Blenderbot small", "BlenderbotSmall", **FAIRSEQ)
writer("PLBART", "PLBart", **FAIRSEQ)
writer("MVP", "Mvp", EAGER, **FAIRSEQ)
writer("NLLB-MoE", "NllbMoe", EAGER, **FAIRSEQ, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2,
       expert_capacity=16, experts_implementation="eager")  # fmt: skip
writer("BigBird-Pegasus", "BigBirdPegasus", EAGER, **FAIRSEQ, attention_type="original_full")
writer("FSMT", "FSMT", EAGER, **FAIRSEQ, src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, langs=["en", "de"])
GEMMA: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 4,
    "max_position_embeddings": 40, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def t5gemma(implementation: str) -> nn.Module:
    """An encoder and a decoder with a configuration each."""
    configuration = transformers.T5GemmaConfig(
        encoder=GEMMA, decoder=GEMMA, vocab_size=VOCABULARY, tie_word_embeddings=False,
        attn_implementation=implementation,
    )  # fmt: skip
    made: nn.Module = transformers.T5GemmaForConditionalGeneration(configuration)
    return made


writer("T5Gemma", "", {"build": t5gemma, **EAGER})
