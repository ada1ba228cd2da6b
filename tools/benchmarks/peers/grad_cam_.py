"""Grad-CAM (``pytorch_grad_cam``): class activation maps of torchvision's ViT."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tools.benchmarks.peers.cases import Case
from tools.benchmarks.peers.comparison import Comparison, Scores

SIDE, PIXELS = 14, (224, 224)


def cam(method: str, layer: Callable[[nn.Module], nn.Module]) -> Callable[[Case], Scores]:
    """Of what a layer returns, on a copy of the model, as it leaves hooks and needs parameters with gradients."""

    def theirs(case: Case) -> Scores:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
        from pytorch_grad_cam.utils.reshape_transforms import vit_reshape_transform

        model = copy.deepcopy(case.model).requires_grad_()
        made = getattr(pytorch_grad_cam, method)(model, [layer(model)], vit_reshape_transform)
        return lambda: torch.from_numpy(made(case.pixels, [ClassifierOutputTarget(case.target)]))

    return theirs


def enlarged(scores: Tensor) -> Tensor:
    """``[1 + patches]`` to ``[1, height, width]``, as it does it: negative ones cut off, from 0 to 1, resized."""
    from pytorch_grad_cam.utils.image import scale_cam_image

    patches = scores[1:].clamp(min=0).reshape(1, SIDE, SIDE).numpy()
    return torch.from_numpy(scale_cam_image(scale_cam_image(patches, PIXELS)))


COMPARISONS = [
    Comparison(
        "grad-cam",
        "HiResCAM, input of the first block",
        "vit_torchvision",
        cam("HiResCAM", lambda model: model.encoder.dropout),
        "gradient-x-input",
        note="our scores cut off at 0 and enlarged as its are",
        finish=enlarged,
    ),
    Comparison(
        "grad-cam",
        "GradCAM, first norm of the last block",
        "vit_torchvision",
        cam("GradCAM", lambda model: model.encoder.layers[-1].ln_1),
        "grad-cam",
        same=False,
        note="its map is of features, ours of the last attention, as in Chefer, Gur, Wolf 2021",
        finish=enlarged,
    ),
]
