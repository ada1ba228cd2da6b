"""Removal of features from an input: tokens, patches or pixels, each replaced by a baseline.

There is no neutral token and no neutral pixel: every result depends on the baseline.

=========  ==================================================================================
baseline   what removed features are replaced with
=========  ==================================================================================
``unk``    text: the tokenizer's unknown token
``mask``   text: its mask token
``pad``    text: its padding token
``hide``   text: nothing; the attention mask is 0 at the position
``zero``   images: black, a pixel of 0 before normalisation; tensors: 0
``mean``   images: the mean colour of the image; tensors: their mean
``blur``   images: the blurred image (a Gaussian of a tenth of its side)
=========  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..explainer.explainer import Explainer
from ..explanations.explanation import Explanation
from ..inputs.sample import Sample
from .case import Flags, Floats, as_floats

TOKENS = ("unk", "mask", "pad", "hide")
PIXELS = ("zero", "mean", "blur")


@dataclass
class SequenceRemoval:
    """Removal of entries along the second axis of a tensor: tokens, visual features.

    Attributes:
        tensors: the model's arguments, a batch of one.
        name: the argument in which features are replaced.
        value: the baseline: one number for all, or ``[features]``, one for each.
        at: ``[features]``: positions along the axis; the others are never removed.
        stream: the stream of an explanation with their scores; ``""``: its main one.
    """

    tensors: Mapping[str, Tensor]
    name: str
    value: float | Tensor
    at: Tensor
    stream: str = ""

    def scores(self, e: Explanation) -> Floats:
        """Return the score of each feature ``[features]``."""
        own = e.streams[self.stream] if self.stream else e.scores
        return as_floats(own[0][self.at.to(own.device)])

    def apply(self, removed: Flags) -> dict[str, Tensor]:
        """Return the model's arguments for a batch of ``n`` variants, from flags ``[n, features]``."""
        given = {k: t.expand(len(removed), *t.shape[1:]) for k, t in self.tensors.items()}
        changed = given[self.name].clone()
        which, feature = map(torch.from_numpy, np.nonzero(removed))
        values = torch.as_tensor(self.value, dtype=changed.dtype).expand(len(self.at))[feature]
        changed[which, self.at[feature]] = values.reshape(-1, *(1,) * (changed.dim() - 2))
        return {**given, self.name: changed}


@dataclass
class ImageRemoval:
    """Removal of patches or pixels of an image.

    Attributes:
        tensors: the model's arguments, a batch of one.
        name: the image among them, ``[1, channels, height, width]``.
        blank: the baseline, of the same shape.
        grid: rows and columns of patches or pixels.
    """

    tensors: Mapping[str, Tensor]
    name: str
    blank: Tensor
    grid: tuple[int, int]

    def scores(self, e: Explanation) -> Floats:
        """Return ``[features]``: the scores of patches, averaged or interpolated bilinearly to the grid."""
        found = e.patches
        if found.shape[1:] == self.grid:
            return as_floats(found[0].flatten())
        if found.shape[1] >= self.grid[0]:  # scores of pixels, cells of several pixels
            summed = torch.nn.functional.adaptive_avg_pool2d(found[:, None], self.grid)
            return as_floats(summed.flatten())
        laid = torch.nn.functional.interpolate(found[:, None], self.grid, mode="bilinear", align_corners=False)
        return as_floats(laid.flatten())

    def apply(self, removed: Flags) -> dict[str, Tensor]:
        """Return the model's arguments for a batch of ``n`` variants, from flags ``[n, features]``."""
        picture = self.tensors[self.name]
        flags = torch.from_numpy(removed).reshape(-1, 1, *self.grid).to(picture.dtype)
        laid = torch.nn.functional.interpolate(flags, picture.shape[-2:], mode="nearest") > 0
        given = {k: t.expand(len(removed), *t.shape[1:]) for k, t in self.tensors.items()}
        return {**given, self.name: torch.where(laid.to(picture.device), self.blank, picture)}


Removal = SequenceRemoval | ImageRemoval


