"""Runs over datasets, and their rows."""

from __future__ import annotations

import random

import whence
from whence.jobs.output_dir import tables
from whence.models import MODELS

SENTIMENT, DIGITS = MODELS / "sentiment", MODELS / "digits"


WORDS = [
    "a",
    "gripping",
    "film",
    "that",
    "is",
    "far",
    "too",
    "long",
    "and",
    "yet",
    "never",
    "dull",
    "with",
    "wonderful",
    "people",
    "in",
    "a",
    "sad",
    "old",
    "house",
]


def texts(count, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 14))) for _ in range(count)]


def rows(directory):
    return [row for table in tables(directory) for row in table.to_pylist()]


def run(dataset, model, out, **more):
    return whence.run(dataset, model, out=out, shard_size=8, batch_size=4, **more)
