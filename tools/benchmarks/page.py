"""The web page: its first and its tenth explanation of a model, in milliseconds, beside the model's own time.

Queries go through the page's service, as those of visitors do. All inputs are different, and of one shape.
"""

from __future__ import annotations

import io
import itertools
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageChops

from tools.benchmarks.job import MODEL
from tools.benchmarks.measure import timed
from tools.benchmarks.measurements import Measurements
from tools.benchmarks.models import plain
from whence.app.cancellable import CancellableTask
from whence.app.log import Log
from whence.app.model_registry import ModelRegistry, ServedModel
from whence.app.query import Query
from whence.app.service import ExplanationService
from whence.models import MODELS

METHODS = ("conservative-lrp", "attn-lrp", "generic-attention")
#: how many explanations are timed in a row, and how often that is done with a model just loaded
QUERIES, STARTS = 20, 3
NOUNS = ("film", "book", "play", "show", "song", "game", "story", "scene")
WORDS = ("great", "dull", "warm", "long", "funny", "weak", "fine", "slow")


def measure(made: Measurements) -> None:
    """Measure what is not there yet."""
    paths = {"sentiment": MODELS / "sentiment", "digits": MODELS / "digits", "minilm_l6_sst2": MODEL}
    for (name, path), method in itertools.product(paths.items(), METHODS):
        if path.exists() and f"{name}/{method}" not in made:
            row = times(path, method)
            made.add(f"{name}/{method}", row)
            line = "  ".join(f"{word} {seconds * 1000:.1f} ms" for word, seconds in row.items())
            print(f"{name:<16}{method:<20}{line}", flush=True)


def times(path: Path, method: str) -> dict[str, float]:
    """Return seconds: of the first explanation, of the tenth and later ones, and of a plain forward and backward."""
    first, later = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(STARTS):
            models = ModelRegistry.load([str(path)])
            service, model = ExplanationService(models, log=Log(io.StringIO())), models.first
            found = [
                timed(lambda query=query, service=service: service.answer("visitor", query, CancellableTask()))
                for query in queries(model, method, Path(folder))
            ]
            service.close()
            first.append(found[0])
            later += found[9:]
        given = next(queries(model, method, Path(folder))).explainer_input(model)
        inputs = model.explainer.read(given).tensors
    run = plain(model.explainer.model.requires_grad_(False), inputs)
    run()
    own = statistics.median(timed(run) for _ in range(QUERIES))
    return {"first": statistics.median(first), "tenth": statistics.median(later), "plain": own}


def queries(model: ServedModel, method: str, folder: Path) -> Iterator[Query]:
    """Yield queries with different inputs of one shape."""
    if model.reads_image:
        image = Image.open(next(iter(model.example_images.values())))
        for i in range(QUERIES):
            path = folder / f"{i}.png"
            ImageChops.offset(image, i % 5, i // 5).save(path)
            yield Query(model.name, upload=str(path), methods=(method,))
        return
    texts = [f"The {noun} is {a}, but the end is {b}." for noun, a, b in itertools.product(NOUNS, WORDS, WORDS)]
    lengths = {text: model.explainer.read(text).tensors["input_ids"].shape[1] for text in texts}
    ((usual, _),) = Counter(lengths.values()).most_common(1)
    chosen = [text for text, length in lengths.items() if length == usual]
    for text in chosen[:QUERIES]:
        yield Query(model.name, text=text, methods=(method,))
