"""A prompt and its continuation, generated or given, as the arguments of one forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._utils.offloading import device_of
from .._utils.type_checks import require_positive
from .._utils.unwrapped import unwrapped
from ..errors import InputError, ModelError
from ..inputs.patch_layout import PatchLayout
from ..inputs.sample import on_model
from ..inputs.speech import DECODER_INPUT, SpeechReader
from ..inputs.text import TextReader, token_limit
from ..inputs.vision_language import VisionLanguageReader
from ..results.input_origin import ImageOrigin, Origin, Span, TextOrigin
from ..tracing.eval_mode import undisturbed
from .chat_template import CharSpans

START = "decoder_start_token_id"


@dataclass
class Continuation:
    """A prompt with its continuation.

    Attributes:
        inputs: the model's arguments for prompt and continuation together.
        origins: the text of each stream.
        ids: the tokens of the continuation.
        first: the position whose logits predict the first of them.
        special: ``[tokens]``, tokens of the first text that neither the user nor the model wrote: those of the
            tokenizer, of a chat template and of images.
        layout: where the patches of an image in the prompt lie.
    """

    inputs: dict[str, Tensor]
    origins: dict[str, Origin]
    ids: list[int]
    first: int
    special: list[bool]
    layout: PatchLayout | None = None


@dataclass
class Prompt:
    """A tokenized prompt.

    Attributes:
        text: as one string.
        ids, tokens: its tokens.
        spans: where each token is in the text; ``None`` for those that the tokenizer added.
        user_spans: of a chat, the characters that the user wrote; ``None``: all of them.
        more: the model's other arguments: images, and masks and kinds of tokens.
        image: an image in the prompt, and
        layout: where its patches lie.
    """

    text: str
    ids: list[int]
    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]
    user_spans: CharSpans | None
    more: dict[str, Tensor] = field(default_factory=dict)
    image: ImageOrigin | None = None
    layout: PatchLayout | None = None

    @classmethod
    def with_image(cls, reader: VisionLanguageReader, prompt: Any, image: Any) -> Prompt:
        """Encode a text or messages with an image, by the processor of a vision-language model."""
        sample = reader.read((image, prompt))
        origin, picture = sample.origins["text"], sample.origins.get("image")
        assert isinstance(origin, TextOrigin)
        ids = sample.tensors["input_ids"][0].tolist()
        more = {name: tensor for name, tensor in sample.tensors.items() if name not in ("input_ids", "attention_mask")}
        shown = picture if isinstance(picture, ImageOrigin) else None
        everything = [(0, len(origin.texts[0]))]  # spans are of what the user wrote alone
        return cls(origin.texts[0], ids, origin.tokens, origin.spans, everything, more, shown, sample.layout)

    def arguments(self, model: nn.Module, ids: Sequence[int] = (), kind: int = 0) -> dict[str, Tensor]:
        """Return the model's arguments for the prompt, or for the prompt and tokens that follow it, of some kind."""
        more = {}
        for name, tensor in self.more.items():
            of_tokens = self._has_kinds(tensor)
            more[name] = torch.nn.functional.pad(tensor, (0, len(ids)), value=kind) if of_tokens else tensor
        device = device_of(model)
        return {**_arguments([*self.ids, *ids], device), **on_model(model, more)}

    def continued(self, model: nn.Module, ids: Sequence[int]) -> dict[str, Tensor]:
        """Return the model's arguments for the prompt and tokens that follow it.

        Where tokens are of kinds (a prefix that is read in both directions, images), those that follow are of the kind
        that does not change what the model predicts after the prompt.
        """
        usual = self.arguments(model, ids)
        if not any(map(self._has_kinds, self.more.values())):
            return usual
        with torch.no_grad(), undisturbed(model):
            predicted = model(**self.arguments(model)).logits[:, -1]
            for kind in (0, 1):
                given = self.arguments(model, ids, kind)
                if torch.allclose(model(**given).logits[:, len(self.ids) - 1], predicted, rtol=1e-3, atol=1e-4):
                    return given
        return usual

    def _has_kinds(self, tensor: Tensor) -> bool:
        return tensor.dim() == 2 and tensor.shape == (1, len(self.ids))

    @classmethod
    def read(cls, reader: TextReader, text: str, user_spans: CharSpans | None) -> Prompt:
        """Tokenize a text."""
        encoded = reader.encode((text,), special=user_spans is None)  # a chat template writes its special tokens itself
        spans = tuple(reader.spans((text,), encoded))
        return cls(text, encoded["input_ids"], tuple(encoded["tokens"]), spans, user_spans)

    @property
    def special(self) -> list[bool]:
        """Which tokens the user did not write."""
        if self.user_spans is None:
            return [span is None for span in self.spans]
        return [span is None or not _overlaps(span, self.user_spans) for span in self.spans]


