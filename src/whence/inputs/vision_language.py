"""An image and a prompt, for vision-language models: the processor puts tokens for the image into the prompt."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputError
from ..results.input_origin import ImageOrigin, Origin, Span, TextOrigin
from .image import read_image
from .image_chat import read_chat
from .patch_layout import PatchLayout, find_layout
from .sample import Sample
from .text import TextReader

PIXELS = "pixel_values"


def image_token_id(model: nn.Module) -> int | None:
    """Return the token that stands for an image in a model's prompts; ``None`` if it has none."""
    config = getattr(model, "config", None)
    found = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((int(token) for token in found if isinstance(token, int)), None)


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt with its images, as the processor encodes it.

    Attributes:
        tensors: the model's arguments.
        text: the prompt, with one placeholder for each image.
        tokens: its tokens, those of images included.
        spans: where each token is in the prompt; ``None`` for those of images and those that were added.
    """

    tensors: dict[str, Tensor]
    text: str
    tokens: tuple[str, ...]
    spans: tuple[Span | None, ...]


class VisionLanguageReader:
    """A reader of ``{"image": ..., "text": ...}`` or ``(image, text)``, by a model's own processor.

    A prompt without a placeholder for the image gets one: as a chat message of the user, if the processor has a chat
    template; otherwise before the text.

    Args:
        processor: the model's processor.
        model: the model.
        text: reads texts.
    """

    kind = "image and text"

    def __init__(self, processor: Any, model: nn.Module, text: TextReader) -> None:
        self.processor = processor
        self.text = text
        self.tokenizer = text.tokenizer
        self.image_token = image_token_id(model)
        self.layout = functools.lru_cache(maxsize=64)(self._layout)

    def read(self, raw: Any) -> Sample:
        """Read one image with one prompt."""
        given: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        if isinstance(raw, tuple) and len(raw) == 2:
            given = {"image": raw[0], "text": raw[1]}
        if "text" not in given:
            raise InputError(
                "This model reads an image and a prompt: give {'image': ..., 'text': ...} or the pair (image, text)."
            )
        text, written, image = self._prompt(given["text"], given.get("image"))
        picture, name = read_image(image)
        encoded = self.encode(text, [picture])
        origin = TextOrigin((encoded.text,), encoded.tokens, self.user_spans(encoded, written))
        origins: dict[str, Origin] = {"text": origin}
        image, layout = self.image_origin(picture, name)
        if image is not None:
            origins["image"] = image
        return Sample(encoded.tensors, origins, alone=True, layout=layout)

    def _prompt(self, prompt: Any, image: Any) -> tuple[str, tuple[str, ...], Any]:
        """Return a prompt or messages as one text with a placeholder, what the user wrote of it, and the image."""
        written: tuple[str, ...] = (prompt,)
        if isinstance(prompt, str):
            text = self.with_placeholder(prompt)
        else:
            chat = read_chat(prompt)
            if image is not None and chat.image is not None:
                raise InputError("The image is given twice, in a message and beside the messages: give it once.")
            image = chat.image if image is None else image
            text, written = self.rendered(chat.messages), chat.texts
        if image is None:
            raise InputError("There is no image: give {'image': ..., 'text': ...}, or put it into a message.")
        return text, written, image

    @property
    def placeholder(self) -> str:
        """What stands for an image in a prompt."""
        token = getattr(self.processor, "boi_token", None) or getattr(self.processor, "image_token", None)
        return str(token or self.tokenizer.convert_ids_to_tokens(self.image_token))

    def with_placeholder(self, text: str) -> str:
        """Return a prompt with a placeholder for its image."""
        if self.placeholder in text:
            return text
        if getattr(self.processor, "chat_template", None):
            return self.rendered([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}])
        return self.placeholder + text

    def rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render messages by the processor's chat template."""
        try:
            return str(self.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program, and may raise anything
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"The processor has no chat template that takes these messages ({why}). Write the prompt as one text "
                f"with '{self.placeholder}' where the image belongs."
            ) from error

    def user_spans(self, encoded: EncodedPrompt, texts: Sequence[str]) -> tuple[Span | None, ...]:
        """Return the spans of a prompt's tokens, of those alone that the user wrote.

        Args:
            encoded: the prompt.
            texts: what the user wrote, in order. If a template has changed it, all of the prompt counts as the user's.
        """
        own: list[tuple[int, int]] = []
        for text in texts:
            start = encoded.text.find(text.strip(), own[-1][1] if own else 0)
            if start < 0:
                return encoded.spans
            own.append((start, start + len(text.strip())))
        return tuple(
            s if s is not None and any(s.end > a and s.start < b for a, b in own) else None for s in encoded.spans
        )

    def encode(self, text: str, pictures: Sequence[Any]) -> EncodedPrompt:
        """Encode a prompt with a placeholder for each image."""
        places = text.count(self.placeholder)
        if places != len(pictures):
            raise InputError(
                f"The prompt has {places} times '{self.placeholder}' and {len(pictures)} "
                f"image{'s' * (len(pictures) != 1)}: write it once for each image, or leave it out."
            )
        recorder = _Recorder(self.tokenizer)
        processor = copy.copy(self.processor)
        processor.tokenizer = recorder
        try:
            made = processor(text=[text], images=[list(pictures)], return_tensors="pt")
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise InputError(
                f"{type(self.processor).__name__} cannot read this prompt with {len(pictures)} "
                f"image{'s' * (len(pictures) != 1)}: {str(error).splitlines()[0]}"
            ) from error
        tensors = {k: v for k, v in made.items() if isinstance(v, Tensor) and k != "labels"}
        ids = tensors["input_ids"][0].tolist()
        tokens = tuple(map(str, self.tokenizer.convert_ids_to_tokens(ids)))
        return EncodedPrompt(tensors, text, tokens, self._spans(text, recorder, ids))

    def _spans(self, text: str, recorder: _Recorder, ids: list[int]) -> tuple[Span | None, ...]:
        """Return where each token is in the prompt, of which the processor has tokenized an expanded form."""
        expanded, offsets = recorder.offsets(ids)
        if offsets is None:
            return (None,) * len(ids)
        places = _common_text(text, expanded, self.placeholder)
        spans: list[Span | None] = []
        for token, (a, b) in zip(ids, offsets, strict=True):
            own = [p for p in places if p[1] <= a and b <= p[1] + p[2]] if a < b and token != self.image_token else []
            spans.append(Span(a - own[0][1] + own[0][0], b - own[0][1] + own[0][0]) if own else None)
        return tuple(spans)

    def image_origin(self, picture: Any, name: str) -> tuple[ImageOrigin | None, PatchLayout | None]:
        """Return an image, with where it lies in the model's input, and where its patches are."""
        layout = self.layout(*picture.size)
        if layout is None:
            return None, None
        scale, shift, size = layout.whole
        return ImageOrigin(np.asarray(picture), scale, shift, size, name), layout

    def _layout(self, width: int, height: int) -> PatchLayout | None:
        image_processor = self.processor.image_processor

        def process(picture: Any) -> Mapping[str, Tensor]:
            out = image_processor(images=[picture], return_tensors="pt")
            return {k: torch.as_tensor(v) for k, v in out.items() if isinstance(v, Tensor)}

        return find_layout(process, PIXELS, int(getattr(image_processor, "merge_size", 1) or 1), width, height)


