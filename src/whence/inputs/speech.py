"""Audio for models that write what they hear, such as Whisper: the waveform, and how a transcript begins."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from ..results.input_origin import TextOrigin
from ..tracing.eval_mode import undisturbed
from .audio import AudioReader
from .sample import Sample, on_model

DECODER_INPUT = "decoder_input_ids"
#: arguments of Whisper's ``generate`` without which it leaves out the tokens that its transcript begins with
_WHOLE = {"return_dict_in_generate": True, "force_unique_generate_call": True}


class SpeechReader(AudioReader):
    """A reader of audio for a model that transcribes or translates it.

    Args:
        extractor: the feature extractor.
        model: the model.
        tokenizer: decodes what it writes.
    """

    def __init__(self, extractor: Any, model: Any, tokenizer: Any) -> None:
        super().__init__(extractor)
        self.model = model
        self.tokenizer = tokenizer

    def read(self, raw: Any) -> Sample:
        """Read audio; the prediction is the first token of the transcript, after those that it begins with."""
        sample = super().read(raw)
        start, _ = self.transcript(sample.tensors, 1)
        tokens = tuple(map(str, self.tokenizer.convert_ids_to_tokens(start)))
        sample.tensors[DECODER_INPUT] = torch.tensor([start])
        origins = {**sample.origins, "text": TextOrigin(("",), tokens, (None,) * len(start))}
        return Sample(sample.tensors, origins, position=len(start) - 1, alone=True)

    def audio(self, raw: Any) -> Sample:
        """Read audio alone."""
        return super().read(raw)

    def transcript(
        self, tensors: Mapping[str, Tensor], most: int, sampling: Mapping[str, Any] | None = None
    ) -> tuple[list[int], list[int]]:
        """Have the model write what it hears.

        Args:
            tensors: the model's arguments.
            most: how many tokens it generates, at most.
            sampling: further arguments of the model's ``generate``: ``language``, ``task``, ...

        Returns:
            The tokens that its transcript begins with (of language and task), and those that follow, up to its end.
        """
        given = on_model(self.model, tensors)
        takes = inspect.signature(self.model.generate).parameters
        whole = {k: v for k, v in _WHOLE.items() if k in takes or k == "return_dict_in_generate"}
        options = {"max_new_tokens": most, "do_sample": False, "num_beams": 1} | dict(sampling or {})
        with torch.no_grad(), undisturbed(self.model):
            try:
                out = self.model.generate(**given, **options, **whole)
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise ModelError(f"The model could not write: {str(error).splitlines()[0]}") from error
        row = [int(i) for i in getattr(out, "sequences", out)[0]]
        special = set(self.tokenizer.all_special_ids)
        count = next((n for n, token in enumerate(row) if n and token not in special), len(row))
        if most == 1:  # the one token may be the transcript's end, which is special, too
            count = min(count, len(row) - 1)
        following = row[count:]
        end = next((n for n, token in enumerate(following) if token in special), len(following))
        return row[:count], following[:end]
