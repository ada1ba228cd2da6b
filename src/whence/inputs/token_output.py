"""Whether a model answers in the tokens that it reads, and whether it fills them in or goes on with a text."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

STEPS = "decoder_input_ids"  # what a decoder has written so far


def answers_in_tokens(model: nn.Module, tokenizer: Any) -> bool:
    """Whether a model has a score for each token of its vocabulary.

    A model that can say so is asked for its output embeddings. Of another, the last layer has a row for each row of a
    table of embeddings that holds every token.

    Args:
        model: any module.
        tokenizer: what makes its tokens.

    Example:
        >>> answers_in_tokens(BertForMaskedLM(config), tokenizer), answers_in_tokens(BertModel(config), tokenizer)
        (True, False)
    """
    ask = getattr(model, "get_output_embeddings", None)
    if ask is not None:
        return ask() is not None
    last = [m.out_features for m in model.modules() if isinstance(m, nn.Linear)][-1:]
    tables = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)}
    return any(rows in tables and rows >= _size(tokenizer) for rows in last)


def can_write(model: nn.Module) -> bool | None:
    """Whether a model goes on with a text; ``None`` if it does not say."""
    can = getattr(model, "can_generate", None)
    return None if can is None else bool(can())


def fills(model: nn.Module, tokenizer: Any) -> bool:
    """Whether a model guesses tokens of a text that it sees from both sides, and says that it does not write."""
    return can_write(model) is False and answers_in_tokens(model, tokenizer)


def first_step(model: nn.Module) -> int | None:
    """The token by which the decoder of an encoder-decoder begins to write; ``None`` for other models."""
    if not can_write(model) or STEPS not in inspect.signature(model.forward).parameters:
        return None
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    return None if start is None else int(start)


def _size(tokenizer: Any) -> int:
    try:
        return len(tokenizer)
    except TypeError:  # it does not say
        return len(getattr(tokenizer, "vocabulary", ()))
