"""Chat prompts: messages as the one text that a tokenizer's template makes of them, and what of it the user wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from ..errors import InputError

Messages = Sequence[Mapping[str, str]]
Stretches = list[tuple[int, int]]

FORM = "messages are a list of {'role': 'user', 'content': 'a text'}"


def templated(tokenizer: Any, prompt: str | Messages) -> tuple[str, Stretches | None]:
    """A prompt as one string; of messages, by the tokenizer's chat template, with the stretches that the user wrote.

    Where a template makes something else of a text than the text itself, the stretch is what stands in its place. Where
    what it adds depends on the texts, the two cannot be told apart, and the whole counts as the user's.
    """
    if isinstance(prompt, str):
        return prompt, None
    messages = _checked(prompt)
    text = _rendered(tokenizer, messages)
    own = _own(tokenizer, messages, text)
    return text, [(0, len(text))] if own is None else own


def _checked(prompt: Any) -> list[dict[str, str]]:
    """Messages that each have a text."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        found = "an empty list" if isinstance(prompt, Sequence) and not prompt else type(prompt).__name__
        raise InputError(f"A prompt is a text or messages, not {found}: {FORM}.")
    for i, message in enumerate(prompt):
        if not isinstance(message, Mapping):
            raise InputError(f"Message {i} of the prompt is {type(message).__name__}: {FORM}.")
        if not isinstance(message.get("content"), str):
            found = type(message["content"]).__name__ if "content" in message else "missing"
            raise InputError(f"The content of message {i} of the prompt is {found}, not a text: {FORM}.")
    return [dict(message) for message in prompt]


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """The text that the template makes of messages."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of its own, and may raise anything
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"The tokenizer has no chat template that takes these messages ({said}). Give the prompt as one string, or "
            "messages as a list of {'role': ..., 'content': ...} with roles that the template knows."
        ) from error


def _own(tokenizer: Any, messages: list[dict[str, str]], text: str) -> Stretches | None:
    """Where the contents stand in the text: where marks stand if the template is given these in their place."""
    salt = next(n for n in count() if f"whence{n}message" not in text)
    contents = {f"whence{salt}message{i}end": message["content"] for i, message in enumerate(messages)}
    try:
        framed = _rendered(tokenizer, [{**m, "content": mark} for m, mark in zip(messages, contents, strict=True)])
    except InputError:  # it looks into the contents
        return None
    first, *rest = re.split(f"({'|'.join(contents)})", framed, flags=re.IGNORECASE)
    if not text.startswith(first):
        return None
    own, at = [], len(first)
    for mark, frame in zip(rest[::2], rest[1::2], strict=True):
        given = contents[mark.lower()]
        content = next((c for c in (given, given.strip()) if text.startswith(c + frame, at)), None)
        end = text.find(frame, at) if content is None else at + len(content)
        if end < 0:
            return None
        own.append((at, end))
        at = end + len(frame)
    return own if at == len(text) else None
