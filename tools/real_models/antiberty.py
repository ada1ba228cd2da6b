"""AntiBERTy, a masked language model of antibodies, from its own pickled weights (read without running code)."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers


def convert(package: Path, out: Path) -> None:
    """Write the model's directory. Heads that are no part of the masked language model are left out."""
    source = package / "antiberty" / "trained_models"
    config = transformers.BertConfig.from_pretrained(source / "AntiBERTy_md_smooth")
    weights = torch.load(source / "AntiBERTy_md_smooth" / "pytorch_model.bin", weights_only=True, map_location="cpu")
    model = transformers.BertForMaskedLM(config)
    known = model.state_dict()
    found = {name: weights[name] for name in known if name in weights}
    missing = [name for name in known if name not in found and "decoder" not in name]
    if missing:
        raise ValueError(f"The package lacks {missing}.")
    model.load_state_dict(found, strict=False)
    model.tie_weights()
    model.save_pretrained(out)
    shutil.copy(source / "vocab.txt", out / "vocab.txt")
    transformers.BertTokenizer(str(out / "vocab.txt"), do_lower_case=False).save_pretrained(out)
