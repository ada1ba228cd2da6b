"""The words of questions and captions, and the tokenizer that cuts them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from transformers import BertTokenizer

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *map(str, range(10)),
    *("which", "digit", "is", "there", "a", "sum", "of", "the", "two", "?"),
    *("top", "bottom", "left", "right", "and", "on"),
)
END = WORDS.index("[SEP]")
LONGEST = 16  # tokens of a question or caption, with room


def tokenizer(names: tuple[str, ...] = ("input_ids", "token_type_ids", "attention_mask")) -> BertTokenizer:
    """A stock tokenizer of whole words: one token a word. `names` are the tensors that its model takes.

    >>> tokenizer().tokenize("is there a 7?")
    ['is', 'there', 'a', '7', '?']
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "vocab.txt"
        file.write_text("\n".join(WORDS) + "\n")
        return BertTokenizer(str(file), model_max_length=LONGEST, model_input_names=list(names))
