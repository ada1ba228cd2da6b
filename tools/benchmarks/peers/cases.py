"""The models that all libraries explain: small, of the usual shapes, with seeded random weights; batch 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 4000  # of every vocabulary made here


@dataclass(frozen=True)
class Case:
    """A model, the keyword arguments of one call of it, and the class (or next token) to explain."""

    model: nn.Module
    inputs: dict[str, Tensor]
    target: int
    tokenizer: Any = None
    text: str = ""

    @property
    def pixels(self) -> Tensor:
        """``[1, channels, height, width]``: the one input of a vision model."""
        (found,) = self.inputs.values()
        return found

    def plain(self) -> None:
        """What every time is a multiple of: one forward, and one backward to embeddings or pixels alone."""
        given = dict(self.inputs)
        if "input_ids" in given:
            given["inputs_embeds"] = self.model.get_input_embeddings()(given.pop("input_ids"))
        key = next(key for key, value in given.items() if value.is_floating_point())
        given[key] = given[key].detach().requires_grad_()
        torch.autograd.grad(logits(self.model(**given))[0, self.target], given[key])


def logits(outputs: Any) -> Tensor:
    """``[batch, classes]``; of a language model, those of the next token."""
    found = getattr(outputs, "logits", outputs)
    return found[:, -1] if found.dim() == 3 else found


class Logits(nn.Module):
    """A model that takes its keyword arguments one by one, in a given order, and returns ``[batch, classes]``."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> Tensor:
        """The logits alone."""
        return logits(self.model(**dict(zip(self.names, given, strict=True))))


def case(model: nn.Module, inputs: dict[str, Tensor], **more: Any) -> Case:
    """A case whose target is the prediction; parameters need no gradient."""
    model = model.eval().requires_grad_(False)
    with torch.no_grad():
        return Case(model, inputs, int(logits(model(**inputs)).argmax()), **more)


def tokenizer(special: dict[str, str], template: str | None = None) -> Any:
    """One token for each of the words ``w0``, ``w1``, …, behind the special ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [*special.values(), *(f"w{i}" for i in range(WORDS - len(special)))]
    ids = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.WordLevel(ids, unk_token=special["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template:
        marks = [(mark, ids[mark]) for mark in special.values() if mark in template]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def text(words: int) -> str:
    """So many words, drawn at random."""
    return " ".join(f"w{i}" for i in torch.randint(WORDS - 10, (words,)).tolist())


def bert() -> Case:
    """BERT, 6 layers × 384, 128 tokens."""
    return _bert(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)


def bert_base() -> Case:
    """BERT-base: 12 layers × 768, 128 tokens."""
    return _bert(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)


def _bert(**sizes: int) -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    words, made = text(126), tokenizer(special, "[CLS] $A [SEP]")
    ids = made(words, return_tensors="pt")["input_ids"]
    types = torch.zeros_like(ids)
    types[:, -1] = 1  # as transformers-interpret has it, whatever it is given; so the others get it, too
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": types}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, **sizes))
    return case(model, inputs, tokenizer=made, text=words)


def decoder() -> Case:
    """Llama-like, 6 layers × 384, 256 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    words, made = text(255), tokenizer(special, "<s> $A")
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}
    marks = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **sizes, **marks, use_cache=False))
    return case(model, {"input_ids": made(words, return_tensors="pt")["input_ids"]}, tokenizer=made, text=words)


def vit() -> Case:
    """ViT-S/16 of transformers, 224 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
    model = ViTForImageClassification(ViTConfig(**sizes, num_labels=100))
    return case(model, {"pixel_values": torch.randn(1, 3, 224, 224)})


def vit_torchvision() -> Case:
    """ViT-S/16 of torchvision, 224 pixels."""
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(224, 16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536, num_classes=100)
    nn.init.normal_(model.heads.head.weight, std=0.02)  # torchvision begins with zeros, which explain nothing
    return case(model, {"x": torch.randn(1, 3, 224, 224)})


def convnet() -> Case:
    """Four convolutions and two linear layers, 224 pixels: no Transformer."""
    return _convnet(bias=True)


def convnet_without_biases() -> Case:
    """The same without biases."""
    return _convnet(bias=False)


def _convnet(bias: bool) -> Case:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in [(3, 32), (32, 64), (64, 128), (128, 128)]:
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=bias), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(128 * 14 * 14, 256, bias=bias), nn.ReLU(), nn.Linear(256, 100, bias=bias)]
    return case(nn.Sequential(*layers), {"input": torch.randn(1, 3, 224, 224)})


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f for f in (bert, bert_base, decoder, vit, vit_torchvision, convnet, convnet_without_biases)
}
