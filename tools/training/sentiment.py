"""Train the small BERT that tells whether an opinion is positive, and write it to the package.

    python -m tools.training.sentiment [--output DIRECTORY] [--epochs N] [--cache FILE]

The student learns from a fine-tuned MiniLM-L6: its soft labels and, through a projection dropped in the end, its last
states, on the training phrases of SST-2 and on sentences of IMDB reviews; the labels of SST-2 count too. Word
embeddings start from principal components of the teacher's. SST-2 is written as in the Penn Treebank ("does n't");
half of its phrases are read in ordinary spelling.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizerFast

from tools.training.paths import DATA, MODELS, WEIGHTS

LENGTH = 128
VOCABULARY = 8_000
BATCH = 64
TEMPERATURE = 2.0
RATE = 1e-3
UNLABELLED = -1
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz!\"#$%&'()*+,-./:;=?@[]_~\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
SPELLING = [
    (r"(\w) (n't|'(?:s|re|ve|ll|d|m)\b)", r"\1\2"),
    (r"\b(can) (not)\b", r"\1\2"),
    (r"\b(gon|wan) (na)\b", r"\1\2"),
    (r"-lrb- ?", "("),
    (r" ?-rrb-", ")"),
    (r"`` ?| ?''", '"'),
    (r" ([.,:;!?%])", r"\1"),
    (r"([$#]) ", r"\1"),
]


class Lesson(NamedTuple):
    """What the student learns from: texts, their labels [texts] and the teacher's logits and states [texts, …]."""

    texts: list[str]
    labels: Tensor
    logits: Tensor
    states: Tensor


def read_sst2(split: str) -> tuple[list[str], Tensor]:
    """The phrases of `train`, `heldout_from_train` or `dev`, and their labels int64 [phrases]."""
    with gzip.open(DATA / "sst2" / f"{split}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [text.strip() for text, _ in rows], torch.tensor([int(label) for _, label in rows])


def read_imdb(count: int = 36_000, shortest: int = 6, longest: int = 28) -> list[str]:
    """A random sample of the sentences of `shortest` to `longest` words in the IMDB training reviews."""
    sentences: list[str] = []
    with gzip.open(DATA / "imdb" / "train_5000.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            text = re.sub(r"(<br />|\s)+", " ", json.loads(line)["text"])
            sentences += re.split(r"(?<=[.!?]) +", text)
    fitting = [sentence for sentence in sentences if shortest <= len(sentence.split()) <= longest]
    return random.Random(0).sample(fitting, count)


def respell(text: str) -> str:
    """Treebank tokens in ordinary spelling: "it does n't work ." becomes "It doesn't work."."""
    for pattern, replacement in SPELLING:
        text = re.sub(pattern, replacement, text)
    return text[:1].upper() + text[1:]


def vary(text: str, rng: random.Random) -> str:
    """The text in ordinary spelling, sometimes with typographic apostrophes and closing punctuation."""
    text = respell(text)
    if rng.random() < 0.2:
        text = text.replace("'", "\u2019")
    if text[-1:].isalnum():
        text += rng.choices(["", ".", "!"], [6, 3, 1])[0]
    return text


def build_tokenizer(texts: list[str]) -> BertTokenizerFast:
    """A lower-case WordPiece tokenizer with a vocabulary learned from the texts."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=list(ALPHABET), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return BertTokenizerFast(
        tokenizer_object=tokenizer, do_lower_case=True, strip_accents=True, model_max_length=LENGTH
    )


def build_student(tokenizer: BertTokenizerFast) -> BertForSequenceClassification:
    """A fresh student of 4 layers of width 128 with 4 heads, whose word embeddings come from the teacher."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
        problem_type="single_label_classification",
    )
    student = BertForSequenceClassification(config)
    with torch.no_grad():
        student.bert.embeddings.word_embeddings.weight[:] = embed(tokenizer, config.hidden_size)
    return student


def embed(tokenizer: BertTokenizerFast, width: int) -> Tensor:
    """Principal components [vocabulary, width] of the teacher's embeddings of the tokenizer's pieces."""
    teacher, reader = load_teacher()
    table, known = teacher.bert.embeddings.word_embeddings.weight, reader.get_vocab()
    rows = []
    for piece in tokenizer.convert_ids_to_tokens(range(len(tokenizer))):
        whole = known.get(piece)
        parts = [whole] if whole is not None else reader.encode(piece.removeprefix("##"), add_special_tokens=False)
        rows.append(table[parts].mean(dim=0))
    centred = torch.stack(rows) - torch.stack(rows).mean(dim=0)
    components = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:width].T
    return 0.05 * components / components.std()


def load_teacher() -> tuple[BertForSequenceClassification, BertTokenizerFast]:
    """The fine-tuned MiniLM-L6 and its tokenizer."""
    directory = WEIGHTS / "minilm_l6_sst2"
    teacher = BertForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    return teacher.eval().requires_grad_(False), AutoTokenizer.from_pretrained(directory)


