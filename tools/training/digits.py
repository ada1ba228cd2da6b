"""Train the small Vision Transformer that names the digits of a scene, and write it to the package.

    python -m tools.training.digits [--output DIRECTORY] [--speed FACTOR]

Three phases: single digits, then pairs, both on the patches that carry ink and a few empty ones (the rest is dropped,
which makes a step cheaper), then pairs on all patches. Beside the labels of the scene, every patch token learns to
name the digit it lies on; the head for this is dropped in the end. The exported weights are a moving average.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import ViTConfig, ViTForImageClassification

from tools.training.paths import MODELS
from tools.training.scenes import Digits, Scenes, Variation, draw, load_mnist

CANVAS, PATCH = 64, 8
BATCH = 64
NOTHING = 10  # the class of a patch without ink
HELD_OUT = 5_000  # the last digits of MNIST train: validation
TRAINING = Variation(scale=(0.75, 1.25), rotation=12, shear=0.15, stretch=0.4)


@dataclass(frozen=True)
class Phase:
    """Steps, probabilities of 0, 1 and 2 digits in a scene, patches kept of each scene, highest learning rate."""

    steps: int
    sizes: tuple[float, float, float]
    kept: int
    rate: float


PHASES = (
    Phase(4_000, (0.02, 0.98, 0.0), 14, 1e-3),
    Phase(9_400, (0.02, 0.08, 0.90), 26, 1e-3),
    Phase(700, (0.03, 0.09, 0.88), 64, 1e-4),
)


def build() -> ViTForImageClassification:
    """A fresh model: 6 layers of width 96 with 4 heads, multi-label over the ten digits."""
    names = {i: f"digit {i}" for i in range(10)}
    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=CANVAS,
        patch_size=PATCH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        problem_type="multi_label_classification",
        id2label=names,
        label2id={name: i for i, name in names.items()},
    )
    model = ViTForImageClassification(config)
    with torch.no_grad():
        model.vit.embeddings.position_embeddings[0, 1:] = waves(CANVAS // PATCH, config.hidden_size)
    return model


def waves(side: int, width: int) -> Tensor:
    """Sines and cosines of row and column, [side * side, width], to start the position embeddings from."""
    rates = 100.0 ** -(torch.arange(width // 4) / (width // 4))
    phases = torch.arange(side)[:, None] * rates
    axis = torch.cat([phases.sin(), phases.cos()], dim=1)
    rows, columns = axis.repeat_interleave(side, dim=0), axis.repeat(side, 1)
    return 0.5 * torch.cat([rows, columns], dim=1)


def pixels(images: np.ndarray) -> Tensor:
    """Grey images uint8 [scenes, height, width] as the processor would give them, float [scenes, 3, height, width]."""
    return (torch.from_numpy(images).float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1)


def patch_labels(scenes: Scenes) -> Tensor:
    """The digit with most ink in each patch, `NOTHING` where there is none: int64 [scenes, patches]."""
    masks = torch.from_numpy(scenes.masks).float()
    share = functional.avg_pool2d(masks, PATCH).flatten(2)  # [scenes, places, patches]
    most, place = share.max(dim=1)
    classes = torch.from_numpy(scenes.labels).gather(1, place)
    return classes.where(most >= 4 / PATCH**2, NOTHING)


def keep(images: Tensor, count: int) -> Tensor:
    """Indices [scenes, count] of the patches with ink, filled up with random empty ones; images [scenes, 3, h, w]."""
    ink = functional.max_pool2d(images[:, :1], PATCH).flatten(1) > -1
    return (ink.float() + torch.rand(ink.shape)).topk(count, dim=1).indices


def forward(model: ViTForImageClassification, images: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [scenes, 10] and patch states [scenes, kept, width], from the patches in kept [scenes, kept] only."""
    hidden = model.vit.embeddings(images)
    index = torch.cat([torch.zeros_like(kept[:, :1]), kept + 1], dim=1)  # the class token stays
    hidden = hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
    for layer in model.vit.layers:
        hidden = layer(hidden, None)
    hidden = model.vit.layernorm(hidden)
    return model.classifier(hidden[:, 0]), hidden[:, 1:]


