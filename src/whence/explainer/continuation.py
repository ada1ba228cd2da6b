"""A text that a model goes on with: what it writes, or is said to have written, as the model reads both."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._utils.type_checks import counts
from ..errors import InputError, ModelError
from ..inputs.text import TextReader, limit
from ..results.input_origin import Span, TextOrigin
from ..tracing.eval_mode import undisturbed
from .chat_template import Stretches

START = "decoder_start_token_id"


@dataclass
class Written:
    """A text as a model was given it and went on with it.

    Attributes:
        inputs: the model's arguments for the whole of it.
        origins: the text of each stream.
        ids: the tokens written.
        first: the position whose answer is the first of them.
        special: ``[tokens]``, those of the first stream that neither the user nor the model wrote: the tokenizer's own,
            a chat template's.
    """

    inputs: dict[str, Tensor]
    origins: dict[str, TextOrigin]
    ids: list[int]
    first: int
    special: list[bool]


@dataclass
class Prompt:
    """What a model goes on with.

    Attributes:
        text: as one string.
        ids, tokens: as its tokenizer reads it.
        spans: where each token stands in the text; ``None`` for those that the tokenizer added.
        own: the stretches that the user wrote, of a chat; ``None``: all of it.
    """

    text: str
    ids: list[int]
    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]
    own: Stretches | None

    @classmethod
    def read(cls, reader: TextReader, text: str, own: Stretches | None) -> Prompt:
        """A text as its tokenizer reads it."""
        encoded = reader.encode((text,), special=own is None)  # a template writes its own special tokens
        return cls(text, encoded["input_ids"], tuple(encoded["tokens"]), tuple(reader.spans((text,), encoded)), own)

    @property
    def special(self) -> list[bool]:
        """Which tokens the user did not write."""
        return [span is None or (self.own is not None and not _within(span, self.own)) for span in self.spans]


def write(
    model: nn.Module,
    reader: TextReader,
    text: str,
    own: Stretches | None,
    continuation: str | None,
    most: int,
    sampling: Mapping[str, Any],
) -> Written:
    """The prompt and what follows it, as the model reads both.

    Args:
        model: a language model.
        reader: reads its texts.
        text: the prompt.
        own: the stretches of it that the user wrote, of a chat.
        continuation: what follows; ``None``: what the model writes itself.
        most: how many tokens it writes, at most.
        sampling: further arguments of its own ``generate``.
    """
    prompt = Prompt.read(reader, text, own)
    both = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    taken, room = _space(model, reader, prompt, both)
    if continuation is None:
        start, ids = _generated(model, prompt, _fitting(taken, most, sampling, room), sampling, both)
    else:
        ids = _continued(reader, prompt, continuation, both)
        start = _start(model, sampling) if both else prompt.ids[-1]
    if not ids:
        raise InputError("The model wrote nothing: its first token ends the text. Give a continuation to explain.")
    if room is not None and taken + len(ids) > room:
        what = "The continuation has" if both else "Prompt and continuation have"
        raise InputError(f"{what} {taken + len(ids)} tokens and the model takes {room}: give a shorter text.")
    device = next(model.parameters()).device
    return _translated(reader, prompt, start, ids, device) if both else _followed(reader, prompt, ids, device)


def _followed(reader: TextReader, prompt: Prompt, ids: list[int], device: torch.device) -> Written:
    """Prompt and continuation as one text, of a decoder alone."""
    wrote, places = decoded(reader.tokenizer, prompt.ids, ids)
    tokens = (*prompt.tokens, *map(str, reader.tokenizer.convert_ids_to_tokens(ids)))
    spans = (*prompt.spans, *(Span(a, b, 1) for a, b in places))
    origins = {"text": TextOrigin((prompt.text, wrote), tokens, spans)}
    return Written(
        _masked([*prompt.ids, *ids], device), origins, ids, len(prompt.ids) - 1, [*prompt.special, *[False] * len(ids)]
    )


def _translated(reader: TextReader, prompt: Prompt, start: int, ids: list[int], device: torch.device) -> Written:
    """The prompt as what an encoder reads, the continuation as what a decoder does."""
    read = [start, *ids[:-1]]
    wrote, places = decoded(reader.tokenizer, [], ids)
    tokens = tuple(map(str, reader.tokenizer.convert_ids_to_tokens(read)))
    origins = {
        "encoder": TextOrigin((prompt.text,), prompt.tokens, prompt.spans),
        "decoder": TextOrigin((wrote,), tokens, (None, *(Span(a, b) for a, b in places[:-1]))),
    }
    inputs = {**_masked(prompt.ids, device), "decoder_input_ids": torch.tensor([read], device=device)}
    return Written(inputs, origins, ids, 0, prompt.special)


def _masked(ids: list[int], device: torch.device) -> dict[str, Tensor]:
    given = torch.tensor([ids], device=device)
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


# -- how much fits -----------------------------------------------------------------------------------------------------


def _space(model: Any, reader: TextReader, prompt: Prompt, both: bool) -> tuple[int, int | None]:
    """How many tokens the prompt takes where the continuation goes, and how many fit there, if the prompt fits."""
    read, wrote = model, model
    if both and hasattr(model, "get_encoder") and hasattr(model, "get_decoder"):
        read, wrote = model.get_encoder(), model.get_decoder()
    room, length = limit(reader.tokenizer, read), len(prompt.ids)
    if room is not None and length >= room + both:
        raise InputError(f"The prompt has {length} tokens and the model takes {room}: give a shorter one.")
    return (0, limit(None, wrote)) if both else (length, room)


def _fitting(taken: int, most: int, sampling: Mapping[str, Any], room: int | None) -> int:
    """How many tokens are to be written, if so many fit behind those that are there."""
    wanted: Any = sampling.get("max_new_tokens", most)
    if wanted is None:  # it is said in another way: max_length, a configuration
        return most
    counts(max_new_tokens=wanted)
    count = int(wanted)
    if room is not None and taken + count > room:
        before = f"The prompt has {taken} tokens, {count} more" if taken else f"{count} tokens"
        raise InputError(
            f"{before} are to be written, and the model takes {room}: have it write fewer "
            f"(max_new_tokens={room - taken})" + (", or shorten the prompt." if taken else ".")
        )
    return count


# -- what follows ------------------------------------------------------------------------------------------------------


def _generated(model: Any, prompt: Prompt, most: int, sampling: Mapping[str, Any], both: bool) -> tuple[int, list[int]]:
    """The token before the first that the model wrote, and those that it wrote."""
    if not hasattr(model, "generate"):
        raise ModelError(
            f"{type(model).__name__} cannot write by itself (it has no `generate`): give the continuation."
        )
    given = _masked(prompt.ids, next(model.parameters()).device)
    with torch.no_grad(), undisturbed(model):
        try:
            out = model.generate(**given, **{"max_new_tokens": most, "do_sample": False} | dict(sampling))
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            raise ModelError(f"The model could not write: {str(error).splitlines()[0]}") from error
    row = [int(i) for i in getattr(out, "sequences", out)[0]]
    first = 1 if both else len(prompt.ids)
    return row[first - 1], row[first:]


def _continued(reader: TextReader, prompt: Prompt, continuation: str, both: bool) -> list[int]:
    """The tokens of a continuation: as they stand in the whole text, where the prompt's are the same there."""
    if not isinstance(continuation, str):
        raise InputError(f"A continuation is a text, not {type(continuation).__name__}.")
    if both:
        return _answered(reader, continuation)
    whole = list(reader.encode((prompt.text + continuation,), special=prompt.own is None)["input_ids"])
    if whole[: len(prompt.ids)] == prompt.ids:
        return whole[len(prompt.ids) :]
    return list(reader.encode((continuation,), special=False)["input_ids"])


