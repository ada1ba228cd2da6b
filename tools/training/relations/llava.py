"""Train a small LLaVA to name the digits of a scene, and where they are, in words.

    python -m tools.training.relations.llava [--output DIRECTORY] [--speed FACTOR]

The encoder of images begins as the Vision Transformer that comes with Whence; the language model begins from nothing.
First the language model learns alone, then everything; beside the words, every patch learns to name the digit it lies
on, by a head that is dropped in the end. Each digit word of an answer has its right region: the digit itself.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    ViTImageProcessorPil,
)

from tools.training.digits import CANVAS, NOTHING, PATCH, patch_labels, pixels
from tools.training.relations.clip import shipped
from tools.training.relations.fit import Fit
from tools.training.relations.models import PROCESSOR, SEED, begin, publish, training_digits
from tools.training.relations.quadrants import PLACES, QUADRANTS, TRAINING, Placed, scatter
from tools.training.scenes import ABSENT, Digits, load_mnist

WORDS = (
    *("<pad>", "<unk>", "<end>", "<image>"),
    *map(str, range(10)),
    *("USER", "ASSISTANT", ":", "?", "which", "digit", "digits", "are", "is", "there"),
    *("top", "bottom", "left", "right", "and"),
)
END, IMAGE = WORDS.index("<end>"), WORDS.index("<image>")
CHAT = (
    "{% for m in messages %}{{ m.role | upper }}: {% for c in m.content %}"
    "{% if c.type == 'image' %}<image> {% else %}{{ c.text }} {% endif %}{% endfor %}{% endfor %}ASSISTANT:"
)
BATCH, TOKENS = 48, (CANVAS // PATCH) ** 2
ALL = "which digits are there?"
LANGUAGE, EVERYTHING = (1_500, 2e-3), (2_500, 6e-4)  # steps and highest learning rate
CLIP = {"num_attention_heads": 4, "intermediate_size": 256, "hidden_size": 96, "hidden_act": "gelu"}


class Dialogue(NamedTuple):
    """A question about a scene with its right answer, and the digit (an index of places) that each answer word names.

    places: for each word of the answer, the digit it names; `ABSENT` for other words.
    """

    question: str
    answer: str
    places: tuple[int, ...]


def processor() -> LlavaProcessor:
    """A stock processor: whole words, and images of `CANVAS` pixels that become one token a patch."""
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="<end>",
        additional_special_tokens=["<image>"],
    )  # fmt: skip
    images = ViTImageProcessorPil(**{k: v for k, v in PROCESSOR.items() if k != "image_processor_type"})
    return LlavaProcessor(
        images, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=CHAT,
    )  # fmt: skip


def build() -> LlavaForConditionalGeneration:
    """Width 96: six layers for images, as in the shipped model, four layers for language."""
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**CLIP, num_hidden_layers=6, image_size=CANVAS, patch_size=PATCH),
        text_config=LlamaConfig(
            vocab_size=len(WORDS), hidden_size=96, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=128, pad_token_id=0, bos_token_id=None, eos_token_id=END,
            tie_word_embeddings=False,
        ),
        image_token_index=IMAGE, vision_feature_layer=-1, vision_feature_select_strategy="default",
        image_seq_length=TOKENS, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(shipped(), strict=True)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = END, 0
    return model


def ask(placed: Placed, scene: int, all_of_them: bool, rng: Generator) -> Dialogue:
    """A question about one of the scenes: for all its digits, or for the one in a quadrant."""
    labels, quadrants = placed.scenes.labels[scene], placed.quadrants[scene]
    present = [int(place) for place in np.argsort(quadrants) if labels[place] != ABSENT]
    if not all_of_them:
        place = int(rng.choice(present))
        return Dialogue(f"which digit is {QUADRANTS[quadrants[place]]}?", str(labels[place]), (place,))
    words: list[str] = []
    named: list[int] = []
    for place in present:
        said = [*(["and"] if words else []), *QUADRANTS[quadrants[place]].split(), str(labels[place])]
        words += said
        named += [ABSENT] * (len(said) - 1) + [place]
    return Dialogue(ALL, " ".join(words), tuple(named))


def prompt(question: str) -> str:
    """The question as a message of the user, as the processor's chat template writes it."""
    return f"USER: <image> {question} ASSISTANT:"


