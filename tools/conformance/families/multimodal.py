"""Models of text with pictures, documents or sound."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tools.conformance.family import PADDED_TEXT, VOCABULARY, Inputs, add, pixels, text

GROUP = "Text with pictures, documents, sound"
WIDTH: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
}  # fmt: skip
WORDS: dict[str, Any] = WIDTH | {
    "vocab_size": VOCABULARY, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PICTURE: dict[str, Any] = WIDTH | {"image_size": 12, "patch_size": 4}  # nine patches
TOWERS: dict[str, Any] = {"text_config": WORDS, "vision_config": PICTURE, "projection_dim": 16}


def stirred(model: nn.Module) -> nn.Module:
    """Weights large enough for attention that is not flat; norms and biases that do something."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.3)
            elif p.dim() == 1:
                p.uniform_(-0.2, 0.2).add_(0.0 if "bias" in name else 1.0)
    return model


def build(implementation: str, *, model: str, config: str, **options: Any) -> nn.Module:
    """A model with its weights stirred."""
    options = {**options, "attn_implementation": implementation}
    made: nn.Module = getattr(hf, model)(getattr(hf, config)(**options))
    return stirred(made)


def one(name: str, attentions: int, streams: dict[str, int], model: str, **parts: Any) -> None:
    """Add a family whose configuration has the model's own name."""
    options = parts.pop("options", {})
    made = partial(build, model=model, config=parts.pop("config"), **options)
    add(name, GROUP, attentions=attentions, streams=streams, build=made, **parts)


def pictured(samples: int, tokens: int = 7, size: int = 12) -> Inputs:
    """A text and a picture."""
    return {**text(samples, tokens), **pixels(samples, size)}


def pair(outputs: Any) -> Tensor:
    """The similarity of each picture and its own text."""
    found: Tensor = outputs.logits_per_image.diagonal()
    return found


def last(outputs: Any) -> Tensor:
    """What a language model says next."""
    found: Tensor = outputs.logits[:, -1, 7]
    return found


def dual(implementation: str) -> nn.Module:
    """An encoder of pictures and one of texts."""
    towers = (PICTURE | {"model_type": "vit"}, WORDS | {"model_type": "bert"})
    config = hf.VisionTextDualEncoderConfig(
        vision_config=towers[0], text_config=towers[1], projection_dim=16, attn_implementation=implementation
    )
    return stirred(hf.VisionTextDualEncoderModel(config))


# -- two towers: pictures and texts meet at the end --------------------------------------------------------------

TWO = {"image": 10, "text": 7}
one("CLIP", 4, TWO, "CLIPModel", config="CLIPConfig", options=TOWERS, inputs=pictured, target=pair, **PADDED_TEXT)
one(
    "SigLIP", 5, {"image": 9, "text": 7}, "SiglipModel", config="SiglipConfig", inputs=pictured, target=pair,
    options={"text_config": WORDS, "vision_config": PICTURE}, note="the picture is read by a learned query",
)  # fmt: skip
one(
    "AltCLIP", 4, TWO, "AltCLIPModel", config="AltCLIPConfig", inputs=pictured, target=pair,
    options=TOWERS | {"text_config": WORDS | {"project_dim": 16}},
)  # fmt: skip
one("Chinese-CLIP", 4, TWO, "ChineseCLIPModel", config="ChineseCLIPConfig", options=TOWERS, inputs=pictured,
    target=pair, **PADDED_TEXT)  # fmt: skip
one("CLIPSeg", 5, {"image": 10, "text": 7}, "CLIPSegForImageSegmentation", config="CLIPSegConfig",
    options=TOWERS | {"extract_layers": [0], "reduce_dim": 8, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 12},
    inputs=pictured, target=lambda o: o.logits.flatten(1).mean(1))  # fmt: skip
one("OWL-ViT", 4, {"image": 10, "text": 7}, "OwlViTForObjectDetection", config="OwlViTConfig", options=TOWERS,
    inputs=pictured, target=lambda o: o.logits[:, 2, 0])  # fmt: skip

add(
    "ViT and BERT", GROUP, attentions=4, streams=TWO, inputs=pictured, target=pair, build=dual, **PADDED_TEXT,
    note="any encoder of pictures beside any of texts",
)  # fmt: skip

# -- one tower, or attention between two ---------------------------------------------------------------------------


def lxmert(samples: int) -> Inputs:
    """A text and five regions of a picture, each with its place."""
    return {**text(samples), "visual_feats": torch.randn(samples, 5, 10), "visual_pos": torch.rand(samples, 5, 4)}