def _answered(reader: TextReader, text: str) -> list[int]:
    """The tokens of a text that a decoder writes; a tokenizer may have others for them than for what is read."""
    try:
        return list(reader.tokenizer(text_target=text)["input_ids"])
    except TypeError:  # it has not
        return list(reader.encode((text,))["input_ids"])


def _start(model: Any, sampling: Mapping[str, Any]) -> int:
    """The token by which a decoder begins."""
    said = (getattr(getattr(model, name, None), START, None) for name in ("config", "generation_config"))
    found = next((start for start in (sampling.get(START), *said) if start is not None), None)
    if found is None:
        raise ModelError(
            f"{type(model).__name__} does not say by which token its decoder begins: set model.config.{START}."
        )
    return int(found)


def decoded(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """What tokens say after others, and where in it each stands; parts of one character stand at its end."""
    start = len(tokenizer.decode(list(before)))
    so_far = [tokenizer.decode([*before, *ids[:n]])[start:] for n in range(len(ids) + 1)]
    whole = so_far[-1]
    ends = [_common(whole, text) for text in so_far]
    return whole, [(min(a, b), b) for a, b in itertools.pairwise(ends)]


def _common(one: str, other: str) -> int:
    """How long two texts are the same."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _within(span: Span, own: Stretches) -> bool:
    return any(span.start < b and a < span.end for a, b in own)
