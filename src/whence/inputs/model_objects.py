"""Objects that hold a model and its processor: pipelines of transformers, models of sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

from ..errors import ModelError
from .sample import Reader
from .sentence_encoder import SentencePair, SentencePairReader

PARTS = ("tokenizer", "image_processor", "feature_extractor")


@dataclass(frozen=True)
class ModelParts:
    """A model with what reads its inputs.

    Attributes:
        model: the module that runs.
        processor: its processor.
        reader: makes the reader, where the model needs a reader of its own; takes whether long texts are truncated.
        labels: names of its outputs, where they are none of its configuration's.
    """

    model: Any
    processor: Any
    reader: Callable[[bool], Reader] | None = None
    labels: tuple[str, ...] | None = None


def parts_of(model: Any, processor: Any) -> ModelParts:
    """Return the module and the processor of an object that holds both; a module, and its processor, as they are.

    Args:
        model: a module, a pipeline of transformers, or a SentenceTransformer or CrossEncoder.
        processor: given in place of the object's own.
    """
    if _is(model, "transformers.pipelines.base", "Pipeline"):
        return ModelParts(model.model, processor or _pipeline_processor(model))
    if _is(model, "sentence_transformers", "CrossEncoder"):
        return ModelParts(model.model, processor or model.tokenizer)
    if _is(model, "sentence_transformers", "SentenceTransformer"):
        return _sentence_transformer(model, processor or model.tokenizer)
    return ModelParts(model, processor)


def sentence_pair(
    encoder: nn.Module, tokenizer: Any, similarity: str, dimensions: int | None, **reading: Any
) -> ModelParts:
    """Return the similarity of two texts by an encoder, and their reader.

    Args:
        encoder: as for :class:`SentencePair`, and
        similarity, dimensions: as there.
        tokenizer: the encoder's tokenizer.
        reading: further arguments of :class:`SentencePairReader`.
    """
    pair = SentencePair(encoder, similarity, dimensions)
    return ModelParts(
        pair, tokenizer, lambda truncate: SentencePairReader(tokenizer, pair, truncate, **reading), (pair.name,)
    )


def _sentence_transformer(model: Any, tokenizer: Any) -> ModelParts:
    """Return a SentenceTransformer with the similarity, the prompt and the limit that it is set to."""
    prompt = (model.prompts or {}).get(model.default_prompt_name) or ""
    if prompt and not all(getattr(module, "include_prompt", True) for module in model):
        raise ModelError(
            f"The model's pooling leaves out its prompt '{prompt}', which is not supported: set "
            "model.default_prompt_name = None, or put the prompt into a module of your own."
        )
    return sentence_pair(
        model,
        tokenizer,
        str(model.similarity_fn_name),
        model.truncate_dim,
        limit=model.max_seq_length,
        prompt=prompt,
        lower=bool(getattr(model[0], "do_lower_case", False)),
    )


def _pipeline_processor(pipeline: Any) -> Any:
    """Return the processor of a pipeline: what it has, if that is one; a combined one, or all that it has."""
    found = {name: part for name in PARTS if (part := getattr(pipeline, name, None)) is not None}
    combined = getattr(pipeline, "processor", None)
    if combined is not None:
        return combined
    if len(found) < 2:
        return next(iter(found.values()), None)
    makes = [name for part in found.values() for name in getattr(part, "model_input_names", ())]
    return SimpleNamespace(**found, model_input_names=makes)


def _is(thing: Any, module: str, name: str) -> bool:
    """Whether a thing is of a class of a package; without importing the package, of which no object can be then."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(thing, found)
