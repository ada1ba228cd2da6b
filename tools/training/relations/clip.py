"""Train a small CLIP on scenes of three digits and captions that name two of them.

    python -m tools.training.relations.clip [--output DIRECTORY] [--speed FACTOR]

The encoder of pictures begins as the Vision Transformer that comes with Whence, which names the digits of a scene; the
encoder of texts begins from nothing. Every scene is compared with all captions there are, so that the captions that
are nearly right are always among the wrong ones. First on the patches that carry ink and a few empty ones, then on all.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel, ViTForImageClassification

from tools.training.digits import CANVAS, PATCH, keep, pixels
from tools.training.paths import MODELS
from tools.training.relations.captions import CAPTIONS, rivals, true
from tools.training.relations.fit import Fit
from tools.training.relations.models import SEED, begin, publish, training_digits
from tools.training.relations.quadrants import PLACES, TRAINING, Placed, scatter
from tools.training.relations.words import END, LONGEST, WORDS, tokenizer
from tools.training.scenes import Digits, load_mnist

BATCH = 64
CHOICES = 10
KINDS = {"both": False, "sides": True}  # whether captions of the kind say where the digits are
NAMES = ("input_ids", "attention_mask")
PHASES = {"ink": (2_000, 36, 7e-4), "all patches": (400, 64, 2e-4)}

tokens = tokenizer(NAMES)


def build() -> CLIPModel:
    """Width 96 and six layers for pictures, as in the shipped model, width 96 and two layers for texts."""
    heads = {"num_attention_heads": 4, "intermediate_size": 256, "hidden_size": 96, "hidden_act": "gelu"}
    marks = {"pad_token_id": 0, "bos_token_id": WORDS.index("[CLS]"), "eos_token_id": END}
    config = CLIPConfig(
        text_config={
            **heads, **marks, "num_hidden_layers": 2, "vocab_size": len(WORDS), "max_position_embeddings": LONGEST,
        },
        vision_config={**heads, "num_hidden_layers": 6, "image_size": CANVAS, "patch_size": PATCH},
        projection_dim=96,
    )  # fmt: skip
    model = CLIPModel(config)
    model.vision_model.load_state_dict(shipped(), strict=True)
    return model


def shipped() -> dict[str, Tensor]:
    """The weights of the shipped Vision Transformer under CLIP's names.

    CLIP has no bias on patches, which goes into the positions, and a norm before the first layer, whose scale is set to
    that of what it normalises.
    """
    vit = ViTForImageClassification.from_pretrained(MODELS / "digits", dtype=torch.float32).vit
    weights = vit.state_dict()
    places = weights.pop("embeddings.position_embeddings")[0]
    places[1:] += weights.pop("embeddings.patch_embeddings.projection.bias")
    found = {
        "embeddings.class_embedding": weights.pop("embeddings.cls_token")[0, 0],
        "embeddings.patch_embedding.weight": weights.pop("embeddings.patch_embeddings.projection.weight"),
        "embeddings.position_embedding.weight": places,
        "pre_layrnorm.weight": torch.full_like(places[0], float(places.std())),
        "pre_layrnorm.bias": torch.zeros_like(places[0]),
    }
    for name, tensor in weights.items():
        for old, new in {
            "layers.": "encoder.layers.", "attention.o_proj": "self_attn.out_proj", "attention.": "self_attn.",
            "layernorm_before": "layer_norm1", "layernorm_after": "layer_norm2", "layernorm.": "post_layernorm.",
        }.items():  # fmt: skip
            name = name.replace(old, new)
        found[name] = tensor
    return found


def similarity(model: CLIPModel, images: Tensor, kept: int | None = None) -> Tensor:
    """The logits [scenes, captions] of images [scenes, 3, h, w], perhaps from `kept` patches of each only."""
    given = tokens([caption.text for caption in CAPTIONS], padding=True, return_tensors="pt")
    if kept is None:
        return model(pixel_values=images, **given).logits_per_image
    vision = model.vision_model
    states = vision.embeddings(images)
    index = functional.pad(keep(images, kept) + 1, (1, 0))  # the class token stays
    states = states.gather(1, index[..., None].expand(-1, -1, states.shape[-1]))
    states = vision.encoder(inputs_embeds=vision.pre_layrnorm(states)).last_hidden_state
    pictures = model.visual_projection(vision.post_layernorm(states[:, 0]))
    texts = model.get_text_features(**given).pooler_output
    cosines = functional.normalize(pictures, dim=1) @ functional.normalize(texts, dim=1).T
    return cosines * model.logit_scale.exp()


def contrast(logits: Tensor, truth: Tensor) -> Tensor:
    """Cross-entropy of every true entry against the false ones of its row, logits and truth [rows, columns]."""
    false = logits.masked_fill(truth, -torch.inf).logsumexp(dim=1, keepdim=True)
    return functional.softplus(false - logits)[truth].mean()


def loss_of(model: CLIPModel, digits: Digits, kept: int, rng: Generator) -> Tensor:
    """Captions among the captions of each scene, scenes among those of each caption."""
    placed = scatter(digits, np.full(BATCH, PLACES), rng, TRAINING)
    logits = similarity(model, pixels(placed.scenes.images), kept)
    truth = torch.from_numpy(true(placed))
    return contrast(logits, truth) + contrast(logits.T, truth.T)


@torch.no_grad()
def accuracy(model: nn.Module, placed: Placed, seed: int = SEED) -> dict[str, float]:
    """How often a true caption scores best among `CHOICES` that differ in one digit, and among all; by kind."""
    parts = np.array_split(placed.scenes.images, max(1, len(placed.scenes.images) // 100))
    logits = torch.cat([similarity(model, pixels(part)) for part in parts]).numpy()
    rng, truth, found = np.random.default_rng(seed), true(placed), {}
    for kind, sided in KINDS.items():
        of_kind = np.array([caption.sided == sided for caption in CAPTIONS])
        hits = []
        for row, scene in zip(logits, truth, strict=True):
            chosen = rng.choice(np.flatnonzero(scene & of_kind))
            hits.append(row[chosen] > row[rivals(chosen, scene, CHOICES - 1, rng)].max())
        best = np.where(of_kind, logits, -np.inf).argmax(axis=1)
        found[f"{kind}, of {CHOICES}"] = round(float(np.mean(hits)), 4)
        found[f"{kind}, of {of_kind.sum()}"] = round(float(truth[np.arange(len(best)), best].mean()), 4)
    return found


def chance(placed: Placed) -> dict[str, float]:
    """What guessing would reach in each entry of `accuracy`."""
    truth, found = true(placed), {}
    for kind, sided in KINDS.items():
        of_kind = np.array([caption.sided == sided for caption in CAPTIONS])
        found[f"{kind}, of {CHOICES}"] = 1 / CHOICES
        found[f"{kind}, of {of_kind.sum()}"] = round(float(truth[:, of_kind].mean()), 4)
    return found


CARD = """
# scenes-clip

