"""Sound."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tools.conformance.families.vision import make, stir
from tools.conformance.family import VOCABULARY, Inputs, add, ids

GROUP = "Audio"
LISTENING: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "num_labels": 3,
    "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "apply_spec_augment": False, "vocab_size": 32,
    "initializer_range": 0.3,
}  # fmt: skip


def sound(samples: int, length: int = 89) -> Inputs:
    """Sound waves: of 89 samples, convolutions make 7 tokens, and of 2 samples more one token more."""
    return {"input_values": torch.randn(samples, length)}


def with_mask(samples: int) -> Inputs:
    """Sound waves, and a mask that hides nothing."""
    given = sound(samples)
    return {**given, "attention_mask": torch.ones_like(given["input_values"], dtype=torch.long)}


PADDED_SOUND: dict[str, Any] = {"mask": "attention_mask", "padded": {"input_values": 0, "attention_mask": 0}}


def listener(name: str, prefix: str, mask: bool, **options: Any) -> None:
    """A family that classifies sound waves as Wav2Vec2 does."""
    parts = {k: options.pop(k) for k in ("implementations", "streams", "note", "inputs") if k in options}
    given = {**LISTENING, "model": f"{prefix}ForSequenceClassification", "config": f"{prefix}Config", **options}
    parts = {"streams": {"input": 7}, "inputs": with_mask if mask else sound, **parts}
    add(name, GROUP, attentions=2, build=partial(stir, **given), **(PADDED_SOUND if mask else {}), **parts)


WHISPER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "num_mel_bins": 8, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_source_positions": 7, "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "init_std": 0.3, "classifier_proj_size": 8, "num_labels": 3,
}  # fmt: skip


def mel(samples: int) -> Inputs:
    """Spectrograms."""
    return {"input_features": torch.randn(samples, 8, 14)}


def word(outputs: Any) -> Any:
    """The score of a token behind the last one."""
    return outputs.logits[:, -1, 7]


add(
    "Whisper", GROUP, attentions=6, streams={"input": 7, "text": 5}, target=word,
    inputs=lambda n: {**mel(n), "decoder_input_ids": ids(n, 5)},
    build=partial(make, model="WhisperForConditionalGeneration", config="WhisperConfig", **WHISPER),
)  # fmt: skip
add(
    "Whisper, classifier", GROUP, attentions=2, streams={"input": 7}, inputs=mel,
    build=partial(make, model="WhisperForAudioClassification", config="WhisperConfig", **WHISPER),
)  # fmt: skip
listener("Wav2Vec2", "Wav2Vec2", mask=False)
listener(
    "Wav2Vec2, layer norms", "Wav2Vec2", mask=True, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True
)
listener("HuBERT", "Hubert", mask=True, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True)
listener("WavLM", "WavLM", mask=False, implementations=("eager",), num_buckets=8, max_bucket_distance=16)
add(
    "AST", GROUP, attentions=2, streams={"input": 8}, inputs=lambda n: {"input_values": torch.randn(n, 24, 16)},
    build=partial(
        make, model="ASTForAudioClassification", config="ASTConfig", hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=24, patch_size=8, frequency_stride=8, time_stride=8, max_length=24,
        num_mel_bins=16, num_labels=3, initializer_range=0.3,
    ),
)  # fmt: skip
listener("SEW", "SEW", mask=False, streams={"input": 4}, inputs=partial(sound, length=99), squeeze_factor=2)
listener("UniSpeech", "UniSpeech", mask=False)
listener("Data2Vec (audio)", "Data2VecAudio", mask=False, conv_pos_kernel_size=5, num_conv_pos_embeddings=2)
listener(
    "Wav2Vec2-Conformer", "Wav2Vec2Conformer", mask=False, feat_extract_norm="layer", conv_bias=True,
    conv_depthwise_kernel_size=3,
)  # fmt: skip
DEPTH = ("num_hidden_layers", "num_attention_heads", "intermediate_size")
speech = {k: v for k, v in LISTENING.items() if k not in DEPTH}
add(
    "SpeechT5", GROUP, attentions=6, streams={"input": 7, "text": 5}, target=word, implementations=("eager",),
    inputs=lambda n: {**sound(n), "decoder_input_ids": ids(n, 5)},
    build=partial(
        stir, model="SpeechT5ForSpeechToText", config="SpeechT5Config", encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24,
        encoder_max_relative_position=8, **{**speech, "vocab_size": VOCABULARY},
    ),
)  # fmt: skip
add(
    "Moonshine", GROUP, attentions=6, streams={"input": 7, "text": 5}, target=word,
    inputs=lambda n: {**sound(n, 3199), "decoder_input_ids": ids(n, 5)},
    build=partial(
        make, model="MoonshineForConditionalGeneration", config="MoonshineConfig", vocab_size=VOCABULARY,
        hidden_size=32, intermediate_size=24, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, initializer_range=0.3,
    ),
)  # fmt: skip
add(
    "CLAP (audio)", GROUP, attentions=3, streams={"image": 64}, implementations=("eager",),
    inputs=lambda n: {"input_features": torch.randn(n, 1, 64, 16)},
    target=lambda outputs: outputs.audio_embeds[:, 1],
    build=partial(
        stir, model="ClapAudioModelWithProjection", config="ClapAudioConfig", window_size=4, num_mel_bins=16,
        spec_size=32, patch_size=4, patch_stride=[4, 4], hidden_size=16, projection_dim=8, depths=[2, 1],
        num_attention_heads=[2, 2], patch_embeds_hidden_size=8, num_hidden_layers=2,
    ),
    note="its spectrogram is read as a picture",
)  # fmt: skip
listener("UniSpeech-SAT", "UniSpeechSat", mask=False)
listener(
    "SEW-D", "SEWD", mask=False, streams={"input": 4}, inputs=partial(sound, length=99), squeeze_factor=2,
    implementations=("eager",), position_buckets=8, max_position_embeddings=16,
    note="its softmax is an autograd function of its own, into which nothing is seen",
)  # fmt: skip
add(
    "Wav2Vec2-BERT", GROUP, attentions=2, streams={"input": 7},
    inputs=lambda n: {"input_features": torch.randn(n, 7, 8)}, implementations=("eager",),
    build=partial(
        stir, model="Wav2Vec2BertForSequenceClassification", config="Wav2Vec2BertConfig", hidden_size=16,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, feature_projection_input_dim=8,
        conv_depthwise_kernel_size=3, left_max_position_embeddings=8, right_max_position_embeddings=8,
        classifier_proj_size=8, num_labels=3, apply_spec_augment=False,
    ),
)  # fmt: skip
add(
    "Speech2Text", GROUP, attentions=6, streams={"input": 7, "text": 5}, target=word, implementations=("eager",),
    inputs=lambda n: {"input_features": torch.randn(n, 28, 8), "decoder_input_ids": ids(n, 5)},
    build=partial(
        stir, model="Speech2TextForConditionalGeneration", config="Speech2TextConfig", vocab_size=VOCABULARY,
        d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=40, max_target_positions=20,
        num_conv_layers=2, conv_kernel_sizes=[3, 3], conv_channels=16, input_feat_per_channel=8, input_channels=1,
    ),
)  # fmt: skip
