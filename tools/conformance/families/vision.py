"""Pictures and videos."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tools.conformance.family import Inputs, add, pixels

GROUP = "Vision"
SMALL: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "num_labels": 3, "initializer_range": 0.3,
}  # fmt: skip


def make(implementation: str | dict[str, str], *, model: str, config: str, **options: Any) -> nn.Module:
    """A model of transformers, from its configuration."""
    configuration = getattr(transformers, config)(**options, attn_implementation=implementation)
    made: nn.Module = getattr(transformers, model)(configuration)
    return made


def stir(implementation: str | dict[str, str], gain: float = 1.2, **options: Any) -> nn.Module:
    """The same with weights drawn anew, for families whose own are too small, or zero, to tell tokens apart."""
    made = make(implementation, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.normal_(0, gain / math.sqrt(min(fan_in, 64)))
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def first(outputs: Any) -> Tensor:
    """For a model without a head: a feature of its first token."""
    found: Tensor = outputs.last_hidden_state[:, 0, 1]
    return found


def film(samples: int, frames: int = 4, size: int = 8) -> Inputs:
    """Videos."""
    return {"pixel_values": torch.randn(samples, frames, 3, size, size)}


def classifier(name: str, attentions: int, streams: dict[str, int], prefix: str, **options: Any) -> None:
    """A family whose classifier and configuration are called as it is."""
    known = ("target", "implementations", "note", "inputs")
    parts = {"inputs": pixels, **{k: options.pop(k) for k in known if k in options}}
    how = options.pop("how", make)
    given = {"model": f"{prefix}ForImageClassification", "config": f"{prefix}Config", **options}
    add(name, GROUP, attentions=attentions, streams=streams, build=partial(how, **given), **parts)


classifier("ViT", 2, {"image": 17}, "ViT", **SMALL)
classifier("DeiT", 2, {"image": 18}, "DeiT", **SMALL)
classifier("DeiT, distilled", 2, {"image": 18}, "DeiT", model="DeiTForImageClassificationWithTeacher", **SMALL)
dino = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
classifier("DINOv2", 2, {"image": 17}, "Dinov2", mlp_ratio=2, layerscale_value=1.0, **dino)
classifier(
    "DINOv2 with registers", 2, {"image": 21}, "Dinov2WithRegisters", mlp_ratio=2, layerscale_value=1.0,
    num_register_tokens=4, **dino,
)  # fmt: skip
add(
    "DINOv3", GROUP, attentions=2, streams={"image": 21}, inputs=pixels,
    target=lambda outputs: outputs.pooler_output[:, 1],
    build=partial(
        make, model="DINOv3ViTModel", config="DINOv3ViTConfig", num_register_tokens=4, layerscale_value=1.0, **SMALL
    ),
)  # fmt: skip
classifier("BEiT", 2, {"image": 17}, "Beit", how=stir, layer_scale_init_value=1.0, **SMALL)
classifier(
    "BEiT, relative positions", 2, {"image": 17}, "Beit", how=stir, layer_scale_init_value=1.0,
    use_relative_position_bias=True, use_mean_pooling=False, **SMALL,
)  # fmt: skip
swin = {
    "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    "num_labels": 3,
}  # fmt: skip
classifier("Swin", 4, {"image": 64}, "Swin", how=stir, **swin)
classifier("SwinV2", 4, {"image": 64}, "Swinv2", how=stir, implementations=("eager",), **swin)
add(
    "SegFormer", GROUP, attentions=4, streams={"image": 64}, inputs=partial(pixels, size=32),
    implementations=("eager",),
    build=partial(
        stir, model="SegformerForImageClassification", config="SegformerConfig", num_encoder_blocks=2, depths=[2, 2],
        sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4],
        mlp_ratios=[2, 2], num_labels=3,
    ),
)  # fmt: skip

classifier("ViT-MSN", 2, {"image": 17}, "ViTMSN", **SMALL)
add(
    "ViTMAE", GROUP, attentions=2, streams={"image": 9}, target=first,
    inputs=lambda n: {**pixels(n), "noise": torch.rand(n, 16)},
    build=partial(make, model="ViTMAEModel", config="ViTMAEConfig", mask_ratio=0.5, **SMALL),
    note="half of the patches are hidden, in the order of the noise that it is given",
)  # fmt: skip
add(
    "VideoMAE", GROUP, attentions=2, streams={"image": 8}, inputs=film,
    build=partial(
        make, model="VideoMAEForVideoClassification", config="VideoMAEConfig", num_frames=4, tubelet_size=2,
        **{**SMALL, "image_size": 8},
    ),
)  # fmt: skip
classifier("Data2Vec (vision)", 2, {"image": 17}, "Data2VecVision", how=stir, layer_scale_init_value=1.0, **SMALL)
pyramid = {
    "num_encoder_blocks": 2, "depths": [2, 2], "hidden_sizes": [8, 16], "strides": [4, 2], "mlp_ratios": [2, 2],
    "num_attention_heads": [2, 4], "num_labels": 3,
}  # fmt: skip
classifier(
    "PVT", 4, {"image": 64}, "Pvt", how=stir, image_size=32, sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2],
    implementations=("eager",), inputs=partial(pixels, size=32), **pyramid,
)  # fmt: skip
classifier(
    "PVTv2", 4, {"image": 64}, "PvtV2", how=stir, image_size=32, sr_ratios=[2, 1], patch_sizes=[7, 3],
    implementations=("eager",), inputs=partial(pixels, size=32), **pyramid,
)  # fmt: skip
classifier(
    "CvT", 3, {"image": 64}, "Cvt", how=stir, patch_sizes=[7, 3], patch_stride=[4, 2], patch_padding=[2, 1],
    embed_dim=[8, 16], num_heads=[1, 2], depth=[1, 2], mlp_ratio=[2.0, 2.0], attention_drop_rate=[0.0, 0.0],
    drop_rate=[0.0, 0.0], drop_path_rate=[0.0, 0.0], qkv_bias=[True, True], cls_token=[False, True],
    qkv_projection_method=["dw_bn", "dw_bn"], kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2],
    padding_q=[1, 1], stride_q=[1, 1], num_labels=3, implementations=("eager",), inputs=partial(pixels, size=32),
)  # fmt: skip
classifier(
    "LeViT", 4, {"image": 16}, "Levit", how=stir, image_size=64, hidden_sizes=[16, 32, 32],
    num_attention_heads=[2, 2, 2], depths=[1, 1, 0], key_dim=[8, 8, 8], num_labels=3, implementations=("eager",),
    inputs=partial(pixels, size=64),
)  # fmt: skip
classifier(
    "MobileViT", 9, {"image": 4096}, "MobileViT", how=stir, gain=9, image_size=64, hidden_sizes=[8, 8, 8],
    neck_hidden_sizes=[4, 4, 8, 8, 8, 8, 16], num_attention_heads=2, num_labels=3, implementations=("eager",),
    inputs=partial(pixels, size=64), note="convolutions beside the attention: read at the pixels",
)  # fmt: skip
classifier(
    "Hiera", 4, {"image": 64}, "Hiera", how=stir, image_size=[32, 32], embed_dim=8, depths=[1, 1, 2],
    num_heads=[1, 2, 2], masked_unit_size=[4, 4], masked_unit_attention=[True, True, False], num_query_pool=2,
    mlp_ratio=2.0, num_labels=3, implementations=("eager",), inputs=partial(pixels, size=32),
)  # fmt: skip
add(
    "DPT", GROUP, attentions=4, streams={"image": 17}, inputs=pixels,
    target=lambda outputs: outputs.predicted_depth.mean((1, 2)),
    build=partial(
        stir, model="DPTForDepthEstimation", config="DPTConfig", backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, **{**SMALL, "num_hidden_layers": 4},
    ),
)  # fmt: skip
add(
    "ViViT", GROUP, attentions=2, streams={"image": 9}, inputs=film,
    build=partial(
        make, model="VivitForVideoClassification", config="VivitConfig", num_frames=4, tubelet_size=[2, 4, 4],
        **{**{k: v for k, v in SMALL.items() if k != "patch_size"}, "image_size": 8},
    ),
)  # fmt: skip
add(
    "TimeSformer", GROUP, attentions=4, streams={"image": 17}, inputs=film, implementations=("eager",),
    note="attention in time, then in space, of the patches of all frames; a class token before them",
    residuals=6,  # in each layer one for time, space and MLP; those of time and space are sums with slices of tokens
    build=partial(
        stir, model="TimesformerForVideoClassification", config="TimesformerConfig", num_frames=4,
        **{**SMALL, "image_size": 8},
    ),
)  # fmt: skip
classifier("I-JEPA", 2, {"image": 16}, "IJepa", **SMALL)
classifier(
    "ConvNeXT", 0, {"image": 256}, "ConvNext", how=stir, image_size=16, patch_size=2, num_stages=2,
    hidden_sizes=[8, 16], depths=[1, 1], layer_scale_init_value=1.0, num_labels=3, implementations=("eager",),
    note="no attention",
)  # fmt: skip
classifier(
    "ResNet", 0, {"image": 256}, "ResNet", how=stir, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
    layer_type="basic", num_labels=3, implementations=("eager",), note="no attention",
)  # fmt: skip
add(
    "SAM (vision)", GROUP, attentions=2, streams={"image": 16}, inputs=pixels,
    target=lambda outputs: outputs.last_hidden_state[:, 1].sum((1, 2)),
    build=partial(
        stir, model="SamVisionModel", config="SamVisionConfig", output_channels=8, window_size=2,
        global_attn_indexes=[1], mlp_ratio=2.0, num_pos_feats=4,
        **{k: v for k, v in SMALL.items() if k not in ("intermediate_size", "num_labels", "initializer_range")},
    ),
)  # fmt: skip
add(
    "Perceiver", GROUP, attentions=4, streams={"image": 16, "encoder": 5, "decoder": 1}, implementations=("eager",),
    queries=("latents", "output_position_encodings"),
    inputs=lambda n: {"inputs": torch.randn(n, 3, 4, 4)},
    build=partial(
        stir, model="PerceiverForImageClassificationLearned", config="PerceiverConfig", num_latents=5, d_latents=16,
        d_model=512, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2,
        num_cross_attention_heads=1, image_size=4, num_labels=3,
    ),
)  # fmt: skip
add(
    "V-JEPA 2", GROUP, attentions=4, streams={"image": 8, "queries": 1}, queries=("query_tokens",),
    inputs=lambda n: {"pixel_values_videos": torch.randn(n, 4, 3, 8, 8)},
    build=partial(
        stir, model="VJEPA2ForVideoClassification", config="VJEPA2Config", num_labels=3,
        num_pooler_layers=1, patch_size=4, crop_size=8, frames_per_clip=4, tubelet_size=2,
        hidden_size=24, num_attention_heads=2, num_hidden_layers=2, mlp_ratio=2.0, pred_hidden_size=24,
        pred_num_attention_heads=2, pred_num_hidden_layers=1,
    ),
)  # fmt: skip
add(
    "Depth Anything", GROUP, attentions=4, streams={"image": 17}, inputs=pixels, implementations=("eager",),
    target=lambda outputs: outputs.predicted_depth.mean((1, 2)),
    build=lambda implementation: stir(
        implementation, model="DepthAnythingForDepthEstimation", config="DepthAnythingConfig",
        backbone_config=transformers.Dinov2Config(
            **{**dino, "num_hidden_layers": 4}, mlp_ratio=2, out_indices=[1, 2, 3, 4], reshape_hidden_states=False
        ),
        patch_size=4, reassemble_hidden_size=16, neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8,
        head_hidden_size=8,
    ),
)  # fmt: skip
add(
    "GLPN", GROUP, attentions=4, streams={"image": 64}, inputs=partial(pixels, size=32), implementations=("eager",),
    target=lambda outputs: outputs.predicted_depth.mean((1, 2)),
    build=partial(
        stir, model="GLPNForDepthEstimation", config="GLPNConfig", depths=[1, 1, 1, 1], sr_ratios=[2, 1, 1, 1],
        hidden_sizes=[8, 8, 8, 8], num_attention_heads=[2, 2, 2, 2], mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=8,
        drop_path_rate=0.0,
    ),
)  # fmt: skip
classifier(
    "PoolFormer", 0, {"image": 256}, "PoolFormer", how=stir, num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16],
    patch_sizes=[3, 3], strides=[2, 2], padding=[1, 1], layer_scale_init_value=1.0, num_labels=3,
    implementations=("eager",), note="no attention",
)  # fmt: skip
