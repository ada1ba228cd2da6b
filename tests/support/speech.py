"""A tiny model that transcribes, with its processor."""

from __future__ import annotations

import transformers as T

import whence
from tests.support.vision_language import built, tokenizer

START = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]


class Processor:
    """A feature extractor with a tokenizer."""

    def __init__(self, feature_extractor, words):
        self.feature_extractor, self.tokenizer = feature_extractor, words
        self.model_input_names = ("input_features",)


def whisper():
    """An explainer of a tiny Whisper that hears two seconds."""
    words = tokenizer([], additional_special_tokens=START)
    words.add_tokens(START, special_tokens=True)
    start, english, transcribe, plain = words.convert_tokens_to_ids(START)
    config = T.WhisperConfig(
        vocab_size=len(words), num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24,
        encoder_attention_heads=4, decoder_attention_heads=4, decoder_ffn_dim=24, max_source_positions=100,
        max_target_positions=48, pad_token_id=0, bos_token_id=2, eos_token_id=1, decoder_start_token_id=start,
        begin_suppress_tokens=None,
    )  # fmt: skip
    model = built(T.WhisperForConditionalGeneration, config)
    given = model.generation_config
    given.decoder_start_token_id, given.no_timestamps_token_id = start, plain
    given.lang_to_id, given.task_to_id = {"<|en|>": english}, {"transcribe": transcribe}
    given.is_multilingual, given.language, given.task = True, "en", "transcribe"
    given.suppress_tokens = [0, 1, 2, start, english, transcribe, plain]
    given.max_length = 32
    return whence.Explainer(model, Processor(T.WhisperFeatureExtractor(feature_size=8, chunk_length=2), words))
