"""Choose the reader that a model and its processor need."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..errors import InputError
from .audio import AudioReader
from .image import ImageReader
from .image_text import FEATURES, ImageTextReader
from .sample import Reader
from .series import SeriesReader
from .speech import DECODER_INPUT, SpeechReader
from .text import TextReader
from .token_output import can_generate
from .vision_language import VisionLanguageReader, image_token_id

MODALITIES = ("text", "image", "image and text", "audio", "series")


def reader_for(model: nn.Module, processor: Any, modality: str | None, truncate: bool) -> Reader | None:
    """Return the reader; ``None`` if only tensors can be given."""
    kind = modality or _find_modality(model, processor)
    if kind is None:
        return None
    if kind not in MODALITIES:
        raise InputError(f"The modality is one of {', '.join(MODALITIES)}, not {kind!r}.")
    if kind == "series":
        return SeriesReader(model, getattr(model, "main_input_name", "past_values"))
    if processor is None:
        raise InputError(f"To read {kind} this model needs a processor: Explainer(model, processor=...).")
    tokenizer = getattr(processor, "tokenizer", None) or processor
    image_processor = getattr(processor, "image_processor", None) or processor
    if kind == "text":
        return TextReader(tokenizer, model, truncate)
    if kind == "image":
        return ImageReader(image_processor, getattr(model, "main_input_name", None) or _image_argument(model))
    if kind == "audio":
        extractor = getattr(processor, "feature_extractor", None) or processor
        writes = can_generate(model) and DECODER_INPUT in inspect.signature(model.forward).parameters
        return (
            SpeechReader(extractor, model, tokenizer)
            if writes and tokenizer is not processor
            else AudioReader(extractor)
        )
    text = TextReader(tokenizer, model, truncate)
    if image_token_id(model) is not None and image_processor is not tokenizer and callable(processor):
        return VisionLanguageReader(processor, model, text)
    return ImageTextReader(text, None if image_processor is tokenizer else ImageReader(image_processor))


def _image_argument(model: nn.Module) -> str:
    """Return the model's argument for images: ``pixel_values``, or its first one if it has no such argument."""
    takes = inspect.signature(model.forward).parameters
    named = [name for name, p in takes.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    return "pixel_values" if "pixel_values" in takes or anything or not named else named[0]


def _find_modality(model: nn.Module, processor: Any) -> str | None:
    """Return the modality of a model, by its arguments and its processor's outputs; ``None`` if it is not known."""
    takes = set(inspect.signature(model.forward).parameters)
    if processor is None:
        return "series" if getattr(model, "main_input_name", "") == "past_values" else None
    makes = set(getattr(processor, "model_input_names", ()) or ())
    both = hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")
    text = "input_ids" in makes or hasattr(processor, "convert_ids_to_tokens") or hasattr(processor, "vocabulary")
    if both and {"input_ids", "pixel_values"} <= takes:
        return "image and text"
    if text and takes & set(FEATURES):
        return "image and text"
    if hasattr(processor, "feature_extractor") or makes & {"input_values", "input_features"}:
        return "audio"
    if both:
        return "image" if "pixel_values" in takes else "text"
    if text:
        return "text"
    if (
        "pixel_values" in makes
        or hasattr(processor, "image_mean")
        or getattr(model, "main_input_name", "") == "pixel_values"
    ):
        return "image"
    return "image" if callable(processor) else None
