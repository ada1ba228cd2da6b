"""Cards of every kind of input, made by hand, for the tests of the renderers."""

from __future__ import annotations

import numpy as np

from whence.render.view_model import Card, Panel, View
from whence.results.input_origin import AudioOrigin, ImageOrigin, Origin, SeriesOrigin, Span, TextOrigin
from whence.results.word_segmentation import words

HOSTILE = '<script>alert("x")</script> \u202eevil\u202c a\x00b "quoted" & <img src=x onerror=alert(1)> $\\_{}#%^~'


def text_panel(*texts: str, seed: int = 0, unread: tuple[Span, ...] = ()) -> Panel:
    """Every word is a token; a [CLS] before and a [SEP] after."""
    spans = [Span(start, end, part) for part, text in enumerate(texts) for start, end in words(text)]
    tokens = ["[CLS]", *(texts[s.part][s.start : s.end] for s in spans), "[SEP]"]
    scores = np.random.default_rng(seed).normal(size=len(tokens))
    special = np.array([True, *([False] * len(spans)), True])
    origin = TextOrigin(tuple(texts), tuple(tokens), (None, *spans, None), unread)
    return Panel("text", scores, special, origin, pieces=tuple(origin.pieces(scores.tolist())), tokens=tuple(tokens))


def image_panel(height: int = 60, width: int = 90, grid: tuple[int, int] = (4, 4), seed: int = 0) -> Panel:
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack([255 * rows / height, 255 * columns / width, 0 * rows + 90], -1).astype(np.uint8)
    origin = ImageOrigin(image, (64 / height, 64 / width), (0.0, 0.0), (64, 64), "picture.png")
    patches = rng.normal(size=grid)
    heat = np.kron(patches, np.ones((-(-height // grid[0]), -(-width // grid[1]))))[:height, :width]
    scores = np.concatenate([[0.1], patches.ravel()])
    special = np.array([True, *([False] * patches.size)])
    return Panel("image", scores, special, origin, heat=heat, grid=grid, patches=patches)


def sound_panel(seed: int = 0) -> Panel:
    rng = np.random.default_rng(seed)
    wave = (np.sin(np.arange(16000) / 40) * np.hanning(16000)).astype(np.float32)
    return Panel("audio", rng.normal(size=49), np.zeros(49, bool), AudioOrigin(wave, 16000, 1.0, "voice.flac"))


def series_panel(seed: int = 0) -> Panel:
    """Scores of a series are one per time step and channel, time first: position = time * channels + channel."""
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.normal(size=(48, 2)), 0)
    origin = SeriesOrigin(values, ("load", "oil"))
    return Panel(
        "series", rng.normal(size=96), np.zeros(96, bool), origin, grid=(48, 2), patches=rng.normal(size=(48, 2))
    )


def tensor_panel(seed: int = 0) -> Panel:
    return Panel("input", np.random.default_rng(seed).normal(size=12), np.zeros(12, bool))


def view(*panels: Panel, method: str = "conservative-lrp", target: str = "positive", ledger: bool = True) -> View:
    limit = max(float(np.abs(p.scores).max()) for p in panels)
    return View(
        method=method, options="", target=target, prediction="positive", probability=0.93,
        target_probability=0.93 if target == "positive" else 0.07, value=2.1, panels=panels, limit=limit,
        signed=any(bool((p.scores < 0).any()) for p in panels), block_relevance=(0.7, 0.8, 0.9, 0.95) if ledger else (),
        absorbed=(("bias classifier", 0.05), ("gelu encoder.layer.1", -0.02)) if ledger else (),
        notes=("Coverage: 12 of 21 operations have a rule; tanh uses its plain gradient.",),
    )  # fmt: skip


def card(*views: View, title: str = "an input") -> Card:
    return Card(title, views)


def text_card(text: str = "A gripping café film, though far too long 👍.", methods: int = 2) -> Card:
    names = ["conservative-lrp", "transformer-attribution", "generic-attention", "gradient-x-input"]
    return card(*(view(text_panel(text, seed=i), method=names[i % 4]) for i in range(methods)), title=text[:40])


def every_card() -> list[Card]:
    """Text, pair, right to left, hostile, cut off, image, two targets of an image, image and text, ..."""
    long = "word " * 30
    return [
        text_card(),
        card(view(text_panel("Is the film good?", "It is splendid.")), title="a pair"),
        card(view(text_panel("שלום עולם, this is mixed")), title="right to left"),
        card(view(text_panel(HOSTILE)), title=HOSTILE),
        card(view(text_panel(long, unread=(Span(100, len(long), 0),))), title="cut off"),
        card(view(image_panel(seed=1)), view(image_panel(seed=2), target="negative"), title="picture.png"),
        card(view(image_panel(), text_panel("a photo of a cat")), title="a picture and a caption"),
        card(view(sound_panel(), ledger=False), title="voice.flac"),
        card(view(series_panel(), ledger=False), title="a series"),
        card(view(tensor_panel(), ledger=False), title="a tensor"),
    ]


def origins() -> list[Origin]:
    """One origin of every kind."""
    return [o for c in every_card() for v in c.views for p in v.panels if (o := p.origin) is not None]
