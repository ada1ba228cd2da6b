"""flan-t5-small, fine-tuned to give titles, from quantised ONNX files."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from torch import nn

from tools.real_models.onnx_weights import weights_of


def convert(package: Path, out: Path) -> None:
    """Write the model's directory. Its output layer is not the embedding's: the two are not tied."""
    source = package / "traceforge_title_model" / "data" / "span"
    weights = {f"encoder.{k.removeprefix('enc.')}": v for k, v in weights_of(source / "encoder.onnx").items()}
    weights |= {k.removeprefix("m."): v for k, v in weights_of(source / "decoder.onnx").items()}
    shared = weights["shared.weight"] = weights.get("shared.weight", weights["encoder.embed_tokens.weight"])
    weights["decoder.embed_tokens.weight"] = weights["encoder.embed_tokens.weight"] = shared
    config = transformers.T5Config(
        vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))  # T5's configuration always ties it
    model.config.tie_word_embeddings = False
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    model.save_pretrained(out)
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    words.save_pretrained(out)
