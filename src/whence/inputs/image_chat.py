"""Chat messages with an image, as users write them for the chat templates of vision-language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

FORM = (
    "[{'role': 'user', 'content': [{'type': 'image', 'image': 'photo.jpg'}, {'type': 'text', 'text': 'What is it?'}]}]"
)


@dataclass(frozen=True)
class ImageChat:
    """Messages whose contents are lists, with one place for an image.

    Attributes:
        messages: for the processor's chat template.
        texts: what the users wrote, in order; not what the model is said to have answered.
        image: the image that a message holds; ``None`` if it is given apart.
    """

    messages: list[dict[str, Any]]
    texts: tuple[str, ...]
    image: Any


def read_chat(prompt: Any) -> ImageChat:
    """Read messages; an image that no message has a place for goes before the first text of a user.

    Example:
        >>> read_chat([{"role": "user", "content": "What is this?"}]).messages
        [{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'What is this?'}]}]
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        found = "an empty list" if isinstance(prompt, list) else type(prompt).__name__
        raise InputError(f"A prompt is a text or messages, not {found}: {FORM}.")
    messages = [_message(i, message) for i, message in enumerate(prompt)]
    parts = [part for message in messages for part in message["content"]]
    places = [part for part in parts if part["type"] == "image"]
    if len(places) > 1:
        raise InputError(f"The messages have {len(places)} images; explanations are of one image and its prompt.")
    of_users = [message for message in messages if message["role"] == "user"]
    if not of_users:
        raise InputError("The messages have none of the role 'user'.")
    if not places:
        of_users[0]["content"].insert(0, {"type": "image"})
    image = next((part[key] for part in places for key in ("image", "path", "url") if key in part), None)
    texts = tuple(part["text"] for m in of_users for part in m["content"] if part["type"] == "text" and part["text"])
    plain = [
        m | {"content": [{"type": "image"} if p["type"] == "image" else p for p in m["content"]]} for m in messages
    ]
    return ImageChat(plain, texts, image)


def _message(i: int, message: Any) -> dict[str, Any]:
    """Return a message whose content is a list of parts; raise an error unless each is a text or an image."""
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise InputError(f"Message {i} of the prompt has no 'role' and 'content': messages are {FORM}.")
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, Sequence) or not all(map(_is_part, parts)):
        raise InputError(f"The content of message {i} of the prompt is neither a text nor texts and images: {FORM}.")
    return {**message, "content": [dict(part) for part in parts]}


def _is_part(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    return part.get("type") == "image" or (part.get("type") == "text" and isinstance(part.get("text"), str))