def batch(reader: LlavaProcessor, dialogues: list[Dialogue]) -> tuple[Tensor, Tensor]:
    """Token ids [dialogues, tokens] of questions with their answers, and labels, which are -100 before an answer."""
    ids = []
    for one in dialogues:
        asked = reader.tokenizer(prompt(one.question).replace("<image>", "<image> " * TOKENS))["input_ids"]
        ids.append((asked, [*reader.tokenizer(one.answer)["input_ids"], END]))
    longest = max(len(asked) + len(answered) for asked, answered in ids)
    rows = [asked + answered + [0] * (longest - len(asked) - len(answered)) for asked, answered in ids]
    told = [[-100] * len(asked) + answered for asked, answered in ids]
    return torch.tensor(rows), torch.tensor([row + [-100] * (longest - len(row)) for row in told])


def loss_of(model: LlavaForConditionalGeneration, namer: nn.Linear, reader: LlavaProcessor, digits: Digits,
            rng: Generator) -> Tensor:  # fmt: skip
    """Cross-entropy of the words of answers, plus that of naming the digit under each patch."""
    placed = scatter(digits, rng.integers(1, PLACES + 1, BATCH), rng, TRAINING)
    dialogues = [ask(placed, i, bool(rng.random() < 0.6), rng) for i in range(BATCH)]
    ids, labels = batch(reader, dialogues)
    images = pixels(placed.scenes.images)
    outputs = model(input_ids=ids, attention_mask=(ids != 0).long(), pixel_values=images, labels=labels)
    states = outputs.image_hidden_states.reshape(BATCH, TOKENS, -1)
    named = functional.cross_entropy(namer(states).flatten(0, 1), patch_labels(placed.scenes).flatten())
    return outputs.loss + 0.3 * named


@torch.no_grad()
def answers(model: nn.Module, reader: LlavaProcessor, placed: Placed, dialogues: list[Dialogue]) -> list[str]:
    """What the model answers, word by word."""
    found = []
    for start in range(0, len(dialogues), 100):
        part = dialogues[start : start + 100]
        texts = [prompt(one.question).replace("<image>", "<image> " * TOKENS) for one in part]
        reader.tokenizer.padding_side = "left"
        given = reader.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        images = pixels(placed.scenes.images[start : start + 100])
        out = model.generate(**given, pixel_values=images, max_new_tokens=16, do_sample=False)
        found += reader.tokenizer.batch_decode(out[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return found


def accuracy(model: nn.Module, reader: LlavaProcessor, placed: Placed, dialogues: list[Dialogue]) -> dict[str, float]:
    """The share of answers that are right word by word, by kind of question."""
    right: dict[str, list[bool]] = {}
    for one, said in zip(dialogues, answers(model, reader, placed, dialogues), strict=True):
        kind = "all digits" if one.question == ALL else "one digit"
        right.setdefault(kind, []).append(said.split() == one.answer.split())
    return {kind: round(float(np.mean(hits)), 4) for kind, hits in right.items()}


def examination(digits: Digits, count: int, rng: Generator) -> tuple[Placed, list[Dialogue]]:
    """Scenes of one to three upright digits, and a question about each."""
    placed = scatter(digits, rng.integers(1, PLACES + 1, count), rng)
    return placed, [ask(placed, i, i % 2 == 0, rng) for i in range(count)]


CARD = """
# scenes-llava

The stock `LlavaForConditionalGeneration`, small, on scenes of one to three MNIST digits (64x64, patches of 8x8, each
digit in a quadrant of its own): "which digits are there?" is answered by "top left 3 and bottom right 7", "which digit
is top left?" by "3". Images are grey in three equal channels, from -1 to 1. Made by
`python -m tools.training.relations.llava`; how well explanations point at the digits:
`python -m tools.training.relations.pointing`.
"""


def main() -> None:
    """Train, measure on test digits, and write the model."""
    arguments = begin("scenes-llava", __doc__)
    digits, validation = training_digits()
    model, reader, rng = build(), processor(), np.random.default_rng(SEED)
    namer = nn.Linear(96, NOTHING + 1)
    held_out = examination(validation, 200, np.random.default_rng(SEED))
    loss = partial(loss_of, model, namer, reader, digits, rng)
    model.model.vision_tower.requires_grad_(False)
    alone = Fit(model, [namer])
    alone.phase("language", int(LANGUAGE[0] / arguments.speed), LANGUAGE[1], loss)
    model.requires_grad_(True)
    fit = Fit(model, [namer])
    fit.phase(
        "everything", int(EVERYTHING[0] / arguments.speed), EVERYTHING[1], loss,
        lambda average: str(accuracy(average, reader, *held_out)),
    )  # fmt: skip
    results = {
        "accuracy": accuracy(fit.average, reader, *examination(load_mnist("t10k"), 2_000, np.random.default_rng(SEED))),
        "scenes": 2_000,
        "seconds": round(alone.seconds),
    }
    print(results)
    publish(arguments.output, fit.average, results, CARD)
    reader.tokenizer.padding_side = "right"
    reader.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
