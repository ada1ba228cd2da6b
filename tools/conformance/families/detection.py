"""Finding and cutting out things in pictures."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import nn

from tools.conformance.families.vision import SMALL, stir
from tools.conformance.family import add, pixels

GROUP = "Detection and segmentation"
PICTURE = partial(pixels, size=32)
DETR: dict[str, Any] = {
    "num_queries": 5, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16, "num_labels": 3,
    "disable_custom_kernels": True,
}  # fmt: skip


def with_resnet(implementation: str, **options: Any) -> nn.Module:
    """A detector on a small ResNet, whose last stage is an eighth of the picture."""
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    return stir({"": implementation, "backbone_config": "eager"}, backbone_config=backbone, **options)


def box(outputs: Any) -> Any:
    """The score of a class at the first query."""
    return outputs.logits[:, 0, 1]


add(
    "DETR", GROUP, attentions=6, streams={"image": 16, "queries": 5}, inputs=PICTURE, target=box,
    build=partial(with_resnet, model="DetrForObjectDetection", config="DetrConfig", **DETR),
    queries=("query_position_embeddings",),
)  # fmt: skip
add(
    "YOLOS", GROUP, attentions=2, streams={"image": 22}, inputs=pixels, target=box,
    build=partial(
        stir, model="YolosForObjectDetection", config="YolosConfig", num_detection_tokens=5,
        **{**SMALL, "image_size": [16, 16]},
    ),
)  # fmt: skip
add(
    "Conditional DETR", GROUP, attentions=6, streams={"image": 16, "queries": 5}, inputs=PICTURE, target=box,
    build=partial(
        with_resnet, model="ConditionalDetrForObjectDetection", config="ConditionalDetrConfig", **DETR
    ),
    queries=("query_position_embeddings",),
)  # fmt: skip
add(
    "Deformable DETR", GROUP, attentions=1, streams={"image": 1024}, inputs=PICTURE, target=box,
    build=partial(
        with_resnet, model="DeformableDetrForObjectDetection", config="DeformableDetrConfig", num_feature_levels=1,
        encoder_n_points=2, decoder_n_points=2, **{**DETR, "d_model": 32},
    ),
    note="looks at the picture by sampling: read at the pixels; of its two attentions among queries, the first has not "
    "seen the picture",
)  # fmt: skip


def rt_detr(implementation: str) -> nn.Module:
    """RT-DETR, with its own backbone."""
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage1", "stage2"]
    )
    return stir(
        {"": implementation, "backbone_config": "eager"}, model="RTDetrForObjectDetection", config="RTDetrConfig",
        backbone_config=backbone,
        encoder_hidden_dim=16, encoder_in_channels=[8, 16], feat_strides=[4, 8], encode_proj_layers=[1],
        num_feature_levels=2, decoder_in_channels=[16, 16], decoder_n_points=2, learn_initial_query=False,
        **{**DETR, "encoder_layers": 1},
    )  # fmt: skip


add(
    "RT-DETR", GROUP, attentions=3, streams={"image": 1024}, inputs=PICTURE, target=box, build=rt_detr,
    note="looks at the picture by sampling: read at the pixels",
)  # fmt: skip


def maskformer(implementation: str) -> nn.Module:
    """MaskFormer on a small Swin, with DETR's decoder."""
    backbone = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    decoder = transformers.DetrConfig(**{**DETR, "d_model": 32})
    return stir(
        implementation, model="MaskFormerForInstanceSegmentation", config="MaskFormerConfig", num_labels=3,
        backbone_config=backbone, decoder_config=decoder, fpn_feature_size=32, mask_feature_size=32,
    )  # fmt: skip


add(
    "MaskFormer", GROUP, attentions=8, streams={"image": 64, "queries": 5}, inputs=pixels, build=maskformer,
    queries=("queries_embedder",),
    target=lambda outputs: outputs.class_queries_logits[:, 0, 1], implementations=("eager",),
)  # fmt: skip


def mask2former(implementation: str) -> nn.Module:
    """Mask2Former on a small Swin."""
    backbone = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    return stir(
        implementation, model="Mask2FormerForUniversalSegmentation", config="Mask2FormerConfig", num_labels=3,
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=24,
        encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=24, num_queries=5,
        feature_strides=[2, 4, 8, 16], common_stride=2,
    )  # fmt: skip


add(
    "Mask2Former", GROUP, attentions=6, streams={"image": 64, "queries": 5}, inputs=pixels, build=mask2former,
    queries=("queries_embedder", "queries_features"),
    target=lambda outputs: outputs.class_queries_logits[:, 0, 1], implementations=("eager",),
)  # fmt: skip