one(
    "LXMERT", 12, {"text": 7, "image": 5}, "LxmertForQuestionAnswering", config="LxmertConfig", inputs=lxmert,
    implementations=("eager",), target=lambda o: o.question_answering_score[:, 1], **PADDED_TEXT,
    options=WORDS | {"l_layers": 2, "r_layers": 2, "x_layers": 2, "visual_feat_dim": 10, "num_qa_labels": 3},
)  # fmt: skip


def visual_bert(samples: int) -> Inputs:
    """A text and five regions of a picture."""
    mask = torch.ones(samples, 5, dtype=torch.long)
    return {**text(samples), "visual_embeds": torch.randn(samples, 5, 10), "visual_attention_mask": mask}


one(
    "VisualBERT", 2, {"text": 7, "image": 5}, "VisualBertForQuestionAnswering", config="VisualBertConfig",
    inputs=visual_bert, implementations=("eager",),
    options=WORDS | {"visual_embedding_dim": 10, "num_labels": 3},
)  # fmt: skip
one(
    "ViLT", 2, {"text": 7, "image": 10}, "ViltForQuestionAnswering", config="ViltConfig", inputs=pictured,
    implementations=("eager",), options=WORDS | PICTURE | {"num_labels": 3},
)  # fmt: skip


def blip(samples: int, answer: bool = False) -> Inputs:
    """A picture with a question, perhaps the beginning of an answer."""
    given = pictured(samples)
    return {**given, "decoder_input_ids": given["input_ids"].flip(1)[:, :3]} if answer else given


class Answers(nn.Module):
    """BLIP's question answering up to the logits, which its own forward keeps to itself: the steps of its generate."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor, decoder_input_ids: Tensor
    ) -> Any:
        """Logits of the answer."""
        picture = self.inner.vision_model(pixel_values)[0]
        question = self.inner.text_encoder(input_ids, attention_mask, encoder_hidden_states=picture)[0]
        return self.inner.text_decoder(
            decoder_input_ids, encoder_hidden_states=question, encoder_attention_mask=attention_mask
        )


def answering(implementation: str, **options: Any) -> nn.Module:
    """BLIP's question answering."""
    return Answers(build(implementation, **options))


BLIP: dict[str, Any] = TOWERS | {
    "config": "BlipConfig", "text_config": WORDS | {"encoder_hidden_size": 16, "sep_token_id": 3},
}  # fmt: skip
add(
    "BLIP, image-text matching", GROUP, attentions=6, streams={"image": 10, "text": 7}, inputs=blip,
    implementations=("eager",), target=lambda o: o.itm_score[:, 1], **PADDED_TEXT,
    build=partial(build, model="BlipForImageTextRetrieval", **BLIP),
)  # fmt: skip
add(
    "BLIP, question answering", GROUP, attentions=10, streams={"image": 10, "encoder": 7, "decoder": 3},
    inputs=partial(blip, answer=True), implementations=("eager",), target=last,
    build=partial(answering, model="BlipForQuestionAnswering", **BLIP),
)  # fmt: skip
add(
    "BLIP, captioning", GROUP, attentions=6, streams={"image": 10, "text": 7}, inputs=blip,
    implementations=("eager",), target=last, build=partial(build, model="BlipForConditionalGeneration", **BLIP),
)  # fmt: skip

# -- pictures put between the words of a language model ------------------------------------------------------------

IMAGE = 4  # the token that stands for a patch


def between(samples: int, patches: int = 9) -> Inputs:
    """Words with a picture's patches in the middle."""
    ids = text(samples)["input_ids"]
    ids = torch.cat([ids[:, :3], torch.full((samples, patches), IMAGE), ids[:, 3:]], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pixels(samples, 12)}


LLAMA: dict[str, Any] = WORDS | {"num_key_value_heads": 2, "model_type": "llama"}
one("LLaVA", 4, {"image": 10, "text": 16}, "LlavaForConditionalGeneration", config="LlavaConfig", inputs=between,
    options={"text_config": LLAMA, "vision_config": PICTURE | {"model_type": "clip_vision_model"},
    "image_token_id": IMAGE, "vision_feature_layer": -1}, target=last)  # fmt: skip
FLAVA: dict[str, Any] = {"text_config": WORDS, "image_config": PICTURE, "multimodal_config": WIDTH, "hidden_size": 16}
one("FLAVA", 6, {"image": 10, "text": 7}, "FlavaModel", config="FlavaConfig", inputs=pictured, options=FLAVA,
    implementations=("eager",), target=lambda o: o.multimodal_embeddings[:, 0, 1])  # fmt: skip
