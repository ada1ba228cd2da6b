"""Whether a model predicts tokens, and whether it fills in masked ones or generates text."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

DECODER_INPUT = "decoder_input_ids"


def predicts_tokens(model: nn.Module, tokenizer: Any) -> bool:
    """Whether a model has a logit for each token of its vocabulary.

    A HuggingFace model has output embeddings then. In another, the last linear layer has a row for each row of an
    embedding table that holds every token.

    Args:
        model: any module.
        tokenizer: its tokenizer.

    Example:
        >>> predicts_tokens(BertForMaskedLM(config), tokenizer), predicts_tokens(BertModel(config), tokenizer)
        (True, False)
    """
    output_embeddings = getattr(model, "get_output_embeddings", None)
    if output_embeddings is not None:
        return output_embeddings() is not None
    last = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)][-1:]
    tables = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    return any(rows in tables and rows >= _vocabulary_size(tokenizer) for rows in last)


def can_generate(model: nn.Module) -> bool | None:
    """Whether a model generates text; ``None`` if it does not declare it."""
    can = getattr(model, "can_generate", None)
    return None if can is None else bool(can())


def is_masked_lm(model: nn.Module, tokenizer: Any) -> bool:
    """Whether a model predicts tokens and declares that it does not generate."""
    return can_generate(model) is False and predicts_tokens(model, tokenizer)


def decoder_start_token(model: nn.Module) -> int | None:
    """Return the token by which the decoder of an encoder-decoder begins; ``None`` for other models."""
    if not can_generate(model) or DECODER_INPUT not in inspect.signature(model.forward).parameters:
        return None
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    return None if start is None else int(start)


def _vocabulary_size(tokenizer: Any) -> int:
    try:
        return len(tokenizer)
    except TypeError:  # a tokenizer without a length
        return len(getattr(tokenizer, "vocabulary", ()))
