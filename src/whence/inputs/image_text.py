"""An image and a text together, for CLIP, ViLT, LXMERT and similar models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..results.input_origin import Origin
from .image import ImageReader, read_image
from .sample import Sample
from .text import TextReader

#: arguments of models that take an image's features in place of its pixels, and their dimensions
FEATURES = {
    "visual_feats": 3, "visual_pos": 3, "visual_embeds": 3, "visual_attention_mask": 2, "visual_token_type_ids": 2,
}  # fmt: skip


class ImageTextReader:
    """A reader of ``{"image": ..., "text": ...}`` or ``(image, text)``; tensors in the mapping are passed on.

    Args:
        text: reads the text.
        image: reads the image; ``None`` for models that take features in its place.
    """

    kind = "image and text"

    def __init__(self, text: TextReader, image: ImageReader | None) -> None:
        self.text = text
        self.image = image

    def read(self, raw: Any) -> Sample:
        """Read one image (or its features) with one text."""
        given: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        if isinstance(raw, tuple) and len(raw) == 2:
            given = {"image": raw[0], "text": raw[1]}
        if "text" not in given:
            raise InputError(
                "This model reads a picture and a text: give {'image': ..., 'text': ...} or the pair (image, text)."
            )
        text = self.text.read(given["text"])
        tensors: dict[str, Tensor] = dict(text.tensors)
        origins: dict[str, Origin] = dict(text.origins)
        for name, value in given.items():
            if name in ("image", "text"):
                continue
            if not isinstance(value, Tensor):
                raise InputError(
                    f"'{name}' is {type(value).__name__}; what is not a picture or a text must be a tensor."
                )
            tensors[name] = value[None] if value.dim() < FEATURES.get(name, value.dim()) else value
        if self.image is None:
            if not any(name in FEATURES for name in given):
                raise InputError(
                    "This model takes a picture's features, not its pixels: give them beside the text, as in "
                    "{'text': ..., 'visual_feats': tensor, 'visual_pos': tensor}."
                )
        elif "image" in given:
            image, name = read_image(given["image"])
            tensors |= self.image.process(image)
            origins["image"] = self.image.origin(image, name)
        else:
            raise InputError("The picture is missing: give {'image': ..., 'text': ...}.")
        return Sample({k: v if v.dim() else torch.as_tensor([v]) for k, v in tensors.items()}, origins)
