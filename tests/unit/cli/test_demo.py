"""The models that come with the package, and the report that is made with them."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
from PIL import Image

import whence
from tests.support.goldens import shared
from whence.cli.demo import METHODS, write_report
from whence.models import MODELS

PICTURES = sorted((MODELS / "digits" / "examples").glob("*.png"))


@pytest.fixture(scope="module")
def sentiment():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")


@pytest.fixture(scope="module")
def digits():
    return whence.Explainer.from_pretrained(MODELS / "digits")


def test_the_report_is_one_page_with_methods_and_classes_side_by_side(tmp_path):
    path = write_report(tmp_path / "new" / "report.html")
    html = path.read_text(encoding="utf-8")
    assert path.is_absolute()
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert html.count("<section") == 4 + 1 + 3  # sentences, two classes of the first, pictures
    for said in (*METHODS, "why positive?", "why negative?", "Where the relevance went"):
        assert said.split("?")[0] in html
    assert "http://" not in html
    assert "https://" not in html


def test_the_models_are_small_and_safe():
    files = [p for p in MODELS.rglob("*") if p.is_file() and p.parent != MODELS and p.suffix != ".pyc"]
    assert sum(p.stat().st_size for p in files) < 6e6
    assert {p.suffix for p in files} <= {".json", ".safetensors", ".md", ".txt", ".png"}
    for name, source in (("sentiment", "Socher et al. 2013"), ("digits", "CC BY-SA 3.0")):
        card = (MODELS / name / "README.md").read_text()
        assert source in card
        assert "| accuracy |" in card


@pytest.mark.parametrize("method", ["transformer-attribution", "generic-attention", "conservative-lrp"])
def test_two_classes_of_one_picture_light_up_two_digits(digits, method):
    """Where the maps of two classes differ most lie two different digits, in at least five of the six pictures."""
    right = 0
    for picture in PICTURES:
        names = [int(d) for d in picture.stem.split("-")]
        first, second = digits.compare(picture, [method], names)
        assert set(first.logits[0].topk(2).indices.tolist()) == set(names)
        difference = (first.normalised("max").heatmap() - second.normalised("max").heatmap())[0].numpy()
        ink = islands(np.asarray(Image.open(picture).convert("L")) > 60)
        assert difference.shape == ink.shape
        places = [np.unravel_index(at, ink.shape) for at in (difference.argmax(), difference.argmin())]
        found = [set(np.unique(ink[max(y - 4, 0) : y + 5, max(x - 4, 0) : x + 5])) - {0} for y, x in places]
        right += len(found[0]) == 1 and len(found[1]) == 1 and found[0] != found[1]
    assert len(PICTURES) == 6
    assert right >= 5


def islands(ink: np.ndarray) -> np.ndarray:
    """Two digits: the ink on each side of the widest gap, by columns or by rows."""
    best = (0, 0, 0)
    for axis in (0, 1):
        empty = ~ink.any(1 - axis)
        inked = np.flatnonzero(~empty)
        gaps = [(b - a, axis, (a + b) // 2) for a, b in itertools.pairwise(inked)]
        best = max([best, *gaps])
    _, axis, cut = best
    side = np.arange(ink.shape[axis]) > cut
    return ink * (1 + (side[:, None] if axis == 0 else side[None, :]))


def test_every_example_is_explained_by_its_own_words(sentiment):
    texts = (MODELS / "sentiment" / "examples.txt").read_text(encoding="utf-8").splitlines()
    assert len(texts) == 12
    for text, e in zip(texts, sentiment(texts), strict=True):
        assert "".join(p.text for p in e.origins[0]["text"].pieces(e.scores[0].tolist())) == text


@pytest.fixture
def training():
    """The modules that trained the models."""
    shared("data", "mnist")
    return lambda name: importlib.import_module(f"tools.training.{name}")


def test_the_classifier_is_right_on_82_of_100_sentences_of_sst2(sentiment, training):
    lessons = training("sentiment")
    texts, labels = lessons.read_sst2("dev")
    assert len(texts) == 872
    assert lessons.accuracy(sentiment.model, sentiment.processor, texts, labels) >= 0.82


def test_the_reader_of_digits_is_right_on_97_of_100_scenes(training):
    """On the first of the scenes on which the card's accuracy was measured; `make test-slow` measures all."""
    scenes = training("digits").scenes_for_test(1000)
    logits = training("accuracy").read_scenes(MODELS / "digits", scenes)
    top = np.sort(np.argsort(logits, 1)[:, -2:], 1)
    assert (top == np.sort(scenes.labels, 1)).all(1).mean() >= 0.965  # two of a thousand scenes' worth of chance below


@pytest.mark.slow
def test_the_cards_say_what_is_measured(training):
    measured = training("accuracy")
    for name, measure in [("sentiment", measured.measure_sentiment), ("digits", measured.measure_digits)]:
        card = (MODELS / name / "README.md").read_text()
        for value in measure(MODELS / name).values():
            assert f"{100 * value:.1f} %" in card


@pytest.mark.parametrize("method", ["transformer-attribution", "generic-attention", "conservative-lrp"])
def test_a_class_is_found_in_the_box_of_its_digit(digits, training, method):
    """Scenes with known boxes, a tenth of the canvas each: where two classes differ most is the right one."""
    scenes = training("digits").scenes_for_test(40)
    pictures = [np.repeat(image[..., None], 3, -1) for image in scenes.images]
    hits = []
    for side in (0, 1):
        asked, other = (digits(pictures, method, scenes.labels[:, k].tolist()) for k in (side, 1 - side))
        for e, o, box in zip(asked, other, scenes.boxes[:, side], strict=True):
            at = int((e.normalised("max").heatmap() - o.normalised("max").heatmap()).argmax())
            y, x = divmod(at, 64)
            hits.append(box[0] - 2 <= y < box[2] + 2 and box[1] - 2 <= x < box[3] + 2)
    assert np.mean(hits) >= 0.85
