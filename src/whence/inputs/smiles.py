"""Molecules as text: SMILES tokenized into atoms, bonds and rings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError

#: an atom in brackets, a two-letter halogen, a ring number of two digits, a reaction arrow, or one character
SYMBOL = re.compile(r"\[[^\]]*\]|Br|Cl|%\d\d|>>|.", re.DOTALL)


class SmilesTokenizer:
    """A tokenizer for models of molecules, after Schwaller et al. 2018.

    The vocabulary file has one symbol per line, as in RXNMapper and rxnfp.

    Example:
        >>> tokenizer = SmilesTokenizer.from_vocabulary("model/vocab.txt")
        >>> tokenizer("CC(=O)Cl")["tokens"]
        ['[CLS]', 'C', 'C', '(', '=', 'O', ')', 'Cl', '[SEP]']
    """

    molecules = True
    is_fast = True  # it returns an offset mapping

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.vocabulary = dict(vocabulary)
        self.symbols = {i: symbol for symbol, i in self.vocabulary.items()}
        self.pad_token_id = self.vocabulary.get("[PAD]")
        self.mask_token_id = self.vocabulary.get("[MASK]")

    @classmethod
    def from_vocabulary(cls, path: str | Path) -> SmilesTokenizer:
        """Read a vocabulary file."""
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        return cls({line.rstrip("\n"): i for i, line in enumerate(lines)})

    @staticmethod
    def reads(path: Path) -> bool:
        """Whether a vocabulary is of molecules: it has carbon, aromatic carbon, a bond and stereo centres."""
        lines = set(path.read_text(encoding="utf-8", errors="replace").splitlines()[:2000])
        return {"C", "c", "=", "(", ")"} <= lines and any(line.startswith("[C@") for line in lines)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __call__(self, *texts: str, truncation: bool = False, max_length: int = 0, **_: Any) -> dict[str, list[Any]]:
        """Tokenize a molecule; ``[MASK]`` in the text is the mask token."""
        if len(texts) != 1:
            raise InputError("A molecule is one string; write a reaction as 'reactants>>product'.")
        (text,) = texts
        found = [(m.group(), m.span()) for m in SYMBOL.finditer(text)]
        if truncation:
            found = found[: max_length - 2]
        unknown = self.vocabulary["[UNK]"]
        inner = [(self.vocabulary.get(s, unknown), s, span, 0) for s, span in found]
        ends = [(self.vocabulary[s], s, (0, 0), 1) for s in ("[CLS]", "[SEP]")]
        ids, tokens, offsets, special = zip(ends[0], *inner, ends[1], strict=True)
        return {
            "input_ids": list(ids), "tokens": list(tokens), "offset_mapping": list(offsets),
            "special_tokens_mask": list(special), "attention_mask": [1] * len(ids),
        }  # fmt: skip

    def decode(self, ids: list[int]) -> str:
        """Return the symbols of ids as one string."""
        return "".join(self.symbols[i] for i in ids)
