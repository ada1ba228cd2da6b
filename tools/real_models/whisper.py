"""Whisper-tiny, from quantised ONNX files."""

from __future__ import annotations

import shutil
from pathlib import Path

import transformers

from tools.real_models.onnx_weights import weights_of

FILES = (
    "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "vocab.json", "merges.txt",
    "normalizer.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip


def convert(package: Path, out: Path) -> None:
    """Write the model's directory."""
    source = next(package.rglob("generation_config.json")).parent
    encoder = weights_of(source / "onnx" / "encoder_model_quantized.onnx")
    weights = {f"model.encoder.{name}": tensor for name, tensor in encoder.items()}
    weights |= weights_of(source / "onnx" / "decoder_model_merged_quantized.onnx")
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig.from_pretrained(source))
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    model.save_pretrained(out)
    for name in FILES:
        shutil.copy(source / name, out / name)
