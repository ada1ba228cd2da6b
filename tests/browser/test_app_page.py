"""The web page in a real browser: asked, pointed at, changed, cancelled, kept; alone and by many at once."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from PIL import Image

import whence
from tests.support.modalities import clip, vilt
from tests.support.visits import DIGIT, PHONE, Server, finder, serving, visiting, writer
from whence.app.limits import Limits
from whence.app.model_registry import ModelRegistry

HOSTILE = '<img src=x onerror="boom()"> {{value}} ${boom()} {{#each x}} </div> a fine film'


@pytest.fixture(scope="module")
def server():
    started = Server(ModelRegistry.shipped(), limits=Limits(characters=2000, pixels=1_000_000))
    yield started
    started.stop()


@pytest.fixture
def visit(browser, server):
    with visiting(browser, server.address) as go:
        yield go


# -- texts -----------------------------------------------------------------------------------------------------------


def test_a_sentence_is_explained_and_pointed_at(visit):
    seen = visit()
    seen.page.fill("#whence-text textarea", "A superb and gripping film.")
    seen.explain()
    assert "positive" in seen.text("whence-answer")
    words = seen.page.locator("#whence-shown .whence-w")
    assert words.all_inner_texts() == ["A", "superb", "and", "gripping", "film", "."]
    words.nth(1).hover()
    tip = seen.page.locator("#whence-tip")
    assert tip.is_visible()
    assert re.match(r"superb [+\u2212]\d", tip.inner_text())
    assert "drew on" in tip.inner_text()
    assert seen.page.locator("#whence-shown .whence-source").count() > 0
    assert "value" in seen.text("whence-ledger")
    assert "handed back" in seen.text("whence-words")


def test_methods_and_answers_stand_side_by_side(visit):
    seen = visit()
    seen.choose("whence-methods", "generic-attention")
    seen.choose("whence-target", "positive")
    seen.choose("whence-rival", "negative")
    seen.explain()
    views = seen.page.locator("#whence-shown .whence-view")
    told = [views.nth(i).get_attribute("aria-label") for i in range(views.count())]
    methods = ("conservative-lrp", "generic-attention")
    assert told == [f"{m}: why {t}?" for m in methods for t in ("positive", "negative")]
    seen.choose("whence-which", "generic-attention: why negative?")
    seen.page.wait_for_function("document.querySelector('#whence-ledger').innerText.includes('keeps no books')")


def test_layers_are_walked_with_a_slider(visit):
    seen = visit()
    seen.explain()
    seen.tab("Layers")
    seen.page.wait_for_selector("#whence-layered >> text=Entering layer 0")
    assert seen.page.locator("#whence-heads rect").count() > 4
    slider = seen.page.locator("#whence-layer input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    seen.page.wait_for_selector("#whence-layered >> text=Entering layer 1")


def test_the_text_is_changed_and_the_answer_follows(visit):
    seen = visit()
    seen.page.fill("#whence-text textarea", "A superb film.")
    seen.explain()
    assert "The model says positive" in seen.text("whence-answer")
    seen.page.locator("#whence-text textarea").press_sequentially(" But dreadful, dreadful and dull.", delay=5)
    seen.page.wait_for_selector("#whence-answer >> text=The model says negative")
    seen.page.wait_for_selector("#whence-answer .whence-was >> text=was")


def test_the_smallest_change_is_found_and_taken(visit):
    seen = visit()
    seen.page.fill("#whence-text textarea", "A superb film, if a little slow.")
    seen.explain()
    seen.tab("What if?")
    seen.page.click("#whence-flip")
    seen.page.wait_for_selector("#whence-flipped del")
    before = seen.text("whence-answer")
    seen.page.click("#whence-use")
    seen.page.wait_for_function("b => document.querySelector('#whence-answer').innerText !== b", arg=before)
    assert "superb" not in seen.page.input_value("#whence-text textarea")


def test_an_explanation_is_tried_against_random_orders(visit):
    seen = visit()
    seen.explain()
    seen.page.click("#whence-attempt")
    seen.page.wait_for_selector("#whence-trial svg")
    assert "random orders" in seen.text("whence-trial")


def test_what_is_kept_opens_again(visit, tmp_path):
    seen = visit()
    seen.page.fill("#whence-text textarea", "A superb film.")
    seen.explain()
    seen.tab("Save")
    for ending in ("html", "png", "json"):
        with seen.page.expect_download() as download:
            seen.page.click(f"#whence-save-{ending}")
        download.value.save_as(tmp_path / f"kept.{ending}")
    assert whence.load(tmp_path / "kept.json").words[0][1].text == "superb"
    assert (tmp_path / "kept.png").read_bytes()[:4] == b"\x89PNG"
    again = seen.page.context.new_page()
    again.goto((tmp_path / "kept.html").as_uri())
    assert again.locator(".whence-w").nth(1).inner_text() == "superb"
    assert "from_pretrained" in seen.page.input_value("#whence-code textarea")


def test_a_link_restores_what_was_asked(visit):
    seen = visit()
    seen.page.fill("#whence-text textarea", "An odd, slow film.")
    seen.choose("whence-methods", "rollout")
    seen.choose("whence-target", "negative")
    seen.explain()
    seen.page.wait_for_function("location.hash.length > 5")
    seen.tab("Save")
    link = seen.page.input_value("#whence-link textarea, #whence-link input")
    other = visit(link)
    other.page.wait_for_function("document.querySelector('#whence-text textarea').value === 'An odd, slow film.'")
    other.explain()
    labels = other.page.locator("#whence-shown .whence-view").evaluate_all("all => all.map(v => v.ariaLabel)")
    assert labels == ["conservative-lrp: why negative?", "rollout: why negative?"]
    damaged = visit(link[:-5])
    damaged.page.wait_for_selector("#whence-status >> text=The link is damaged")


# -- pictures --------------------------------------------------------------------------------------------------------


def test_a_picture_is_given_and_its_patches_pointed_at(visit):
    seen = visit()
    seen.choose("whence-model", "digits")
    seen.page.wait_for_selector("#whence-image")
    seen.page.set_input_files("#whence-image input[type=file]", DIGIT)
    seen.page.wait_for_selector("#whence-image img")
    seen.explain()
    patches = seen.page.locator("#whence-shown .whence-item")
    assert patches.count() > 10
    patches.nth(7).hover(force=True)
    assert re.match(r"row \d, column \d", seen.page.locator("#whence-tip").inner_text())
    with seen.page.expect_download() as download:
        seen.tab("Save")
        seen.page.click("#whence-save-html")
    assert "data:image/" in Path(download.value.path()).read_text()


def test_examples_are_a_click_away(visit):
    seen = visit()
    chips = seen.page.locator("#whence-examples button")
    chips.nth(1).click()
    chosen = chips.nth(1).get_attribute("title")
    seen.page.wait_for_function("t => document.querySelector('#whence-text textarea').value === t", arg=chosen)
    seen.choose("whence-model", "digits")
    seen.page.wait_for_selector("#whence-examples img")
    seen.page.locator("#whence-examples button").nth(1).click()
    seen.page.wait_for_selector("#whence-image img")
    seen.explain()
    seen.page.wait_for_function("location.hash.length > 5")  # an example picture is in the link
    assert seen.page.locator("#whence-shown .whence-item").count() > 10


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_problems_are_sentences(visit, tmp_path):
    seen = visit(expected=["Failed to load resource", "422", "400", "413"])
    page = seen.page
    page.fill("#whence-text textarea", "   ")
    seen.explain()
    page.wait_for_selector("#whence-status >> text=Write a text first")
    page.fill("#whence-text textarea", "x" * 2001)
    seen.explain()
    page.wait_for_selector("#whence-status >> text=2,001 characters")
    page.fill("#whence-text textarea", "A film.")
    seen.choose("whence-methods", "dave")
    seen.explain()
    page.wait_for_selector("#whence-shown .whence-problem >> text=dave")
    assert page.locator("#whence-shown .whence-view").count() == 1
    seen.choose("whence-model", "digits")
    page.wait_for_selector("#whence-image img")
    page.get_by_label("Remove Image").or_(page.get_by_label("Clear")).first.click()
    seen.explain()
    page.wait_for_selector("#whence-status >> text=Give a picture first")
    Image.new("RGB", (1001, 1000)).save(tmp_path / "large.png")
    page.set_input_files("#whence-image input[type=file]", tmp_path / "large.png")
    page.wait_for_selector("#whence-image img")
    seen.explain()
    page.wait_for_selector("#whence-status >> text=1,001 x 1,000 pixels")


def test_what_is_written_is_shown_and_does_nothing(visit):
    seen = visit()
    seen.page.fill("#whence-text textarea", HOSTILE)
    seen.explain()
    shown = seen.page.locator("#whence-shown .whence-text").inner_text()
    assert " ".join(shown.split()) == " ".join(HOSTILE.split())
    assert seen.page.locator("#whence-shown img").count() == 0
    seen.tab("What if?")
    seen.page.click("#whence-flip")
    seen.page.wait_for_selector("#whence-flipped .whence-card")


def test_a_slow_one_says_how_far_it_is_and_is_cancelled(visit, server):
    seen = visit()
    seen.page.fill("#whence-text textarea", "A film. " * 40)
    seen.choose("whence-methods", "kernel-shap", "lime")
    seen.begin()
    seen.page.wait_for_selector("#whence-status >> text=passes of the model")
    assert json.loads(server.get("/health"))["serving"] == 1  # and it answers meanwhile
    words = seen.page.locator("#whence-shown .whence-w")
    words.nth(4).hover()  # scrolls, which hides a tip
    words.nth(6).hover()
    seen.page.wait_for_selector("#whence-tip", state="visible")
    seen.page.click("#whence-cancel")
    seen.page.wait_for_selector("#whence-status >> text=Cancelled")
    seen.done()
    while json.loads(server.get("/health"))["serving"]:
        time.sleep(0.05)


# -- how it looks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "size"), [("light", {}), ("dark", {}), ("light", PHONE), ("dark", PHONE)])
def test_no_serious_violation_of_accessibility(visit, server, scheme, size):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    seen = visit(f"{server.address}/?__theme={scheme}", color_scheme=scheme, **size)
    seen.explain()
    for name in ("Layers", "What if?", "Save", "Trust it?"):
        seen.tab(name)
        found = axe.Axe().run(seen.page).response["violations"]
        serious = [
            (v["id"], n["target"], n["failureSummary"])
            for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"]
        ]  # fmt: skip
        assert serious == []


def test_it_fits_a_phone(visit):
    seen = visit(**PHONE)
    seen.page.fill("#whence-text textarea", "A superb film.")
    seen.explain()
    assert seen.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    seen.page.locator("#whence-shown .whence-w").nth(1).tap()
    assert "superb" in seen.page.locator("#whence-tip").inner_text()


def test_the_keyboard_is_enough(visit):
    seen = visit()
    seen.page.focus("#whence-explain")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("#whence-shown .whence-w")
    seen.page.wait_for_selector("#whence-more")
    seen.page.locator('#whence-shown .whence-w[tabindex="0"]').focus()
    seen.page.keyboard.press("ArrowRight")
    assert seen.page.evaluate("document.activeElement.className.includes('whence-w')")
    assert seen.page.locator("#whence-voice").text_content()


# -- other models ----------------------------------------------------------------------------------------------------


def test_a_language_model_tells_what_each_token_came_from(visit):
    with serving(writer=writer()) as server:
        seen = visit(server.address)
        seen.page.fill("#whence-text textarea", "the good film")
        seen.explain()
        tokens = seen.page.locator("#whence-choice button")
        assert tokens.count() > 1
        first = seen.text("whence-shown")
        tokens.nth(1).click()
        seen.page.wait_for_selector('#whence-choice button[aria-pressed="true"][data-ask="1"]')
        assert seen.text("whence-shown") != first
        seen.tab("Save")
        with seen.page.expect_download() as download:
            seen.page.click("#whence-save-html")
        assert "Each row is a token" in Path(download.value.path()).read_text()


def test_a_detector_shows_what_each_object_rests_on(visit):
    with serving(finder=finder()) as server:
        seen = visit(server.address)
        seen.page.set_input_files("#whence-image input[type=file]", DIGIT)
        seen.page.wait_for_selector("#whence-image img")
        seen.choose("whence-methods", "generic-attention")
        seen.explain()
        objects = seen.page.locator("#whence-choice button")
        assert objects.count() == 3
        assert "dog" in objects.nth(0).inner_text()
        objects.nth(2).click()
        seen.page.wait_for_selector('#whence-choice button[aria-pressed="true"][data-ask="2"]')
        assert seen.page.locator("#whence-choice rect.whence-chosen").count() == 1
        assert seen.page.locator("#whence-shown .whence-picture").count() == 2  # by two methods


@pytest.mark.parametrize("make", [clip, vilt])
def test_a_word_points_into_the_picture(visit, make):
    with serving(pair=make()) as server:
        seen = visit(server.address)
        seen.page.fill("#whence-text textarea", "a good film")
        seen.page.set_input_files("#whence-image input[type=file]", DIGIT)
        seen.page.wait_for_selector("#whence-image img")
        seen.explain()
        words = seen.page.locator("#whence-choice button")
        assert words.all_inner_texts() == ["a", "good", "film"]
        words.nth(1).click()
        seen.page.wait_for_selector("#whence-shown >> text=The word 'good'")
