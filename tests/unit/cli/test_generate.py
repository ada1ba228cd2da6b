"""`whence generate` with images and audio."""

import json

import pytest

from tests.support.command_line import command_refused, run
from tests.support.vision_language import llava, photo

PROMPT = "what digit is on the left?"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "llava"
    network, processor = llava()
    network.float().save_pretrained(directory)
    processor.save_pretrained(directory)
    return str(directory)


@pytest.fixture
def image(tmp_path):
    photo().save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


def test_generated_words_are_explained_by_the_patches_of_an_image(model, image):
    printed = run("generate", PROMPT, "--image", image, "--model", model, "--tokens", "3", "--json").stdout
    found = json.loads(printed)
    assert len(found["explanations"]) == 3
    assert all({"image", "text"} <= set(dict(one["streams"]["map"])) for one in found["explanations"])


def test_a_page_shows_the_image(model, image, tmp_path):
    run("generate", PROMPT, "--image", image, "--model", model, "--tokens", "2", "--out", str(tmp_path / "why.html"))
    assert "data:image/" in (tmp_path / "why.html").read_text()


@pytest.mark.parametrize("words", [[], [PROMPT, "--audio", "speech.flac"]])
def test_a_prompt_or_audio_is_required(words, model):
    command_refused(2, "Give a prompt", "generate", *words, "--model", model)
