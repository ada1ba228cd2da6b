"""DAVE, distribution-aware attribution of images (Wróbel, Gairola, Tabor, Schiele, Zieliński, Rymarczyk, ICML 2026).

The gradient of a ViT has two parts: what the model does to the image (its effective transformation, a matrix that
depends on the image) and how that matrix changes with it. Only the first is kept: attention probabilities, deviations
of norms and the factors ``f(x) / x`` of activations are constants, as in `conservative-lrp`. Its gradient is then
averaged over ``K`` changed images, ``t_k`` going from 0 to ``alpha``:

- ``x_k = (1 - t_k) T_k(x) + sqrt(1 - (1 - t_k)^2) n_k``: a random flip, rotation (20 degrees), shift (a tenth) and
  scaling (0.9 to 1.1), and normal noise;
- ``c_k = x dy(x_k)/dx``: the gradient is propagated through ``T_k``, to the original place of each pixel;
- ``c``: per entry the mean of those ``c_k`` that are no outliers, ``|c_k - median| <= 2.5 (1.4826 MAD + 1e-8)``.

The map is the sum of ``c`` over channels, positive part, smoothed (``smooth``): half of it replaced by a Gaussian blur
(11 x 11, sigma 7), a bilateral filter (5 x 5, sigma 0.5 in space and 0.05 in value, which is in units of the
contributions themselves), divided by its largest value. ``smooth=False`` is the signed sum over channels.

``alpha`` is to be chosen for each model: published are 0.1 (ViT-S), 0.3 (ViT-B), 0.5 (DeiT-S, DeiT3-S), 0.7 (DeiT-B)
and 0.9 (DeiT3-B). The published code draws changes for each image without a seed; here they are drawn from ``seed``,
the same for every image, so that scores do not depend on the batch.

Cost: ``1 + samples`` forward passes and ``samples`` backward passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch code
from torch import Tensor

from ..errors import MethodError, ModelError
from ..propagation.rulebook import Rulebook
from ..runs.run import Run
from ..tracing.reductions import precise
from ..tracing.tensor_info import node_of
from .base import Method, Reading
from .conservative_lrp import ConservativeLRP
from .registry import method

EPS = 1e-8


@dataclass(frozen=True)
class Pose:
    """A geometric transformation of an image: flipped first, then rotated and scaled about its centre, then shifted.

    Attributes:
        mirrored: whether left and right are exchanged.
        angle: in degrees, counterclockwise.
        scale: the scaling factor.
        shift: right and down, as fractions of width and height.
    """

    mirrored: bool = False
    angle: float = 0.0
    scale: float = 1.0
    shift: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def random(rng: np.random.Generator) -> Pose:
        """Draw a random transformation, in the published ranges."""
        right, down = rng.uniform(-0.1, 0.1, 2)
        return Pose(bool(rng.random() < 0.5), rng.uniform(-20, 20), rng.uniform(0.9, 1.1), (right, down))

    def __call__(self, image: Tensor) -> Tensor:
        """Return the transformed image ``[batch, channels, height, width]``: bilinear, 0 outside the original."""
        height, width = image.shape[-2:]
        cos, sin = (f(math.radians(self.angle)) / self.scale for f in (math.cos, math.sin))
        # the source of each pixel, in coordinates from -1 to 1: the inverse transformation
        x, y = 2 * self.shift[0], 2 * self.shift[1]
        rows = [[cos, -sin * height / width], [sin * width / height, cos]]
        taken = [[a, b, -a * x - b * y] for a, b in rows]
        if self.mirrored:
            taken[0] = [-value for value in taken[0]]
        grid = F.affine_grid(image.new_tensor(taken).expand(len(image), 2, 3), list(image.shape), align_corners=False)
        return F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def contribution(run: Run, pixels: Tensor, pose: Pose | None, level: float, noise: Tensor) -> Tensor:
    """Return one ``c_k``: the original image times the gradient of a changed one with respect to it.

    Args:
        run: the run of the original image.
        pixels: ``[batch, channels, height, width]``, the input in that run.
        pose: the transformation of the image; ``None``: none.
        level: ``t_k``.
        noise: ``n_k``, shaped to be added.
    """
    clean = precise(pixels.detach()).requires_grad_()
    moved = clean if pose is None else pose(clean)
    changed = (1 - level) * moved + math.sqrt(1 - (1 - level) ** 2) * noise
    rerun = run.retrace({node_of(pixels).seq: changed.detach().to(pixels.dtype)})
    (gradient,) = rerun.backward([input_image(rerun)])
    (original,) = torch.autograd.grad(changed, clean, precise(gradient))
    return original * clean.detach()


def robust_mean(maps: Tensor) -> Tensor:
    """Return the mean over the first dimension without outliers: per entry, of the values near the median."""
    distance = (maps - maps.median(0).values).abs()
    near = (distance <= 2.5 * (1.4826 * distance.median(0).values + EPS)).to(maps.dtype)
    return (maps * near).sum(0) / near.sum(0).clamp(min=1)


def smooth_map(map: Tensor) -> Tensor:
    """Return ``[batch, height, width]``: the positive part, blurred where it is flat, with largest value 1."""
    map = map.clamp(min=0)[:, None]
    blur = _gaussian(map, 11, 7.0)
    map = (map + F.conv2d(map, (blur / blur.sum())[None, None], padding=5)) / 2
    near = F.unfold(map, 5, padding=2)  # [batch, 25, pixels]
    weights = torch.exp(-((near - map.flatten(2)) ** 2) / (2 * 0.05**2)) * _gaussian(map, 5, 0.5).reshape(-1, 1)
    filtered = (weights * near).sum(1) / (weights.sum(1) + EPS)
    largest = filtered.amax(1, keepdim=True)
    return (filtered / torch.where(largest > 0, largest, 1.0)).reshape(len(map), *map.shape[-2:])


def _gaussian(like: Tensor, size: int, sigma: float) -> Tensor:
    """Return a Gaussian kernel ``[size, size]``, 1 in the middle."""
    line = torch.exp(-((torch.arange(size, dtype=like.dtype, device=like.device) - size // 2) ** 2) / (2 * sigma**2))
    return line[:, None] * line


def input_image(run: Run) -> Tensor:
    """Return the image that the model was given."""
    for source in run.trace.sources:
        if source.name and not source.embedded and source.tensor.dim() == 4:
            return source.tensor
    raise ModelError(
        "'dave' explains pictures, and the model was given none (a floating-point input [batch, channels, height, "
        "width]). Methods for any input: conservative-lrp, smooth-grad, integrated-gradients."
    )


@method("dave")
@dataclass
class Dave(Method):
    """The effective gradient of an image, averaged over noise and transformations.

    Attributes:
        samples: the number of changed images.
        alpha: the strongest noise, from 0 to 1.
        augment: whether images are also transformed.
        smooth: the published map: positive, smoothed, largest value 1; otherwise contributions of either sign.
        seed: the seed of the random changes.
    """

    paper: ClassVar[str] = "Wróbel et al., ICML 2026"
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = "What a picture's pixels added to the answer, averaged over small shifts and noise."
    beware: ClassVar[str] = "It is slow, made for pictures, and its fine detail depends on how many times it averages."
    forwards: ClassVar[int] = 51
    backwards: ClassVar[int] = 50
    needs: ClassVar[str] = "pictures"
    quick: ClassVar[Mapping[str, Any]] = {"samples": 1}

    samples: int = 50
    alpha: float = 0.3
    augment: bool = True
    smooth: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.alpha <= 1:
            raise MethodError(
                f"`samples` must be at least 1 and `alpha` from 0 to 1, not {self.samples} and {self.alpha}."
            )

    def rulebook(self) -> Rulebook:
        """Return the rules under which only the effective transformation is differentiated."""
        return replace(ConservativeLRP(activations="ratio").rulebook(), books=False)

    def read(self, run: Run) -> Reading:
        """Return scores ``[batch, pixels]``: the mean over changed images."""
        pixels = input_image(run)
        maps = []
        for k, level in enumerate(np.linspace(0, self.alpha, self.samples)):
            rng = np.random.default_rng([self.seed, k])
            noise = torch.from_numpy(rng.standard_normal(pixels.shape[1:])).to(precise(pixels.detach()))
            pose = Pose.random(rng) if self.augment else None
            maps.append(contribution(run, pixels, pose, float(level), noise))
        found = robust_mean(torch.stack(maps)).sum(1)
        return Reading((smooth_map(found) if self.smooth else found).flatten(1), grid=(found.shape[1], found.shape[2]))
