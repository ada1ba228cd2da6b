"""Test samples of the three models, each with the pixels, patches and words that are its right explanation.

    from relations.cases import cases, load

    model = load("vqa")
    for case in cases("vqa", 200, seed=0, model=model):
        e = whence.explain(model, case.inputs, "generic-attention", case.target)
        e.streams["text"][0, case.words].sum(), e.streams["image"][0, -len(case.patches) :][case.patches].sum()

All digits are of the test split of MNIST. The directory `training` has to be on the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPModel, DetrForObjectDetection, LxmertForQuestionAnswering, PreTrainedModel

from tools.training.digits import pixels
from tools.training.relations import clip, detr, vqa
from tools.training.relations.captions import CAPTIONS, rivals, true
from tools.training.relations.models import BUILD
from tools.training.relations.objects import ENOUGH, MISSED, overlap, queries
from tools.training.relations.patches import touched
from tools.training.relations.quadrants import PLACES, scatter
from tools.training.relations.questions import ANSWERS, quiz
from tools.training.scenes import Digits, Scenes, load_mnist

Kind = Literal["vqa", "clip", "detr"]
TRIES = 100  # scenes shown to the detector until it finds a digit
CLASSES = {"vqa": LxmertForQuestionAnswering, "clip": CLIPModel, "detr": DetrForObjectDetection}


@dataclass(frozen=True)
class Case:
    """One sample and its right explanation.

    kind: of question ("place", "presence", "sum"), of caption ("both", "sides"), or "object"
    name: the question with its answer, the caption, or the digit and the query that found it
    inputs: what the model takes, a batch of one
    target: the explained scalar, `outputs -> Tensor[batch]`: the logit of the answer, the similarity, the query's logit
    correct: whether outputs are right, `outputs -> bool Tensor[batch]`, also of changed inputs: the answer is best; the
        caption is above nine others that differ in one digit; the query names the digit and half of the union is shared
    answer: the class of the target: an index of `ANSWERS`, an index of `CAPTIONS`, a digit
    right: `correct` for the inputs as they are
    region: bool [h, w], the pixels of the digits that matter; none if the answer is "no"
    patches: bool [patches], those that hold a pixel of the region; the last positions of the stream "image"
    words: bool [tokens], the words that matter; no tokens in the detector
    """

    kind: str
    name: str
    inputs: dict[str, Tensor]
    target: Callable[[Any], Tensor]
    correct: Callable[[Any], Tensor]
    answer: int
    right: bool
    region: Tensor
    patches: Tensor
    words: Tensor


def load(kind: Kind, directory: Path | None = None) -> PreTrainedModel:
    """The trained model of that kind, ready to be explained."""
    directory = directory or BUILD / f"scenes-{kind}"
    if not (directory / "config.json").exists():
        raise FileNotFoundError(f"No model in {directory}: run `python -m tools.training.relations.{kind}` first.")
    return CLASSES[kind].from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def cases(kind: Kind, count: int, seed: int, model: PreTrainedModel | None = None) -> Iterator[Case]:
    """`count` cases; each depends on the seed and its own number alone. The detector's are digits that it found."""
    make = {"vqa": _question, "clip": _caption, "detr": _object}[kind]
    model, digits = model or load(kind), load_mnist("t10k")
    for number in range(count):
        yield make(model, digits, np.random.default_rng([seed, number]))


def _question(model: PreTrainedModel, digits: Digits, rng: np.random.Generator) -> Case:
    """A question of any kind."""
    placed, (question,) = quiz(digits, 1, rng)
    answer = ANSWERS.index(question.answer)
    return _case(
        model,
        kind=question.kind,
        name=f"{question.text} {question.answer}",
        inputs=vqa.inputs([question], placed.scenes),
        target=lambda outputs: outputs.question_answering_score[:, answer],
        correct=lambda outputs: outputs.question_answering_score.argmax(dim=1) == answer,
        answer=answer,
        region=_region(placed.scenes, question.places),
        words=question.words,
    )


def _caption(model: PreTrainedModel, digits: Digits, rng: np.random.Generator) -> Case:
    """A caption that is true of its scene, of either kind."""
    placed = scatter(digits, np.array([PLACES]), rng)
    kind, (truth,) = str(rng.choice(list(clip.KINDS))), true(placed)
    answer = int(rng.choice([i for i in np.flatnonzero(truth) if CAPTIONS[i].sided == clip.KINDS[kind]]))
    caption, others = CAPTIONS[answer], rivals(answer, truth, clip.CHOICES - 1, rng)
    with torch.no_grad():
        given = clip.tokens([CAPTIONS[i].text for i in others], return_tensors="pt")
        embedded = functional.normalize(model.get_text_features(**given).pooler_output, dim=1)
    return _case(
        model,
        kind=kind,
        name=caption.text,
        inputs={
            "pixel_values": pixels(placed.scenes.images).contiguous(),
            **clip.tokens([caption.text], return_tensors="pt"),
        },
        target=lambda outputs: outputs.logits_per_image.diagonal(),
        correct=lambda outputs: _best(outputs, embedded),
        answer=answer,
        region=_region(placed.scenes, np.flatnonzero(np.isin(placed.scenes.labels[0], caption[:2]))),
        words=caption.words,
    )


def _object(model: PreTrainedModel, digits: Digits, rng: np.random.Generator) -> Case:
    """A digit that the detector found."""
    for _ in range(TRIES):
        scenes = detr.draw(digits, 1, rng, training=False).scenes
        given = {"pixel_values": pixels(scenes.images).contiguous()}
        with torch.no_grad():
            (found,) = queries(model(**given), scenes)
        if (found != MISSED).any():
            break
    else:
        raise ValueError(f"The detector finds no digit in {TRIES} scenes; train it longer before it is explained.")
    place = rng.choice(np.flatnonzero(found != MISSED))
    query, digit, box = int(found[place]), int(scenes.labels[0, place]), scenes.boxes[0, place]
    return _case(
        model,
        kind="object",
        name=f"{digit} by query {query}",
        inputs=given,
        target=lambda outputs: outputs.logits[:, query, digit],
        correct=lambda outputs: (
            (outputs.logits[:, query].argmax(dim=1) == digit) & (overlap(outputs.pred_boxes[:, query], box) >= ENOUGH)
        ),
        answer=digit,
        region=_region(scenes, [place]),
        words=(),
    )


@torch.no_grad()
def _case(model: PreTrainedModel, region: np.ndarray, words: tuple[str, ...], **known: Any) -> Case:
    """A case with what follows from the rest of it."""
    ids = known["inputs"].get("input_ids", torch.empty(1, 0, dtype=torch.long))
    return Case(
        right=bool(known["correct"](model(**known["inputs"]))[0]),
        region=torch.from_numpy(region),
        patches=torch.from_numpy(touched(region)),
        words=torch.isin(ids[0], torch.tensor(vqa.tokens.convert_tokens_to_ids(list(words)), dtype=torch.long)),
        **known,
    )


def _best(outputs: Any, others: Tensor) -> Tensor:
    """Whether each picture is nearer to its own text than to the others, embedded and of length 1 [others, width]."""
    own = (outputs.image_embeds * outputs.text_embeds).sum(dim=1)
    return own > (outputs.image_embeds @ others.T).max(dim=1).values


def _region(scenes: Scenes, places: Sequence[int] | np.ndarray) -> np.ndarray:
    """The pixels [h, w] of the digits at these places of the only scene."""
    return scenes.masks[0, list(places)].any(axis=0)