def continue_prompt(
    model: nn.Module,
    reader: TextReader,
    prompt: Prompt,
    continuation: str | None,
    most: int,
    sampling: Mapping[str, Any],
) -> Continuation:
    """Return a prompt with its continuation, for one forward pass over both.

    Args:
        model: a language model.
        reader: reads its texts.
        prompt: the prompt.
        continuation: the continuation; ``None``: what the model generates.
        most: how many tokens it generates, at most.
        sampling: further arguments of the model's ``generate``.
    """
    inner = unwrapped(model)  # the wrapper itself runs when the continuation is explained
    encoder_decoder = bool(getattr(getattr(inner, "config", None), "is_encoder_decoder", False))
    taken, room = _room(model, reader, prompt, encoder_decoder)
    if continuation is None:
        start, ids = _generate(inner, prompt, _checked_count(taken, most, sampling, room), sampling, encoder_decoder)
    else:
        ids = _continuation_ids(reader, prompt, continuation, encoder_decoder)
        start = _decoder_start(inner, sampling) if encoder_decoder else prompt.ids[-1]
    if not ids:
        raise InputError("The model wrote nothing: its first token ends the text. Give a continuation to explain.")
    if room is not None and taken + len(ids) > room:
        what = "The continuation has" if encoder_decoder else "Prompt and continuation have"
        raise InputError(f"{what} {taken + len(ids)} tokens and the model takes {room}: give a shorter text.")
    device = device_of(model)
    if encoder_decoder:
        return _of_encoder_decoder(reader, prompt, start, ids, device)
    return _of_decoder(reader, prompt, ids, prompt.continued(model, ids))


def transcribe(
    reader: SpeechReader, raw: Any, continuation: str | None, most: int, sampling: Mapping[str, Any]
) -> Continuation:
    """Return audio with its transcript, for one forward pass over both.

    Args:
        reader: reads the audio of a model that writes what it hears.
        raw: the audio.
        continuation: the transcript; ``None``: what the model writes.
        most: how many tokens it generates, at most.
        sampling: further arguments of the model's ``generate``.
    """
    sample = reader.audio(raw)
    start, ids = reader.transcript(sample.tensors, most if continuation is None else 1, sampling)
    if continuation is not None:
        ids = list(reader.tokenizer(continuation, add_special_tokens=False)["input_ids"])
    if not ids:
        raise InputError("The model wrote nothing of this audio. Give a continuation to explain.")
    shifted = [*start, *ids[:-1]]
    text, places = decode_with_spans(reader.tokenizer, start, ids)
    tokens = tuple(map(str, reader.tokenizer.convert_ids_to_tokens(shifted)))
    spans = (*(None for _ in start), *(Span(a, b) for a, b in places[:-1]))
    inputs = on_model(reader.model, {**sample.tensors, DECODER_INPUT: torch.tensor([shifted])})
    origins: dict[str, Origin] = {**sample.origins, "text": TextOrigin((text,), tokens, spans)}
    return Continuation(inputs, origins, ids, len(start) - 1, [])


def _of_decoder(reader: TextReader, prompt: Prompt, ids: list[int], inputs: dict[str, Tensor]) -> Continuation:
    """Return prompt and continuation as one sequence, for a decoder-only model."""
    text, places = decode_with_spans(reader.tokenizer, prompt.ids, ids)
    tokens = (*prompt.tokens, *map(str, reader.tokenizer.convert_ids_to_tokens(ids)))
    spans = (*prompt.spans, *(Span(a, b, 1) for a, b in places))
    origins: dict[str, Origin] = {"text": TextOrigin((prompt.text, text), tokens, spans)}
    if prompt.image is not None:
        origins["image"] = prompt.image
    return Continuation(
        inputs=inputs,
        origins=origins,
        ids=ids,
        first=len(prompt.ids) - 1,
        special=[*prompt.special, *[False] * len(ids)],
        layout=prompt.layout,
    )


def _of_encoder_decoder(
    reader: TextReader, prompt: Prompt, start: int, ids: list[int], device: torch.device | None
) -> Continuation:
    """Return the prompt as the encoder's input, and the continuation, shifted by one, as the decoder's."""
    shifted = [start, *ids[:-1]]
    text, places = decode_with_spans(reader.tokenizer, [], ids)
    tokens = tuple(map(str, reader.tokenizer.convert_ids_to_tokens(shifted)))
    origins: dict[str, Origin] = {
        "encoder": TextOrigin((prompt.text,), prompt.tokens, prompt.spans),
        "decoder": TextOrigin((text,), tokens, (None, *(Span(a, b) for a, b in places[:-1]))),
    }
    inputs = {**_arguments(prompt.ids, device), "decoder_input_ids": torch.tensor([shifted], device=device)}
    return Continuation(inputs, origins, ids, 0, prompt.special)


