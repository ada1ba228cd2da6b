"""Train a small DETR to find and name the one to three digits of a scene.

    python -m tools.training.relations.detr [--output DIRECTORY] [--speed FACTOR]

First the convolutions alone learn to name the digit under each cell of their map, with batch normalisation, whose
statistics DETR then takes over and leaves as they are; then the whole detector learns by its own loss.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional
from transformers import DetrConfig, DetrForObjectDetection, ResNetBackbone, ResNetConfig
from transformers.models.detr.modeling_detr import DetrObjectDetectionOutput

from tools.training.digits import NOTHING, patch_labels, pixels
from tools.training.relations.fit import Fit
from tools.training.relations.models import SEED, begin, publish, training_digits
from tools.training.relations.objects import MISSED, queries, targets
from tools.training.relations.quadrants import PLACES, TRAINING, Placed, scatter
from tools.training.scenes import ABSENT, Digits, load_mnist

BATCH = 32
READING, FINDING = (2_000, 2e-3), (6_000, 6e-4)  # steps and highest learning rate


def convolutions() -> ResNetConfig:
    """A small ResNet whose last map is an eighth of the picture, 8x8."""
    return ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 96], depths=[1, 2], layer_type="basic", out_features=["stage2"]
    )


def build(backbone: ResNetBackbone) -> DetrForObjectDetection:
    """A fresh detector of width 96: two layers that read, three that ask with eight queries."""
    layer = {"attention_heads": 4, "ffn_dim": 192}
    config = DetrConfig(
        backbone_config=convolutions(),
        num_queries=8,
        d_model=96,
        encoder_layers=2,
        decoder_layers=3,
        dropout=0.0,
        auxiliary_loss=True,
        id2label={i: str(i) for i in range(10)},
        label2id={str(i): i for i in range(10)},
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in layer.items()},
    )
    model = DetrForObjectDetection(config)
    model.model.backbone.model.load_state_dict(backbone.state_dict())
    return model.requires_grad_(True)  # the class keeps early convolutions as they were pretrained


def draw(digits: Digits, count: int, rng: Generator, training: bool = True) -> Placed:
    """`count` scenes of one to three digits, as varied as in training or upright."""
    return scatter(digits, rng.integers(1, PLACES + 1, count), rng, TRAINING if training else None)


def read(backbone: ResNetBackbone, namer: nn.Conv2d, digits: Digits, rng: Generator) -> Tensor:
    """The loss of naming the digit under each cell of the map."""
    scenes = draw(digits, BATCH, rng).scenes
    named = namer(backbone(pixels(scenes.images)).feature_maps[-1]).flatten(2)  # [scenes, classes, cells]
    return functional.cross_entropy(named, patch_labels(scenes))


def find(model: DetrForObjectDetection, digits: Digits, rng: Generator) -> Tensor:
    """The loss of the detector: its queries are matched to the digits, in every layer that asks."""
    scenes = draw(digits, BATCH, rng).scenes
    return model(pixel_values=pixels(scenes.images), labels=targets(scenes)).loss


@torch.no_grad()
def accuracy(model: nn.Module, placed: Placed) -> dict[str, float]:
    """Recall and precision of digits found (right class, half of the union shared), and scenes without any error."""
    scenes = placed.scenes
    outputs = [model(pixel_values=pixels(part)) for part in np.array_split(scenes.images, len(scenes.images) // 100)]
    logits, boxes = (torch.cat([getattr(o, name) for o in outputs]) for name in ("logits", "pred_boxes"))
    found = (queries(DetrObjectDetectionOutput(logits=logits, pred_boxes=boxes), scenes) != MISSED).sum(axis=1)
    there = (scenes.labels != ABSENT).sum(axis=1)
    said = (logits.argmax(dim=-1) != model.config.num_labels).sum(dim=1).numpy()
    return {
        "recall": round(float(found.sum() / there.sum()), 4),
        "precision": round(float(found.sum() / max(said.sum(), 1)), 4),
        "scenes without error": round(float(((found == there) & (said == there)).mean()), 4),
    }


CARD = """
# scenes-detr

The stock `DetrForObjectDetection` on a small stock ResNet, trained from scratch on scenes of one to three MNIST digits
(64x64, each digit in a quadrant of its own), with eight queries. A digit is found if a query names its class with a box
that shares half of the union. Pictures are grey in three equal channels, from -1 to 1; the encoder reads a map of 8x8
cells. Made by `python -m tools.training.relations.detr`; cases with their right explanation:
`tools.training.relations.cases.cases("detr", ...)`.
"""


def main() -> None:
    """Train, measure on test digits, and write the model."""
    arguments = begin("scenes-detr", __doc__)
    digits, validation = training_digits()
    rng, backbone = np.random.default_rng(SEED), ResNetBackbone(convolutions())
    namer = nn.Conv2d(backbone.channels[-1], NOTHING + 1, 1)
    reading = Fit(backbone, [namer])
    steps, rate = READING
    reading.phase("reading", int(steps / arguments.speed), rate, partial(read, backbone, namer, digits, rng))
    model = build(backbone)
    fit, held_out = Fit(model), draw(validation, 500, np.random.default_rng(SEED), training=False)
    steps, rate = FINDING
    fit.phase(
        "finding", int(steps / arguments.speed), rate, partial(find, model, digits, rng),
        lambda average: str(accuracy(average, held_out)),
    )  # fmt: skip
    test = draw(load_mnist("t10k"), 3_000, np.random.default_rng(SEED), training=False)
    shown = test.scenes.labels[test.scenes.labels != ABSENT]
    results = {
        "accuracy": accuracy(fit.average, test),
        "majority": round(float(np.bincount(shown).max() / len(shown)), 4),
        "scenes": 3_000,
        "seconds": round(reading.seconds),
    }
    print(results)
    publish(arguments.output, fit.average, results, CARD, pictures=True)


if __name__ == "__main__":
    main()