def removal_for(
    explainer: Explainer, sample: Sample, e: Explanation, baseline: str | None, unit: str, special: bool
) -> Removal:
    """Return the removal of features of an input.

    Args:
        explainer: made the explanation.
        sample: the input as tensors.
        e: an explanation of it, for its positions and its grid.
        baseline: a name from the table above; ``None``: ``unk`` (or what the tokenizer has), ``zero``.
        unit: for images, ``"patch"`` or ``"pixel"``.
        special: for texts, whether special tokens ([CLS], [SEP]) are removed, too, as in Ali et al. 2022.
    """
    picture = next((name for name, t in sample.tensors.items() if t.dim() == 4 and t.is_floating_point()), None)
    if e.grid is not None and picture is not None and "input_ids" not in sample.tensors:
        pixels = sample.tensors[picture]
        grid = (pixels.shape[-2], pixels.shape[-1]) if unit == "pixel" else _patches(e, pixels)
        return ImageRemoval(sample.tensors, picture, blank(pixels, baseline or "zero", explainer.processor), grid)
    if "input_ids" not in sample.tensors:
        raise InputError(
            "Features can be removed from texts (input_ids) and from pictures whose patches are found; this input has "
            f"neither ({', '.join(sample.tensors) or 'one tensor'})."
        )
    if e.scores.shape[1] != sample.tensors["input_ids"].shape[1]:
        raise InputError(
            f"The explanation has {e.scores.shape[1]} positions and the text {sample.tensors['input_ids'].shape[1]} "
            "tokens, so it is not known which token a position is."
        )
    at = torch.arange(e.scores.shape[1]) if special else (~e.special[0]).nonzero()[:, 0].cpu()
    name, value = token(explainer, baseline)
    if name not in sample.tensors:
        raise InputError("The model takes no attention mask, so no token can be hidden: choose unk, mask or pad.")
    return SequenceRemoval(sample.tensors, name, value, at)


def _patches(e: Explanation, pixels: Tensor) -> tuple[int, int]:
    """Return the grid of patches; raise where the scores are of pixels."""
    assert e.grid is not None
    if e.grid != tuple(pixels.shape[-2:]):
        return e.grid
    raise InputError("The explanation is of pixels: remove pixels, too (unit='pixel').")


def token(explainer: Explainer, baseline: str | None) -> tuple[str, float]:
    """Return the model's argument, and the value in it, that removed tokens are replaced with."""
    tokenizer = getattr(explainer.reader, "tokenizer", None) or explainer.processor
    known = {name: getattr(tokenizer, f"{name}_token_id", None) for name in TOKENS[:3]}
    vocabulary = getattr(tokenizer, "vocabulary", {})
    known["unk"] = vocabulary.get("[UNK]") if known["unk"] is None else known["unk"]
    if baseline == "hide":
        return "attention_mask", 0
    if baseline is None:
        baseline = next((name for name, i in known.items() if i is not None), "unk")
    if baseline not in known:
        raise InputError(f"A token cannot be replaced by '{baseline}': choose {', '.join(TOKENS)}.")
    value = known[baseline]
    if value is None:
        there = [name for name, i in known.items() if i is not None]
        raise InputError(
            f"The tokenizer has no {baseline} token to put in the place of a removed one: choose "
            f"{', '.join([*there, 'hide'])}."
        )
    return "input_ids", float(value)


def blank(pixels: Tensor, baseline: str, processor: Any = None) -> Tensor:
    """Return the baseline of an image, ``[1, channels, height, width]``.

    Args:
        pixels: the image as the model takes it.
        baseline: ``"zero"``, ``"mean"`` or ``"blur"``.
        processor: the image processor, for the value of black after normalisation.
    """
    if baseline == "zero":
        mean, std = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
        if mean is None or std is None or not getattr(processor, "do_normalize", True):
            return torch.zeros_like(pixels)
        black = -torch.tensor(mean) / torch.tensor(std)
        return black.to(pixels).reshape(1, -1, 1, 1).expand_as(pixels)
    if baseline == "mean":
        return pixels.mean((-2, -1), keepdim=True).expand_as(pixels)
    if baseline == "blur":
        return _blurred(pixels)
    raise InputError(f"A pixel cannot be replaced by '{baseline}': choose {', '.join(PIXELS)}.")


def _blurred(pixels: Tensor) -> Tensor:
    """Blur by a Gaussian of a tenth of the image's side, edges repeated."""
    out = pixels
    for dim in (-2, -1):
        sigma = pixels.shape[dim] / 10
        reach = int(3 * sigma)
        weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=pixels.dtype) / sigma) ** 2)
        places = torch.arange(-reach, pixels.shape[dim] + reach).clamp(0, pixels.shape[dim] - 1)
        windows = out.index_select(dim, places.to(pixels.device)).unfold(dim, 2 * reach + 1, 1)
        out = windows @ (weights / weights.sum()).to(pixels.device)
    return out