The stock `CLIPModel`, small, on scenes of three MNIST digits (64x64, patches of 8x8, each digit in a quadrant of its
own) and captions that name two of them: "a 3 and a 7" ("both"), "a 5 on the left and a 2 on the right" ("sides"). The
accuracy "of 10" is the share of scenes where a true caption scores above nine false ones that differ from it in one
digit, "of 90" the share where the best of all captions of the kind is true.
Pictures are grey in three equal channels, from -1 to 1. Made by `python -m tools.training.relations.clip`; cases with
their right explanation: `tools.training.relations.cases.cases("clip", ...)`.
"""


def main() -> None:
    """Train, measure on test digits, and write the model."""
    arguments = begin("scenes-clip", __doc__)
    digits, validation = training_digits()
    model, rng = build(), np.random.default_rng(SEED)
    fit, held_out = Fit(model), scatter(validation, np.full(300, PLACES), np.random.default_rng(SEED))
    for name, (steps, kept, rate) in PHASES.items():
        loss = partial(loss_of, model, digits, kept, rng)
        fit.phase(name, int(steps / arguments.speed), rate, loss, lambda average: str(accuracy(average, held_out)))
    test = scatter(load_mnist("t10k"), np.full(3_000, PLACES), np.random.default_rng(SEED))
    results = {
        "accuracy": accuracy(fit.average, test),
        "chance": chance(test),
        "scenes": 3_000,
        "seconds": round(fit.seconds),
    }
    print(results)
    publish(arguments.output, fit.average, results, CARD, tokens, pictures=True)


if __name__ == "__main__":
    main()