def _arguments(ids: list[int], device: torch.device | None) -> dict[str, Tensor]:
    given = torch.tensor([ids], device=device)
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


# -- length limits -----------------------------------------------------------------------------------------------------


def _room(model: Any, reader: TextReader, prompt: Prompt, encoder_decoder: bool) -> tuple[int, int | None]:
    """Return how many tokens of the continuation's sequence the prompt takes, and how many that sequence may have."""
    reads_prompt = model
    reads_continuation = model
    if encoder_decoder and hasattr(model, "get_encoder") and hasattr(model, "get_decoder"):
        reads_prompt = model.get_encoder()
        reads_continuation = model.get_decoder()
    room = token_limit(reader.tokenizer, reads_prompt)
    length = len(prompt.ids)
    if room is not None and length >= room + encoder_decoder:
        raise InputError(f"The prompt has {length} tokens and the model takes {room}: give a shorter one.")
    return (0, token_limit(None, reads_continuation)) if encoder_decoder else (length, room)


def _checked_count(taken: int, most: int, sampling: Mapping[str, Any], room: int | None) -> int:
    """Return how many tokens to generate; raise an error if they do not fit."""
    wanted: Any = sampling.get("max_new_tokens", most)
    if wanted is None:  # the length is set in another way: max_length, a generation config
        return most
    require_positive(max_new_tokens=wanted)
    count = int(wanted)
    if room is not None and taken + count > room:
        before = f"The prompt has {taken} tokens, {count} more" if taken else f"{count} tokens"
        raise InputError(
            f"{before} are to be written, and the model takes {room}: have it write fewer "
            f"(max_new_tokens={room - taken})" + (", or shorten the prompt." if taken else ".")
        )
    return count


# -- the tokens of the continuation ------------------------------------------------------------------------------------


def _generate(
    model: Any, prompt: Prompt, most: int, sampling: Mapping[str, Any], encoder_decoder: bool
) -> tuple[int, list[int]]:
    """Generate a continuation; return the token before it, and its tokens."""
    if not hasattr(model, "generate"):
        raise ModelError(
            f"{type(model).__name__} cannot write by itself (it has no `generate`): give the continuation."
        )
    given = prompt.arguments(model)
    with torch.no_grad(), undisturbed(model):
        try:
            out = model.generate(**given, **{"max_new_tokens": most, "do_sample": False} | dict(sampling))
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            raise ModelError(f"The model could not write: {str(error).splitlines()[0]}") from error
    row = [int(i) for i in getattr(out, "sequences", out)[0]]
    first = 1 if encoder_decoder else len(prompt.ids)
    return row[first - 1], row[first:]


def _continuation_ids(reader: TextReader, prompt: Prompt, continuation: str, encoder_decoder: bool) -> list[int]:
    """Return the tokens of a given continuation: those of the whole text if it begins with the prompt's tokens."""
    if not isinstance(continuation, str):
        raise InputError(f"A continuation is a text, not {type(continuation).__name__}.")
    if encoder_decoder:
        return _target_ids(reader, continuation)
    whole = list(reader.encode((prompt.text + continuation,), special=prompt.user_spans is None)["input_ids"])
    if whole[: len(prompt.ids)] == prompt.ids:
        return whole[len(prompt.ids) :]
    return list(reader.encode((continuation,), special=False)["input_ids"])


def _target_ids(reader: TextReader, text: str) -> list[int]:
    """Return the tokens of a decoder's text; a tokenizer may have another vocabulary for it."""
    try:
        return list(reader.tokenizer(text_target=text)["input_ids"])
    except TypeError:  # a tokenizer with one vocabulary
        return list(reader.encode((text,))["input_ids"])


def _decoder_start(model: Any, sampling: Mapping[str, Any]) -> int:
    """Return the token by which a decoder begins."""
    configured = (getattr(getattr(model, name, None), START, None) for name in ("config", "generation_config"))
    found = next((start for start in (sampling.get(START), *configured) if start is not None), None)
    if found is None:
        raise ModelError(
            f"{type(model).__name__} does not say by which token its decoder begins: set model.config.{START}."
        )
    return int(found)


def decode_with_spans(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of tokens that follow others, and the span of each; bytes of one character are at its end."""
    start = len(tokenizer.decode(list(before)))
    so_far = [tokenizer.decode([*before, *ids[:n]])[start:] for n in range(len(ids) + 1)]
    whole = so_far[-1]
    ends = [_common_prefix(whole, text) for text in so_far]
    return whole, [(min(a, b), b) for a, b in itertools.pairwise(ends)]


def _common_prefix(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _overlaps(span: Span, user_spans: CharSpans) -> bool:
    return any(span.start < b and a < span.end for a, b in user_spans)
