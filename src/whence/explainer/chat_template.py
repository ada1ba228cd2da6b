"""Chat prompts: messages rendered by the tokenizer's chat template, and which characters of it the user wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from ..errors import InputError

Messages = Sequence[Mapping[str, str]]
CharSpans = list[tuple[int, int]]

FORM = "messages are a list of {'role': 'user', 'content': 'a text'}"


def apply_template(tokenizer: Any, prompt: str | Messages) -> tuple[str, CharSpans | None]:
    """Return a prompt as one string; of messages, by the tokenizer's chat template, with the user's characters.

    Where a template changes a message's text, the span covers what replaces it. Where the text that a template adds
    depends on the messages, the two cannot be distinguished, and the whole counts as the user's.
    """
    if isinstance(prompt, str):
        return prompt, None
    messages = _check_messages(prompt)
    text = _render(tokenizer, messages)
    spans = _user_spans(tokenizer, messages, text)
    return text, [(0, len(text))] if spans is None else spans


def _check_messages(prompt: Any) -> list[dict[str, str]]:
    """Return messages; raise an error unless each has a text."""
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


def _render(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """Render messages by the tokenizer's chat template."""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program, and may raise anything
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"The tokenizer has no chat template that takes these messages ({why}). Give the prompt as one string, or "
            "messages as a list of {'role': ..., 'content': ...} with roles that the template knows."
        ) from error


def _user_spans(tokenizer: Any, messages: list[dict[str, str]], text: str) -> CharSpans | None:
    """Find the messages in the text, by rendering the template with a unique mark in place of each."""
    salt = next(n for n in count() if f"whence{n}message" not in text)
    contents = {f"whence{salt}message{i}end": message["content"] for i, message in enumerate(messages)}
    try:
        framed = _render(tokenizer, [{**m, "content": mark} for m, mark in zip(messages, contents, strict=True)])
    except InputError:  # the template accepts certain contents only
        return None
    first, *rest = re.split(f"({'|'.join(contents)})", framed, flags=re.IGNORECASE)
    if not text.startswith(first):
        return None
    spans = []
    at = len(first)
    for mark, frame in zip(rest[::2], rest[1::2], strict=True):
        given = contents[mark.lower()]
        content = next((c for c in (given, given.strip()) if text.startswith(c + frame, at)), None)
        end = text.find(frame, at) if content is None else at + len(content)
        if end < 0:
            return None
        spans.append((at, end))
        at = end + len(frame)
    return spans if at == len(text) else None
