"""Multiple choice: a text and its choices, each read with the text, as one sample ``[1, choices, tokens]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from ..errors import InputError
from ..results.input_origin import TextOrigin
from .sample import Sample


def with_choices(raw: Any) -> tuple[str, list[str]] | None:
    """Return a text and its choices; ``None`` if an input is no such question, or raise an error if it is a wrong one.

    Args:
        raw: ``(text, [choice, ...])`` or ``{"text": ..., "choices": [...]}``.
    """
    if isinstance(raw, Mapping) and "choices" in raw:
        text, choices = raw.get("text"), raw["choices"]
    elif isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[1], list | tuple):
        text, choices = raw
    else:
        return None
    many = isinstance(choices, list | tuple) and len(choices) > 1 and all(isinstance(one, str) for one in choices)
    if not isinstance(text, str) or not many:
        raise InputError(
            "Multiple choice takes a text and a list of at least two choices: (text, [choice, choice]), all of them "
            "strings."
        )
    return text, list(choices)


def join_choices(read: Sequence[Sample]) -> Sample:
    """Return one sample of a text read with each of its choices, padded to the longest.

    Args:
        read: a sample for each choice, of the text and the choice.
    """
    tensors = {}
    for name in read[0].tensors:
        rows = [sample.tensors[name] for sample in read]
        width = max(row.shape[1] for row in rows)
        if any(row.shape[1] < width for row in rows) and name not in read[0].pads:
            raise InputError(
                "The choices have different lengths, and this tokenizer does not pad on the right: set its pad_token "
                'and padding_side="right", or give tensors.'
            )
        value = read[0].pads.get(name, 0)
        tensors[name] = torch.cat([pad(row, (0, width - row.shape[1]), value=value) for row in rows])[None]
    choices = [sample.origins["text"] for sample in read]
    return Sample(tensors, {"text": choices[0]}, choices=tuple(o for o in choices if isinstance(o, TextOrigin)))
