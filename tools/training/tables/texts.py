"""Models of texts: BERT with the tokenizer and the word embeddings of MiniLM."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

from tools.training.paths import WEIGHTS

from .learner import masked, padded, without_mlp
from .recipes import MODELS, Recipe

MASKED = 0.1  # share of words that are hidden in training


class Texts:
    """A BERT of a few layers, width 384 and 12 heads.

    Of the `attention` kind the embeddings start from MiniLM's and learn, and the blocks start from nothing. Of the
    `standard` kind everything starts from a trained model, and the word embeddings stay as they are.
    """

    def __init__(self, recipe: Recipe, labels: Sequence[str]) -> None:
        start = MODELS / recipe.start if recipe.start else WEIGHTS / "minilm_l6_sst2"
        self.window, self.length = recipe.window, recipe.length
        self.tokenizer = AutoTokenizer.from_pretrained(start, model_max_length=recipe.length)
        config = AutoConfig.from_pretrained(
            start,
            num_hidden_layers=recipe.layers,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            id2label=dict(enumerate(labels)),
            label2id={name: i for i, name in enumerate(labels)},
        )
        config.dtype = torch.float32
        weights = BertForSequenceClassification.from_pretrained(start, dtype=torch.float32).state_dict()
        if recipe.kind == "attention":
            config.intermediate_size, config.max_position_embeddings = 1, recipe.length
            weights = {name: value for name, value in weights.items() if ".embeddings." in name}
        self.model = BertForSequenceClassification(config)
        own = self.model.state_dict()
        for name, value in weights.items():
            if name in own and "classifier" not in name:
                own[name].copy_(value[: len(own[name])])
        if recipe.kind == "attention":
            without_mlp(self.model)
        else:
            self.model.bert.embeddings.requires_grad_(False)
        self.card = CARDS[recipe.kind].format(layers=recipe.layers, start=start.name, length=recipe.length)
        if recipe.window:
            self.card += f" Training saw a random stretch of {recipe.window} tokens of each text."

    def encode(self, raw: str) -> list[int]:
        """Ids without the special tokens; a text longer than can be read is cut, in training not yet."""
        most = None if self.window else self.length - 2
        return list(
            self.tokenizer(raw, add_special_tokens=False, truncation=most is not None, max_length=most).input_ids
        )

    def batch(self, encoded: Sequence[list[int]], rng: random.Random | None) -> dict[str, Tensor]:
        """Ids and mask; in training of a stretch of the text, with words hidden."""
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        most = (self.window if rng and self.window else self.length) - 2
        rows = []
        for ids in encoded:
            first = rng.randrange(max(1, len(ids) - most + 1)) if rng and self.window else 0
            rows.append([start, *ids[first : first + most], end])
        ids, mask = padded(rows, self.tokenizer.pad_token_id)
        if rng:
            special = (mask == 0) | (ids == start) | (ids == end)
            ids = masked(ids, special, self.tokenizer.mask_token_id, MASKED, rng)
        return {"input_ids": ids, "attention_mask": mask}

    def save(self, directory: Path) -> None:
        """Write model and tokenizer."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)


CARDS = {
    "attention": (
        "`BertForSequenceClassification` of {layers} blocks of attention alone, width 384, 12 heads, as in Ali et al. "
        "(ICML 2022): embeddings, blocks `norm(x + attention(x))` whose norms have no weights, a tanh pooler on [CLS]. "
        "In the stock class this means that the output weights of every MLP are zero and were frozen (the MLP has one "
        "unit, so that it costs nothing). Tokenizer and initial embeddings are those of `{start}`; the blocks were "
        "trained from nothing. Reads {length} tokens."
    ),
    "standard": (
        "`BertForSequenceClassification` with MLP blocks: the first {layers} layers of `{start}`, trained further; the "
        "embeddings stayed as they were. Reads {length} tokens."
    ),
}