one(
    "PaliGemma", 4, {"image": 9, "text": 16}, "PaliGemmaForConditionalGeneration", config="PaliGemmaConfig",
    inputs=lambda n: {**between(n), "token_type_ids": torch.zeros(n, 16, dtype=torch.long)}, target=last,
    options={
        "text_config": LLAMA | {"model_type": "gemma", "head_dim": 4}, "projection_dim": 16, "image_token_id": IMAGE,
        "vision_config": PICTURE | {"model_type": "siglip_vision_model", "vision_use_head": False},
    },
)  # fmt: skip
one(
    "SmolVLM", 4, {"image": 9, "text": 8}, "SmolVLMForConditionalGeneration", config="SmolVLMConfig", target=last,
    inputs=lambda n: {k: v[:, None] if v.dim() == 4 else v for k, v in between(n, 1).items()},
    options={"text_config": LLAMA, "vision_config": PICTURE, "image_token_id": IMAGE, "scale_factor": 3,
    "pad_token_id": 0},
    note="nine patches become one token",
)  # fmt: skip
one(
    "GIT", 4, {"image": 10, "text": 7}, "GitForCausalLM", config="GitConfig", inputs=pictured, target=last,
    implementations=("eager",), options=WORDS | {"vision_config": PICTURE},
)  # fmt: skip
one(
    "BLIP-2", 7, {"image": 10, "queries": 3, "text": 10}, "Blip2ForConditionalGeneration", config="Blip2Config",
    inputs=partial(between, patches=3),
    target=last, queries=("query_tokens",),
    options={
        "vision_config": PICTURE, "qformer_config": WIDTH | {"encoder_hidden_size": 16,
        "cross_attention_frequency": 2},
        "text_config": {
            "model_type": "opt", "vocab_size": VOCABULARY, "hidden_size": 16, "word_embed_proj_dim": 16,
            "ffn_dim": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 40, "pad_token_id": 0,
        },
        "num_query_tokens": 3, "image_token_index": IMAGE, "image_text_hidden_size": 16,
    },
)  # fmt: skip
WIDE = WIDTH | {"hidden_size": 64}
one(
    "BridgeTower", 12, {"text": 7, "image": 10}, "BridgeTowerForImageAndTextRetrieval", config="BridgeTowerConfig",
    inputs=pictured, implementations=("eager",),
    options={
        **WIDE, "text_config": WORDS | WIDE,
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "patch_size": 4, "image_size": 12},
    },
    note="a head of its picture encoder is 64 wide",
)  # fmt: skip
one(
    "X-CLIP", 8, {"image": 2, "text": 7}, "XCLIPModel", config="XCLIPConfig",
    target=lambda o: o.logits_per_video.diagonal(),
    inputs=lambda n: {**text(n), "pixel_values": torch.randn(n, 2, 3, 12, 12)},
    options=TOWERS | {"prompt_layers": 1, "prompt_num_attention_heads": 2,
    "vision_config": PICTURE | {"num_frames": 2, "mit_hidden_size": 16, "mit_intermediate_size": 24,
    "mit_num_attention_heads": 4}},
    note="two frames; scores are read at the input, as messages between frames go round its tokens",
)  # fmt: skip


def written(implementation: str, decoder: str, **options: Any) -> nn.Module:
    """A ViT that reads, a decoder that writes."""
    config = hf.VisionEncoderDecoderConfig(
        encoder=PICTURE | {"model_type": "vit"}, decoder={"model_type": decoder, "is_decoder": True,
        "add_cross_attention": True} | options,
        decoder_start_token_id=1, pad_token_id=0,
    )  # fmt: skip
    config._attn_implementation = implementation
    return stirred(hf.VisionEncoderDecoderModel(config))


def writing(samples: int) -> Inputs:
    """A picture and what was written of it so far."""
    return {**pixels(samples, 12), "decoder_input_ids": text(samples)["input_ids"][:, :5]}


add(
    "TrOCR", GROUP, attentions=6, streams={"image": 10, "text": 5}, inputs=writing, target=last,
    implementations=("eager",),
    build=partial(written, decoder="trocr", vocab_size=VOCABULARY, d_model=16, decoder_layers=2,
    decoder_attention_heads=4,
    decoder_ffn_dim=24, max_position_embeddings=40, cross_attention_hidden_size=16, pad_token_id=0),
)  # fmt: skip
add(
    "ViT and GPT-2", GROUP, attentions=6, streams={"image": 10, "text": 5}, inputs=writing, target=last,
    build=partial(written, decoder="gpt2", vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=40),
)  # fmt: skip


