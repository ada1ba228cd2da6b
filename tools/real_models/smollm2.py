"""SmolLM2-135M-Instruct, dequantised from a GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers


def convert(package: Path, out: Path) -> None:
    """Write the model's directory."""
    file = next(package.rglob("*.gguf"))
    read = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    settings = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(settings))
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
