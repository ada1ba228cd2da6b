"""Train a small LXMERT to answer questions about scenes of digits.

    python -m tools.training.relations.vqa [--output DIRECTORY] [--speed FACTOR]

Three phases: reading single digits with the layers of the picture alone, then questions on the patches that carry ink
and a few empty ones (the model takes any number of patches, which makes a step cheaper), then questions on all
patches. Beside the answer, every patch learns to name the digit it lies on; the head for this is dropped in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional
from transformers import LxmertConfig, LxmertForQuestionAnswering

from tools.training.digits import NOTHING, PATCH, keep, patch_labels, pixels
from tools.training.relations.fit import Fit
from tools.training.relations.models import SEED, begin, publish, training_digits
from tools.training.relations.patches import boxes, features
from tools.training.relations.quadrants import TRAINING, Placed, scatter
from tools.training.relations.questions import ANSWERS, KINDS, Question, quiz
from tools.training.relations.words import LONGEST, WORDS, tokenizer
from tools.training.scenes import Digits, Scenes, load_mnist

BATCH = 64
tokens = tokenizer()
PHASES = {"reading": (4_000, 14, 1e-3), "questions": (4_500, 34, 7e-4), "all patches": (600, 64, 2e-4)}


def build() -> LxmertForQuestionAnswering:
    """A fresh model: width 128, 4 heads, two layers for words, three for patches, two between them."""
    config = LxmertConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        l_layers=2,
        r_layers=3,
        x_layers=2,
        max_position_embeddings=LONGEST,
        visual_feat_dim=PATCH**2,
        num_qa_labels=len(ANSWERS),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(ANSWERS)),
        label2id={answer: i for i, answer in enumerate(ANSWERS)},
    )
    model = LxmertForQuestionAnswering(config)
    place = model.lxmert.encoder.visn_fc.box_fc
    with torch.no_grad():  # far enough apart that neighbours differ after the norm
        place.weight.normal_(0, 2.0)
        place.bias.copy_(-place.weight.sum(dim=1) / 2 + torch.randn_like(place.bias) / 2)
    return model


def inputs(questions: list[Question], scenes: Scenes) -> dict[str, Tensor]:
    """What the model takes: token ids, mask and types [questions, tokens], patches and their boxes."""
    encoded = tokens([question.text for question in questions], padding=True, return_tensors="pt")
    return {**encoded, "visual_feats": features(scenes.images), "visual_pos": boxes(len(questions))}


def thin(given: Mapping[str, Tensor], kept: Tensor) -> dict[str, Tensor]:
    """The same inputs with the patches kept [scenes, kept] only."""
    names = ("visual_feats", "visual_pos")
    chosen = {k: given[k].gather(1, kept[..., None].expand(-1, -1, given[k].shape[-1])) for k in names}
    return {**given, **chosen}


def naming(namer: nn.Linear, states: Tensor, scenes: Scenes, kept: Tensor) -> Tensor:
    """Cross-entropy of the digit under each patch, from states [scenes, kept, width]."""
    wanted = patch_labels(scenes).gather(1, kept)
    return functional.cross_entropy(namer(states).flatten(0, 1), wanted.flatten())


def read(model: LxmertForQuestionAnswering, namer: nn.Linear, digits: Digits, kept: int, rng: Generator) -> Tensor:
    """The loss of naming alone, on scenes of one digit and with the layers that only patches pass."""
    scenes = scatter(digits, np.ones(2 * BATCH, np.int64), rng, TRAINING).scenes
    index = keep(pixels(scenes.images), kept)
    given = thin({"visual_feats": features(scenes.images), "visual_pos": boxes(len(scenes.images))}, index)
    states = model.lxmert.encoder.visn_fc(given["visual_feats"], given["visual_pos"])
    for layer in model.lxmert.encoder.r_layers:
        states = layer(states)[0]
    return naming(namer, states, scenes, index)


def answer(model: LxmertForQuestionAnswering, namer: nn.Linear, digits: Digits, kept: int, rng: Generator) -> Tensor:
    """The loss of answers, plus that of naming by the states in which patches meet words."""
    placed, questions = quiz(digits, BATCH, rng, variation=TRAINING)
    index = keep(pixels(placed.scenes.images), kept)
    given = thin(inputs(questions, placed.scenes), index)
    labels = torch.tensor([ANSWERS.index(question.answer) for question in questions])
    outputs = model(**given, labels=labels, output_hidden_states=True)
    states = outputs.vision_hidden_states[model.config.r_layers - 1]
    return outputs.loss + 0.5 * naming(namer, states, placed.scenes, index)


@torch.no_grad()
def accuracy(model: nn.Module, placed: Placed, questions: list[Question]) -> dict[str, float]:
    """The share of right answers, by kind of question."""
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    given = inputs(questions, placed.scenes)
    for start in range(0, len(questions), 100):
        part = {name: tensor[start : start + 100] for name, tensor in given.items()}
        found = model(**part).question_answering_score.argmax(dim=1).tolist()
        for question, best in zip(questions[start:], found, strict=False):
            right[question.kind].append(ANSWERS[best] == question.answer)
    return {kind: round(float(np.mean(hits)), 4) for kind, hits in right.items()}


def majority(questions: list[Question]) -> dict[str, float]:
    """The share of the most frequent answer, by kind of question."""
    counts = {kind: Counter(q.answer for q in questions if q.kind == kind) for kind in KINDS}
    return {kind: round(max(c.values()) / sum(c.values()), 4) for kind, c in counts.items()}


CARD = """
# scenes-vqa

The stock `LxmertForQuestionAnswering`, trained from scratch on scenes of MNIST digits (64x64, each digit in a quadrant
of its own): "which digit is top left?", "is there a 7?", "sum of the two?". `visual_feats` are the 64 patches of 8x8
pixels from 0 to 1, row by row; `visual_pos` their left, top, right and bottom from 0 to 1. Made by
`python -m tools.training.relations.vqa`;
cases with their right explanation: `tools.training.relations.cases.cases("vqa", ...)`.
"""


def main() -> None:
    """Train, measure on test digits, and write the model."""
    arguments = begin("scenes-vqa", __doc__)
    digits, validation = training_digits()
    model, rng = build(), np.random.default_rng(SEED)
    namer = nn.Linear(model.config.hidden_size, NOTHING + 1)
    fit, held_out = Fit(model, [namer]), quiz(validation, 600, np.random.default_rng(SEED))
    for name, (steps, kept, rate) in PHASES.items():
        loss = partial(read if name == "reading" else answer, model, namer, digits, kept, rng)
        fit.phase(name, int(steps / arguments.speed), rate, loss, lambda average: str(accuracy(average, *held_out)))
    test = quiz(load_mnist("t10k"), 9_000, np.random.default_rng(SEED))
    results = {
        "accuracy": accuracy(fit.average, *test),
        "majority": majority(test[1]),
        "questions": dict(Counter(question.kind for question in test[1])),
        "seconds": round(fit.seconds),
    }
    print(results)
    publish(arguments.output, fit.average, results, CARD, tokens)


if __name__ == "__main__":
    main()