@torch.no_grad()
def ask_teacher(texts: list[str]) -> dict[str, Tensor]:
    """The teacher's logits [texts, 2] and states [texts, 768]: that of the class token and the mean of all tokens."""
    teacher, tokenizer = load_teacher()
    logits, states = torch.empty(len(texts), 2), torch.empty(len(texts), 768, dtype=torch.float16)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        inputs = tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
        hidden = teacher.bert(**inputs)
        mask = inputs["attention_mask"][..., None]
        mean = (hidden.last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
        logits[rows] = teacher.classifier(hidden.pooler_output)
        states[rows] = torch.cat([hidden.last_hidden_state[:, 0], mean], dim=1).half()
    return {"logits": logits, "states": states}


def prepare(cache: Path | None) -> Lesson:
    """Texts, labels and the teacher's answers, which are kept in the file `cache` between runs if one is given."""
    texts, labels = read_sst2("train")
    extra = read_imdb()
    answers = load_file(cache) if cache and cache.exists() else ask_teacher(texts + extra)
    if cache:
        save_file(answers, cache)
    labels = torch.cat([labels, torch.full((len(extra),), UNLABELLED)])
    return Lesson(texts + extra, labels, **answers)


def batches(lengths: list[int], rng: random.Random) -> Iterator[list[int]]:
    """Random batches of indices; the texts of a batch have similar lengths [texts]."""
    order = rng.sample(range(len(lengths)), len(lengths))
    span = 40 * BATCH
    groups = [sorted(order[i : i + span], key=lengths.__getitem__) for i in range(0, len(order), span)]
    chunks = [group[i : i + BATCH] for group in groups for i in range(0, len(group), BATCH)]
    rng.shuffle(chunks)
    yield from chunks


def blank(ids: Tensor, tokenizer: BertTokenizerFast) -> Tensor:
    """Replace some words in ids [texts, tokens] by [MASK], rarely by [UNK]: 0 to 20 % of those of each text."""
    words = ids > max(tokenizer.all_special_ids)
    chance = torch.rand(ids.shape) / (0.2 * torch.rand(len(ids), 1))
    unknown = torch.rand(ids.shape) < 0.1
    blanks = torch.where(unknown, tokenizer.unk_token_id, tokenizer.mask_token_id)
    return torch.where(words & (chance < 1), blanks, ids)


def loss_of(
    student: BertForSequenceClassification,
    projection: nn.Linear,
    inputs: Mapping[str, Tensor],
    lesson: Lesson,
    rows: list[int],
) -> Tensor:
    """Distance of the student to the teacher in soft labels and states, plus cross-entropy of the known labels."""
    hidden = student.bert(**inputs)
    logits = student.classifier(student.dropout(hidden.pooler_output))
    soft = functional.kl_div(
        (logits / TEMPERATURE).log_softmax(dim=1),
        (lesson.logits[rows] / TEMPERATURE).softmax(dim=1),
        reduction="batchmean",
    )
    labels = lesson.labels[rows]
    hard = functional.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum") / len(rows)
    mask = inputs["attention_mask"][..., None]
    mean = (hidden.last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
    states = projection(torch.cat([hidden.last_hidden_state[:, 0], mean], dim=1))
    return TEMPERATURE**2 * soft + 0.3 * hard + functional.mse_loss(states, lesson.states[rows].float())


def encode(lesson: Lesson, tokenizer: BertTokenizerFast, rng: random.Random) -> list[list[int]]:
    """Token ids of all texts, half of the phrases of SST-2 in ordinary spelling."""
    texts = [
        vary(text, rng) if label != UNLABELLED and rng.random() < 0.5 else text
        for text, label in zip(lesson.texts, lesson.labels.tolist(), strict=True)
    ]
    return tokenizer(texts, truncation=True, return_attention_mask=False, return_token_type_ids=False)["input_ids"]


def train(
    student: BertForSequenceClassification, tokenizer: BertTokenizerFast, lesson: Lesson, epochs: int
) -> BertForSequenceClassification:
    """Distil for some epochs and return the moving average of the student."""
    rng = random.Random(0)
    projection = nn.Linear(2 * student.config.hidden_size, lesson.states.shape[1])
    average = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    parameters = [*student.parameters(), *projection.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)
    steps = epochs * (len(lesson.texts) // BATCH + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.06, cycle_momentum=False)
    held_out = read_sst2("heldout_from_train")
    start = time.time()
    for epoch in range(epochs):
        student.train()
        ids = encode(lesson, tokenizer, rng)
        for rows in batches([len(row) for row in ids], rng):
            inputs = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            inputs["input_ids"] = blank(inputs["input_ids"], tokenizer)
            loss = loss_of(student, projection, inputs, lesson, rows)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(student)
        share = accuracy(average.module, tokenizer, *held_out)
        print(f"{time.time() - start:5.0f} s  epoch {epoch}  loss {loss:.4f}  held out {share:.2%}", flush=True)
    return average.module


@torch.no_grad()
def accuracy(
    model: BertForSequenceClassification, tokenizer: BertTokenizerFast, texts: list[str], labels: Tensor
) -> float:
    """The share of texts whose highest logit is their label; labels int64 [texts]."""
    model.eval()
    found = torch.empty_like(labels)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        inputs = tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
        found[rows] = model(**inputs).logits.argmax(dim=1)
    return (found == labels).float().mean().item()


def main() -> None:
    """Train, validate on held-out phrases, and export in half precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=MODELS / "sentiment")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cache", type=Path, help="a safetensors file that keeps the teacher's answers between runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lesson = prepare(arguments.cache)
    phrases = read_sst2("train")[0]
    tokenizer = build_tokenizer([*phrases, *map(respell, phrases)])
    tokenizer.save_pretrained(arguments.output)
    student = train(build_student(tokenizer), tokenizer, lesson, arguments.epochs)
    student.half().save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
