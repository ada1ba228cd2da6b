"""Encoders of text."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import nn

from tools.conformance.family import PADDED_TEXT, VOCABULARY, add, text

GROUP = "Text encoders"
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 40, "num_labels": 3, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip


def build(implementation: str, *, model: str, config: str, without: tuple[str, ...] = (), **options: Any) -> nn.Module:
    """A sequence classifier."""
    small = {k: v for k, v in SMALL.items() if k not in without}
    configuration = getattr(transformers, config)(**{**small, **options}, attn_implementation=implementation)
    made: nn.Module = getattr(transformers, model)(configuration)
    return made


def encoder(name: str, prefix: str, parts: dict[str, Any] | None = None, **options: Any) -> None:
    """Add a classifier of two layers that reads seven tokens: two attentions."""
    add(name, GROUP, **{
        "attentions": 2, "streams": {"text": 7}, "inputs": text, **PADDED_TEXT,
        "build": partial(build, model=f"{prefix}ForSequenceClassification", config=f"{prefix}Config", **options),
        **(parts or {}),
    })  # fmt: skip


EAGER: dict[str, Any] = {"implementations": ("eager",)}  # transformers has no fused attention for these

encoder("BERT", "Bert")
encoder("DistilBERT", "DistilBert", dim=16, n_layers=2, n_heads=4, hidden_dim=24)
encoder("RoBERTa", "Roberta")
encoder("ALBERT", "Albert", embedding_size=8)
encoder("ELECTRA", "Electra", embedding_size=8)
encoder("DeBERTa", "Deberta", EAGER, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=8)
encoder("DeBERTa-v2", "DebertaV2", EAGER, relative_attention=True, pos_att_type=["c2p", "p2c"],
        position_buckets=4, share_att_key=True, norm_rel_ebd="layer_norm")  # fmt: skip
encoder("ModernBERT", "ModernBert", local_attention=4, global_attn_every_n_layers=2)
encoder("XLNet", "XLNet", EAGER, d_head=4, without=("max_position_embeddings",), d_inner=24, summary_type="first")
encoder("XLM-RoBERTa", "XLMRoberta")
encoder("XLM-RoBERTa-XL", "XLMRobertaXL")
encoder("CamemBERT", "Camembert")
encoder("MPNet", "MPNet", {**EAGER, "padded": {"input_ids": 1, "attention_mask": 0}})
encoder("Longformer", "Longformer", {  # each layer has an attention inside windows, and one of [CLS] to all
    "attentions": 4, "inputs": partial(text, tokens=8), "streams": {"text": 8}, **EAGER,
}, attention_window=[4, 4])  # fmt: skip
encoder("BigBird", "BigBird", EAGER, attention_type="original_full")
READS_PADDING: dict[str, Any] = {"mask": "", "padded": {}, "note": "reads its padding, by a convolution"}
encoder("ConvBERT", "ConvBert", {**EAGER, **READS_PADDING}, embedding_size=8, head_ratio=2, conv_kernel_size=3)
encoder("SqueezeBERT", "SqueezeBert", EAGER, embedding_size=16)
encoder("RoFormer", "RoFormer", EAGER, embedding_size=8)
encoder(
    "Nyströmformer",
    "Nystromformer",
    {  # in each layer of tokens to landmarks and of landmarks to tokens; the map between landmarks reads nothing, its
        # pseudo-inverse does, which has negative entries and is no map
        "attentions": 4,
        "inputs": partial(text, tokens=8),
        "streams": {"text": 8},
        **EAGER,
        **READS_PADDING,
        "norms": 7,  # 5 modules, and in each layer an attention map divided by its 1-norm: a maximum of sums, no root
        "gates": 0,  # that division is written as a product with the inverse
        "note": "its answer depends on the batch: it divides by a maximum over all samples",
    },
    num_landmarks=4,
    segment_means_seq_len=8,
    conv_kernel_size=3,
)
encoder("FNet", "FNet", {"attentions": 0, "mask": "", "padded": {}, **EAGER})
encoder(
    "Funnel",
    "Funnel",
    EAGER,
    without=("num_hidden_layers",),
    block_sizes=[1, 1],
    d_model=16,
    n_head=4,
    d_head=4,
    d_inner=24,
)
encoder("I-BERT", "IBert", EAGER)
encoder("EuroBERT", "EuroBert", num_key_value_heads=2)
encoder("MegatronBERT", "MegatronBert", EAGER)
encoder("MobileBERT", "MobileBert", intra_bottleneck_size=8, embedding_size=8)
encoder("RemBERT", "RemBert", EAGER, input_embedding_size=8)
encoder("ERNIE", "Ernie")
encoder("ESM", "Esm")
encoder("LayoutLM", "LayoutLM")
encoder("Data2Vec text", "Data2VecText")
encoder("FlauBERT", "Flaubert", EAGER)
encoder("XLM", "XLM", EAGER)
encoder("RoBERTa-PreLayerNorm", "RobertaPreLayerNorm")
encoder("NomicBERT", "NomicBert")
encoder("GTE", "Gte")