class _Recorder:
    """A tokenizer that remembers what it was called with."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, **options: Any) -> Any:
        one = text[0] if isinstance(text, list | tuple) and len(text) == 1 else text
        if isinstance(one, str):
            self._calls.append((one, options))
        return self._tokenizer(text, **options)

    def offsets(self, ids: list[int]) -> tuple[str, list[tuple[int, int]] | None]:
        """Return the text that was tokenized, and the characters of each token; ``None`` if they are not known."""
        if not self._calls or not getattr(self._tokenizer, "is_fast", False):
            return "", None
        text, options = self._calls[-1]
        encoded = self._tokenizer(text, **options | {"return_offsets_mapping": True, "return_tensors": None})
        same = list(encoded["input_ids"]) == ids
        return text, [(int(a), int(b)) for a, b in encoded["offset_mapping"]] if same else None


def _common_text(text: str, expanded: str, placeholder: str) -> list[tuple[int, int, int]]:
    """Return the pieces of a prompt between its placeholders: their start, that in the expanded prompt, their length.

    The first piece begins the expanded prompt if the placeholder does not, the last one ends it if it can.
    """
    found: list[tuple[int, int, int]] = []
    pieces = text.split(placeholder)
    start = at = 0
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        place = expanded.rfind(piece) if last else expanded.find(piece, at)
        if piece and place >= at:
            found.append((start, place, len(piece)))
            at = place + len(piece)
        start += len(piece) + len(placeholder)
    return found
