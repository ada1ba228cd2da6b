"""Tiny vision-language models, each with a processor of its own kind."""

from __future__ import annotations

import numpy as np
import torch
import transformers as T
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WIDTH = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24}
TEXTS = ["what digit is on the left? seven", "a photo of a cat", "USER: ASSISTANT:"]
CHAT = (
    "{% for m in messages %}{{ m.role|upper }}: {% for c in m.content %}"
    "{% if c.type == 'image' %}PLACE{% else %}{{ c.text }}{% endif %}{% endfor %}\n{% endfor %}ASSISTANT:"
)


def tokenizer(special, **more):
    """A byte-level tokenizer with some special tokens; 0 is padding."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<pad>", "<eos>", "<bos>", *special], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(TEXTS, trainer)
    return T.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", **more
    )


def image_processor(name, **options):
    """An image processor that needs no torchvision."""
    cls = getattr(T, f"{name}Pil", None) or getattr(T, name)
    return cls(**options)


def built(cls, config):
    """A seeded model; weights large enough that attention is not uniform."""
    torch.manual_seed(0)
    model = cls(config).eval().double()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.3)
    return model


def language(words, kind="llama", **more):
    return {"vocab_size": len(words), "model_type": kind, "num_key_value_heads": 2, "head_dim": 4} | WIDTH | more


def llava(chat=True):
    words = tokenizer(["<image>"])
    processor = T.LlavaProcessor(
        image_processor("CLIPImageProcessor", size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}),
        words, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=CHAT.replace("PLACE", "<image>") if chat else None,
    )  # fmt: skip
    config = T.LlavaConfig(
        text_config=language(words), image_token_index=words.convert_tokens_to_ids("<image>"), vision_feature_layer=-1,
        vision_config={"model_type": "clip_vision_model", "image_size": 24, "patch_size": 4} | WIDTH,
    )  # fmt: skip
    return built(T.LlavaForConditionalGeneration, config), processor


def paligemma():
    words = tokenizer(["<image>"])
    processor = T.PaliGemmaProcessor(
        image_processor("SiglipImageProcessor", size={"height": 24, "width": 24}, image_seq_length=36), words
    )
    config = T.PaliGemmaConfig(
        text_config=language(words, "gemma"), projection_dim=16,
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_config={"model_type": "siglip_vision_model", "image_size": 24, "patch_size": 4,
                       "vision_use_head": False} | WIDTH,
    )  # fmt: skip
    return built(T.PaliGemmaForConditionalGeneration, config), processor


def gemma3():
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer(list(names.values()), extra_special_tokens=names)
    processor = T.Gemma3Processor(
        image_processor("Gemma3ImageProcessor", size={"height": 24, "width": 24}), words, image_seq_length=9
    )
    config = T.Gemma3Config(
        text_config=language(words, "gemma3_text", query_pre_attn_scalar=4), mm_tokens_per_image=9,
        image_token_index=words.convert_tokens_to_ids("<image_soft_token>"),
        vision_config={"model_type": "siglip_vision_model", "image_size": 24, "patch_size": 4,
                       "vision_use_head": False} | WIDTH,
    )  # fmt: skip
    return built(T.Gemma3ForConditionalGeneration, config), processor


def idefics3():
    words = tokenizer(["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"])
    processor = T.Idefics3Processor(
        image_processor("Idefics3ImageProcessor", size={"longest_edge": 48}, max_image_size={"longest_edge": 24}),
        words, image_seq_len=9,
    )  # fmt: skip
    config = T.Idefics3Config(
        text_config=language(words), scale_factor=2, image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_config={"image_size": 24, "patch_size": 4} | WIDTH, pad_token_id=0,
    )  # fmt: skip
    return built(T.Idefics3ForConditionalGeneration, config), processor


class QwenProcessor:
    """What Qwen2-VL's processor does, without its video processor, which needs torchvision."""

    model_input_names = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")
    image_token = "<|image_pad|>"
    chat_template = None

    def __init__(self, images, words):
        self.image_processor, self.tokenizer = images, words

    def __call__(self, text, images, return_tensors):
        made = self.image_processor(images=images[0], return_tensors="pt")
        for grid in made["image_grid_thw"]:
            text = [t.replace(self.image_token, "<|place|>" * int(grid.prod() // 4), 1) for t in text]
        text = [t.replace("<|place|>", self.image_token) for t in text]
        words = self.tokenizer(text, return_tensors="pt")
        kinds = (words["input_ids"] == self.tokenizer.convert_tokens_to_ids(self.image_token)).int()
        return {**words, **made, "mm_token_type_ids": kinds}


def qwen2_vl():
    words = tokenizer(["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"])
    images = image_processor("Qwen2VLImageProcessor", patch_size=4, merge_size=2, min_pixels=64, max_pixels=2304)
    config = T.Qwen2VLConfig(
        text_config=language(words, "qwen2_vl_text", rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0]}),
        image_token_id=words.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=words.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=words.convert_tokens_to_ids("<|vision_start|>"),
        vision_config={"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4,
                       "temporal_patch_size": 2, "spatial_merge_size": 2},
    )  # fmt: skip
    return built(T.Qwen2VLForConditionalGeneration, config), QwenProcessor(images, words)


def photo(width=70, height=50, seed=0):
    """An image of noise."""
    values = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


MODELS = {"LLaVA": llava, "PaliGemma": paligemma, "Gemma 3": gemma3, "Idefics3": idefics3, "Qwen2-VL": qwen2_vl}
