"""A picture and a text together: CLIP, ViLT, LXMERT and their like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..results.input_origin import Origin
from .image import PictureReader, read_picture
from .sample import Sample
from .text import TextReader

#: what a model that takes a picture's features, not its pixels, is given besides the text, and its dimensions
FEATURES = {
    "visual_feats": 3, "visual_pos": 3, "visual_embeds": 3, "visual_attention_mask": 2, "visual_token_type_ids": 2,
}  # fmt: skip


class JointReader:
    """Reads ``{"image": ..., "text": ...}`` or the pair ``(image, text)``; tensors in the mapping are passed on.

    Args:
        text: reads the text.
        picture: reads the picture; ``None`` for models that take features in its place.
    """

    kind = "image and text"

    def __init__(self, text: TextReader, picture: PictureReader | None) -> None:
        self.text = text
        self.picture = picture

    def read(self, raw: Any) -> Sample:
        """One picture (or its features) with one text."""
        pair = isinstance(raw, tuple) and len(raw) == 2
        given = raw if isinstance(raw, Mapping) else dict(zip(("image", "text"), raw, strict=True)) if pair else {}
        if "text" not in given:
            raise InputError(
                "This model reads a picture and a text: give {'image': ..., 'text': ...} or the pair (image, text)."
            )
        words = self.text.read(given["text"])
        tensors: dict[str, Tensor] = dict(words.tensors)
        origins: dict[str, Origin] = dict(words.origins)
        for name, value in given.items():
            if name in ("image", "text"):
                continue
            if not isinstance(value, Tensor):
                raise InputError(
                    f"'{name}' is {type(value).__name__}; what is not a picture or a text must be a tensor."
                )
            tensors[name] = value[None] if value.dim() < FEATURES.get(name, value.dim()) else value
        if self.picture is None:
            if not any(name in FEATURES for name in given):
                raise InputError(
                    "This model takes a picture's features, not its pixels: give them beside the text, as in "
                    "{'text': ..., 'visual_feats': tensor, 'visual_pos': tensor}."
                )
        elif "image" in given:
            picture, name = read_picture(given["image"])
            tensors |= self.picture.process(picture)
            origins["image"] = self.picture.origin(picture, name)
        else:
            raise InputError("The picture is missing: give {'image': ..., 'text': ...}.")
        return Sample({k: v if v.dim() else torch.as_tensor([v]) for k, v in tensors.items()}, origins)
