"""Tiny models that read images, audio, series and pairs, with their processors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
import transformers as hf
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import whence
from tests.support import tiny
from tests.support.processors import WORDS, small
from whence.inputs.smiles import SmilesTokenizer
from whence.results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin, TextOrigin

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


TEXT = SIZES | {"vocab_size": len(WORDS), "max_position_embeddings": 40}


SPOKEN = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


SQUEEZED = ViTImageProcessorPil(size={"height": 12, "width": 12})


CROPPED = CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12})


SINE = np.sin(np.arange(8000) / 20).astype(np.float32)  # half a second


FEATURES = {"visual_feats": torch.linspace(-1, 1, 50).view(5, 10), "visual_pos": torch.linspace(0, 1, 20).view(5, 4)}


SERIES = np.random.default_rng(0).normal(size=(32, 2))


SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "C", "c", "(", ")", "=", "O", "N", "Cl", "Br", "[C@H]", ">>"]


def picture(width, height):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def both(tokenizer, image_processor):
    """What holds a tokenizer and an image processor, as CLIP's and ViLT's processors do."""
    names = ["input_ids", "attention_mask", "pixel_values"]
    return SimpleNamespace(tokenizer=tokenizer, image_processor=image_processor, model_input_names=names)


def clip():
    vision = SIZES | {"image_size": 12, "patch_size": 4}
    text = TEXT | {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return whence.Explainer(small(hf.CLIPModel, config), both(WORDS, CROPPED))


def vilt():
    config = hf.ViltConfig(**TEXT, image_size=12, patch_size=4, num_labels=3, initializer_range=0.3)
    processor = ViltImageProcessorPil(size={"shortest_edge": 12}, size_divisor=4)
    return whence.Explainer(small(hf.ViltForQuestionAnswering, config), both(WORDS, processor))


def lxmert():
    config = hf.LxmertConfig(
        **{k: v for k, v in TEXT.items() if k != "num_hidden_layers"}, l_layers=2, x_layers=2, r_layers=2,
        visual_feat_dim=10, num_qa_labels=3, initializer_range=0.3,
    )  # fmt: skip
    return whence.Explainer(small(hf.LxmertForQuestionAnswering, config), WORDS)


def wav2vec():
    config = hf.Wav2Vec2Config(
        **SIZES, vocab_size=10, conv_dim=(16, 16), conv_stride=(16, 20), conv_kernel=(16, 20), num_labels=3,
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=16,
        initializer_range=0.3,
    )  # fmt: skip
    return whence.Explainer(small(hf.Wav2Vec2ForSequenceClassification, config), hf.Wav2Vec2FeatureExtractor())


def spectrogram():
    config = hf.ASTConfig(**SIZES, max_length=100, num_mel_bins=32, num_labels=3, initializer_range=0.3)
    extractor = hf.ASTFeatureExtractor(max_length=100, num_mel_bins=32)
    return whence.Explainer(small(hf.ASTForAudioClassification, config), extractor)


def whisper():
    config = hf.WhisperConfig(
        **SPOKEN, d_model=32, encoder_layers=2, encoder_attention_heads=4, decoder_layers=1, decoder_attention_heads=4,
        encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=16, max_source_positions=100, max_target_positions=20,
        num_labels=3, classifier_proj_size=16, init_std=0.3,
    )  # fmt: skip
    extractor = hf.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    return whence.Explainer(small(hf.WhisperForAudioClassification, config), extractor)


def patchtst(cls_token=False):
    config = hf.PatchTSTConfig(
        num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=32, num_hidden_layers=2,
        num_attention_heads=4, ffn_dim=24, num_targets=3, init_std=0.3, use_cls_token=cls_token,
    )  # fmt: skip
    return whence.Explainer(small(hf.PatchTSTForClassification, config))


def molecules():
    tokenizer = SmilesTokenizer({symbol: i for i, symbol in enumerate(SYMBOLS)})
    config = hf.BertConfig(**(TEXT | {"vocab_size": len(SYMBOLS)}), num_labels=3, initializer_range=0.3)
    return whence.Explainer(small(hf.BertForSequenceClassification, config), tokenizer)


#: explainer, input, modality, streams with their origins
KINDS = {
    "vit": (lambda: whence.Explainer(tiny.vit(), SQUEEZED), picture(40, 20), "image", {"image": ImageOrigin}),
    "cropped": (lambda: whence.Explainer(tiny.vit(), CROPPED), picture(40, 20), "image", {"image": ImageOrigin}),
    "clip": (clip, (picture(40, 20), "a good film"), "image and text", {"image": ImageOrigin, "text": TextOrigin}),
    "vilt": (vilt, {"image": picture(20, 16), "text": "is it good?"}, "image and text",
             {"text": TextOrigin, "image": ImageOrigin}),
    "lxmert": (lxmert, {"text": "is it good?", **FEATURES}, "image and text", {"text": TextOrigin, "image": None}),
    "wav2vec": (wav2vec, SINE, "audio", {"audio": AudioOrigin}),
    "ast": (spectrogram, SINE, "audio", {"audio": AudioOrigin}),
    "whisper": (whisper, SINE, "audio", {"audio": AudioOrigin}),
    "patchtst": (patchtst, SERIES, "series", {"series": SeriesOrigin}),
    "smiles": (molecules, "CC(=O)Cl>>N", "text", {"text": TextOrigin}),
    "tensor": (lambda: whence.Explainer(tiny.Handwritten().eval()), tiny.ids(1), "tensors", {"text": None}),
    "tensors": (lambda: whence.Explainer(tiny.bert()), {"input_ids": tiny.ids(1)}, "tensors", {"text": None}),
}  # fmt: skip
