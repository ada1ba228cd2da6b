"""Train a YOLOS detector of pets, from a real ViT-Ti and boxes around the masks of photographs.

    python -m tools.training.pets.detector [--output DIRECTORY] [--speed FACTOR]

The stock `YolosForObjectDetection` begins with the weights of the ViT-Ti in the shared weights; ten detection tokens
and the heads begin from nothing. Photographs are mirrored, cropped and shifted at random. A photograph holds one pet.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTForImageClassification, YolosConfig, YolosForObjectDetection

from tools.training.paths import WEIGHTS
from tools.training.pets.photographs import SIDE, Photograph, load, split_photographs
from tools.training.relations.fit import Fit
from tools.training.relations.models import SEED, begin, publish

BATCH, STEPS, RATE = 8, 900, 2e-4
TOKENS = 10
SMALLEST = 0.6  # side of a crop, as a share of the photograph's


def build() -> YolosForObjectDetection:
    """ViT-Ti/16 with detection tokens: 192 wide, 12 layers."""
    vit = ViTForImageClassification.from_pretrained(WEIGHTS / "vit_tiny_patch16_224_hf", dtype=torch.float32).vit
    config = YolosConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, image_size=[SIDE, SIDE],
        patch_size=16, num_detection_tokens=TOKENS, use_mid_position_embeddings=False, layer_norm_eps=1e-6,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, id2label={0: "pet"}, label2id={"pet": 0},
    )  # fmt: skip
    model = YolosForObjectDetection(config)
    missing = model.vit.load_state_dict(_renamed(vit.state_dict(), model), strict=False).missing_keys
    assert all("detection_tokens" in name for name in missing), missing
    with torch.no_grad():
        model.vit.embeddings.detection_tokens.normal_(0, 0.5)
    return model


def _renamed(weights: dict[str, Tensor], model: YolosForObjectDetection) -> dict[str, Tensor]:
    """The weights of a ViT under the names of YOLOS, whose positions go on to the detection tokens."""
    found = {}
    for name, tensor in weights.items():
        for old, new in {
            "attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key",
            "attention.v_proj": "attention.attention.value", "attention.o_proj": "attention.output.dense",
            "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense", "layers.": "encoder.layer.",
        }.items():  # fmt: skip
            name = name.replace(old, new)
        found[name] = tensor
    places = model.vit.embeddings.position_embeddings.detach().clone().normal_(0, 0.1)
    places[:, : 1 + (SIDE // 16) ** 2] = found["embeddings.position_embeddings"]
    return found | {"embeddings.position_embeddings": places}


def varied(one: Photograph, rng: Generator) -> tuple[Tensor, Tensor]:
    """A random crop of a photograph that holds all of the pet, perhaps mirrored, and the pet's box in it."""
    box = np.array(one.box)
    least = max(SMALLEST, box[2] - box[0], box[3] - box[1])
    side = rng.uniform(min(least, 1.0), 1.0)
    low = [rng.uniform(max(0.0, box[2 + i] - side), max(0.0, min(box[i], 1 - side)) + 1e-9) for i in (0, 1)]
    grid = torch.tensor([[[side, 0, 2 * low[0] + side - 1], [0, side, 2 * low[1] + side - 1]]], dtype=torch.float32)
    grid = functional.affine_grid(grid, [1, 3, SIDE, SIDE], align_corners=False)
    pixels = functional.grid_sample(one.pixels[None], grid, align_corners=False)[0]
    box = ((box - np.tile(low, 2)) / side).clip(0, 1)
    if rng.random() < 0.5:
        pixels, box = pixels.flip(-1), box[[2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]
    return pixels, torch.tensor(box, dtype=torch.float32)


def centred(box: Tensor) -> Tensor:
    """Centre, width and height of (left, top, right, bottom)."""
    return torch.cat([(box[..., :2] + box[..., 2:]) / 2, box[..., 2:] - box[..., :2]], -1)


def loss_of(model: YolosForObjectDetection, photographs: list[Photograph], rng: Generator) -> Tensor:
    """The detector's own loss: detection tokens are matched to boxes."""
    drawn = [varied(photographs[i], rng) for i in rng.choice(len(photographs), BATCH, replace=False)]
    labels = [{"class_labels": torch.zeros(1, dtype=torch.long), "boxes": centred(box)[None]} for _, box in drawn]
    return model(pixel_values=torch.stack([pixels for pixels, _ in drawn]), labels=labels).loss


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (left, top, right, bottom)."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - shared)


@torch.no_grad()
def found(model: nn.Module, photographs: list[Photograph]) -> tuple[Tensor, Tensor]:
    """The scores [photographs, tokens] of all boxes, and their overlap with the pet's box."""
    out = [model(pixel_values=p.pixels[None]) for p in photographs]
    scores = torch.cat([o.logits.softmax(-1)[..., 0] for o in out])
    boxes = torch.cat([o.pred_boxes for o in out])
    corners = torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
    return scores, overlap(corners, torch.tensor([p.box for p in photographs])[:, None])


def average_precision(scores: Tensor, overlaps: Tensor, least: float = 0.5) -> float:
    """Average precision with one object an image: the area under precision, made monotonous, against recall."""
    order = scores.flatten().argsort(descending=True)
    image = torch.arange(len(scores)).repeat_interleave(scores.shape[1])[order].tolist()
    hit = (overlaps.flatten()[order] >= least).tolist()
    seen: set[int] = set()
    right = []
    for i, good in zip(image, hit, strict=True):
        right.append(good and i not in seen)
        if good:
            seen.add(i)
    gained = np.cumsum(right)
    precision = gained / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((best * np.array(right)).sum() / len(scores))


def accuracy(model: nn.Module, photographs: list[Photograph]) -> dict[str, float]:
    """AP50, and the share of photographs whose box with the highest score overlaps the pet's by a half."""
    scores, overlaps = found(model, photographs)
    best = overlaps.gather(1, scores.argmax(1, keepdim=True))[:, 0]
    return {
        "AP50": round(average_precision(scores, overlaps), 4),
        "best box": round(float((best >= 0.5).float().mean()), 4),
        "mean overlap": round(float(best.mean()), 4),
    }


CARD = """
# pets-yolos

The stock `YolosForObjectDetection` from ViT-Ti/16, trained further to find the pet on photographs of Oxford-IIIT Pet
(224x224, values from -1 to 1; one class). Made by `python -m tools.training.pets.detector`; every fifth photograph was
held out, and is what the accuracy is of.
"""


def main() -> None:
    """Train, measure on photographs held out, and write the model."""
    arguments = begin("pets-yolos", __doc__)
    training, test = split_photographs(load())
    model, rng = build(), np.random.default_rng(SEED)
    fit = Fit(model, memory=0.99)
    fit.phase(
        "boxes", int(STEPS / arguments.speed), RATE, partial(loss_of, model, training, rng),
        lambda average: str(accuracy(average, test)),
    )  # fmt: skip
    results = {"accuracy": accuracy(fit.average, test), "photographs": len(test), "seconds": round(fit.seconds)}
    print(results)
    publish(arguments.output, fit.average, results, CARD, pictures=True, side=SIDE)


if __name__ == "__main__":
    main()
