"""Models of molecules: a small BERT over the symbols of SMILES."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from whence.inputs.smiles import SYMBOL, SmilesTokenizer

from .learner import masked, padded, without_mlp
from .recipes import Recipe

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MASKED = 0.1  # share of symbols that are hidden in training


class Molecules:
    """A BERT of width 128 with 4 heads, from nothing; the vocabulary is that of the training molecules."""

    def __init__(self, recipe: Recipe, labels: Sequence[str], smiles: Iterable[str]) -> None:
        self.length = recipe.length
        self.symbols = SPECIAL + sorted({symbol for text in smiles for symbol in SYMBOL.findall(text)})
        self.tokenizer = SmilesTokenizer({symbol: i for i, symbol in enumerate(self.symbols)})
        config = BertConfig(
            vocab_size=len(self.symbols),
            hidden_size=128,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            intermediate_size=1 if recipe.kind == "attention" else 256,
            max_position_embeddings=recipe.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=0,
            id2label=dict(enumerate(labels)),
            label2id={name: i for i, name in enumerate(labels)},
        )
        self.model = BertForSequenceClassification(config)
        if recipe.kind == "attention":
            without_mlp(self.model)
        self.card = CARDS[recipe.kind].format(layers=recipe.layers, count=len(self.symbols))

    def encode(self, raw: str) -> list[int]:
        """Ids with the special symbols."""
        return list(self.tokenizer(raw, truncation=True, max_length=self.length)["input_ids"])

    def batch(self, encoded: Sequence[list[int]], rng: random.Random | None) -> dict[str, Tensor]:
        """Ids and mask; in training with symbols hidden."""
        ids, mask = padded(encoded, 0)
        if rng:
            ids = masked(ids, ids < len(SPECIAL), SPECIAL.index("[MASK]"), MASKED, rng)
        return {"input_ids": ids, "attention_mask": mask}

    def save(self, directory: Path) -> None:
        """Write the model and the vocabulary."""
        self.model.save_pretrained(directory)
        (directory / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in self.symbols), encoding="utf-8")


CARDS = {
    "attention": (
        "`BertForSequenceClassification` over {count} symbols of SMILES, trained from nothing: {layers} blocks of "
        "attention alone, width 128, 4 heads, as in Ali et al. (ICML 2022): blocks `norm(x + attention(x))` whose "
        "norms have no weights, a tanh pooler on [CLS]. In the stock class this means that the output weights of every "
        "MLP are zero and were frozen (the MLP has one unit, so that it costs nothing)."
    ),
    "standard": (
        "`BertForSequenceClassification` over {count} symbols of SMILES, trained from nothing: {layers} layers with "
        "MLP blocks, width 128, 4 heads."
    ),
}