def donut(implementation: str) -> nn.Module:
    """Donut's windows that read, an mBART that writes."""
    config = hf.VisionEncoderDecoderConfig(
        encoder={
            "model_type": "donut-swin", "image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1, 1],
            "num_heads": [2, 2], "window_size": 2,
        },
        decoder=WORDS | {
            "model_type": "mbart", "is_decoder": True, "add_cross_attention": True, "d_model": 16, "decoder_layers": 2,
            "decoder_attention_heads": 4, "decoder_ffn_dim": 24,
        },
        decoder_start_token_id=1, pad_token_id=0,
    )  # fmt: skip
    config._attn_implementation = implementation
    return stirred(hf.VisionEncoderDecoderModel(config))


add(
    "Donut", GROUP, attentions=6, streams={"image": 16, "text": 5}, target=last,
    inputs=lambda n: {**writing(n), **pixels(n, 16)}, implementations=("eager",), build=donut,
    note="pictures are read in windows",
)  # fmt: skip


def documents(samples: int, picture: bool = False) -> Inputs:
    """A text whose words have a place on a page, perhaps a picture of the page."""
    given = text(samples)
    corner = torch.randint(0, 500, (samples, 7, 2))
    given["bbox"] = torch.cat([corner, corner + torch.randint(1, 400, (samples, 7, 2))], 2)
    return {**given, **pixels(samples, 12)} if picture else given


LAYOUT = WORDS | {"num_labels": 3, "max_2d_position_embeddings": 1024}
one(
    "LayoutLMv3", 2, {"text": 7, "image": 10}, "LayoutLMv3ForSequenceClassification", config="LayoutLMv3Config",
    inputs=partial(documents, picture=True), implementations=("eager",),
    options=LAYOUT | {"input_size": 12, "patch_size": 4, "coordinate_size": 3, "shape_size": 2, "visual_bbox": True},
)  # fmt: skip
one(
    "CLAP", 4, {"image": 64, "text": 7}, "ClapModel", config="ClapConfig",
    target=lambda o: o.logits_per_audio.diagonal(),
    inputs=lambda n: {**text(n), "input_features": torch.randn(n, 1, 64, 16), "is_longer": torch.zeros(n, 1,
    dtype=torch.bool)},
    implementations=("eager",), options={
        "text_config": WORDS | {"projection_dim": 16}, "projection_dim": 16, "audio_config": {"window_size": 2,
        "num_mel_bins": 16, "spec_size": 32, "patch_size": 4, "patch_stride": [4, 4],
        "hidden_size": 16, "patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [2, 2],
        "num_hidden_layers": 2, "projection_dim": 16, "enable_fusion": False},
    },
)  # fmt: skip


class Flat(nn.Module):
    """Qwen's vision models take the patches of all pictures in one row: here, each sample has its own."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Any:
        """``pixel_values``: ``[batch, patches, values]``."""
        grid = torch.tensor([[1, 4, 4]]).expand(len(input_ids), -1)
        kinds = (input_ids == IMAGE).int()
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values.flatten(0, 1),
            image_grid_thw=grid, mm_token_type_ids=kinds,
        )  # fmt: skip


def flat(implementation: str, **options: Any) -> nn.Module:
    """A model of the Qwen family."""
    return Flat(build(implementation, **options))


def patches(samples: int) -> Inputs:
    """Words with a picture of four by four patches between them, which become four tokens."""
    given = between(samples, 4)
    return {**given, "pixel_values": torch.randn(samples, 16, 3 * 2 * 4 * 4)}


QWEN: dict[str, Any] = {
    "text_config": LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1,
    1, 0]}}, "image_token_id": IMAGE, "vision_start_token_id": 3, "video_token_id": 2,
}  # fmt: skip
QWEN["text_config"].pop("model_type")
add(
    "Qwen2-VL", GROUP, attentions=4, streams={"image": 16, "text": 11}, inputs=patches, target=last,
    build=partial(flat, model="Qwen2VLForConditionalGeneration", config="Qwen2VLConfig", **QWEN, vision_config={
        "depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4,
        "temporal_patch_size": 2, "spatial_merge_size": 2}),
)  # fmt: skip
add(
    "Qwen2.5-VL", GROUP, attentions=4, streams={"image": 16, "text": 11}, inputs=patches, target=last,
    build=partial(flat, model="Qwen2_5_VLForConditionalGeneration", config="Qwen2_5_VLConfig", **QWEN, vision_config={
        "depth": 2, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 4, "intermediate_size": 24,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 64,
        "fullatt_block_indexes": [0, 1]}),
)  # fmt: skip