def batches(digits: Digits, phase: Phase, steps: int, rng: np.random.Generator) -> Iterator[Scenes]:
    """`steps` batches of fresh scenes."""
    for _ in range(steps):
        yield draw(digits, BATCH, rng, (CANVAS, CANVAS), TRAINING, phase.sizes)


def loss_of(model: ViTForImageClassification, namer: nn.Linear, scenes: Scenes, count: int) -> Tensor:
    """Cross-entropy of the scenes' labels plus that of the patches' labels, on `count` patches of each scene."""
    images = pixels(scenes.images)
    kept = keep(images, count)
    logits, states = forward(model, images, kept)
    whole = functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(scenes.present()).float())
    parts = functional.cross_entropy(namer(states).flatten(0, 1), patch_labels(scenes).gather(1, kept).flatten())
    return 5 * whole + 0.5 * parts


def train(
    model: ViTForImageClassification, digits: Digits, held_out: Scenes, speed: float
) -> ViTForImageClassification:
    """Run all phases and return the moving average of the model; `speed` divides the number of steps."""
    rng = np.random.default_rng(1)
    namer = nn.Linear(model.config.hidden_size, NOTHING + 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.998))
    parameters = [*model.parameters(), *namer.parameters()]
    start = time.time()
    for number, phase in enumerate(PHASES):
        steps = int(phase.steps / speed)
        optimizer = torch.optim.AdamW(parameters, lr=phase.rate, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, phase.rate, steps, pct_start=0.1, final_div_factor=4, cycle_momentum=False
        )
        for step, scenes in enumerate(batches(digits, phase, steps, rng), 1):
            loss = loss_of(model, namer, scenes, phase.kept)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            if step % 500 == 0 or step == steps:
                share = exact(average.module, held_out)
                print(f"{time.time() - start:5.0f} s  phase {number}  step {step}  {loss:.4f}  {share:.2%}", flush=True)
    return average.module


@torch.no_grad()
def exact(model: ViTForImageClassification, scenes: Scenes) -> float:
    """The share of scenes of two digits whose two highest logits are these two digits."""
    model.eval()
    logits = torch.cat([model(pixels(part)).logits for part in np.array_split(scenes.images, 10)])
    found = logits.topk(2).indices.sort(dim=1).values.numpy()
    return float((found == np.sort(scenes.labels, axis=1)).all(axis=1).mean())


def scenes_for_test(count: int = 10_000) -> Scenes:
    """The scenes for the reported accuracy: two upright MNIST test digits at 0.8 to 1.2 of their size, seed 0."""
    return draw(load_mnist("t10k"), count, np.random.default_rng(0), (CANVAS, CANVAS))


def write_examples(directory: Path) -> None:
    """Six pictures of scenes of MNIST test digits, the first by seed: four square ones and two wide ones."""
    directory.mkdir(parents=True, exist_ok=True)
    digits, rng = load_mnist("t10k"), np.random.default_rng(1)
    for count, width in ((4, CANVAS), (2, CANVAS * 3 // 2)):
        scenes = draw(digits, count, rng, (CANVAS, width))
        for image, labels in zip(scenes.images, scenes.labels, strict=True):
            name = "-".join(map(str, sorted(labels)))
            Image.fromarray(image).convert("RGB").save(directory / f"{name}.png")


def export(model: ViTForImageClassification, output: Path) -> None:
    """Write the model in half precision with the configuration of the stock image processor."""
    model.half().save_pretrained(output)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": CANVAS, "width": CANVAS},
        "resample": Image.Resampling.BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (output / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")


def main() -> None:
    """Train, validate on held-out digits, and export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=MODELS / "digits")
    parser.add_argument("--speed", type=float, default=1.0, help="divides the number of steps, for a trial run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = load_mnist("train")
    held_out = draw(Digits(images[-HELD_OUT:], labels[-HELD_OUT:]), 1_000, np.random.default_rng(0))
    model = train(build(), Digits(images[:-HELD_OUT], labels[:-HELD_OUT]), held_out, arguments.speed)
    export(model, arguments.output)
    write_examples(arguments.output / "examples")


if __name__ == "__main__":
    main()
