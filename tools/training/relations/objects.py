"""The digits of scenes as a detector is told of them and finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.training.digits import CANVAS
from tools.training.scenes import ABSENT, Scenes

ENOUGH = 0.5  # of the union: a box that overlaps this much has found its digit
MISSED = -1


def targets(scenes: Scenes) -> list[dict[str, Tensor]]:
    """For each scene `class_labels` [objects] and `boxes` [objects, 4], centre, width and height from 0 to 1."""
    told = []
    for labels, corners in zip(scenes.labels, scenes.boxes, strict=True):
        top, left, bottom, right = (torch.from_numpy(corners[labels != ABSENT]).float() / CANVAS).unbind(1)
        boxes = torch.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], dim=1)
        told.append({"class_labels": torch.from_numpy(labels[labels != ABSENT]), "boxes": boxes})
    return told


def overlap(centred: Tensor, box: np.ndarray) -> Tensor:
    """Intersection over union of the model's boxes [..., 4] with one (top, left, bottom, right) in pixels."""
    middle, half = centred[..., :2] * CANVAS, centred[..., 2:] * CANVAS / 2
    top, left, bottom, right = box.tolist()
    low = torch.maximum(middle - half, torch.tensor([left, top]))
    high = torch.minimum(middle + half, torch.tensor([right, bottom]))
    shared = (high - low).clamp(min=0).prod(dim=-1)
    return shared / (4 * half.prod(dim=-1) + (bottom - top) * (right - left) - shared)


def queries(outputs: Any, scenes: Scenes) -> np.ndarray:
    """The query that found each digit, int64 [scenes, places]: right class, best box, `MISSED` where there is none."""
    named = outputs.logits.argmax(dim=-1)  # [scenes, queries]
    found = np.full(scenes.labels.shape, MISSED)
    for scene, place in np.argwhere(scenes.labels != ABSENT):
        shares = overlap(outputs.pred_boxes[scene], scenes.boxes[scene, place])
        shares = shares.where(named[scene] == scenes.labels[scene, place], 0)
        if shares.max() >= ENOUGH:
            found[scene, place] = int(shares.argmax())
    return found
