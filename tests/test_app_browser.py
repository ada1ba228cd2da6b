"""The web page in a real browser: asked, pointed at, changed, cancelled, kept; alone and by many at once."""

from __future__ import annotations

import io
import json
import re
import tempfile
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_browser import PHONE
from test_check import WORDS
from test_modalities import clip, vilt
from transformers import DetrConfig, DetrForObjectDetection, LlamaConfig, LlamaForCausalLM, ResNetConfig
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

import whence
from whence.app.desk import Desk
from whence.app.limits import Limits
from whence.app.log import Log
from whence.app.shelf import Shelf
from whence.demo import MODELS

gradio = pytest.importorskip("gradio", reason="gradio is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")

HOSTILE = '<img src=x onerror="boom()"> {{value}} ${boom()} {{#each x}} </div> a fine film'
DIGIT = sorted((MODELS / "digits" / "examples").glob("*.png"))[0]


class Server:
    """The application on a free port of this machine."""

    def __init__(self, shelf, auth=None, limits=None, places=1):
        from whence.app.serve import application

        self.log = io.StringIO()
        self.folder = tempfile.TemporaryDirectory()
        self.desk = Desk(shelf, limits, Log(self.log), places)
        app = application(self.desk, self.folder.name, auth)
        config = uvicorn.Config(app, port=0, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=30) as response:
            return response.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        self.folder.cleanup()


@pytest.fixture(scope="module")
def server():
    started = Server(Shelf.shipped(), limits=Limits(characters=2000, pixels=1_000_000))
    yield started
    started.stop()


class Visit:
    """A page, and all that it did unasked."""

    def __init__(self, browser, address, expected=(), **options):
        self.unasked: list[str] = []
        self.expected = expected
        self.address = address.split("#")[0].split("?")[0]
        self.page = browser.new_context(accept_downloads=True, **options).new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda e: self.unasked.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.unasked.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", self._requested)
        self.page.goto(address)
        self.page.wait_for_selector("#whence-explain")

    def _console(self, message):
        known = ("Method not implemented.", *self.expected)  # Gradio's own, of a picture that is uploaded
        if message.type in ("error", "warning") and not any(e in message.text for e in known):
            self.unasked.append(f"{message.type}: {message.text}")

    def _requested(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.unasked.append(f"request: {request.url}")

    def explain(self):
        self.begin()
        self.done()

    def begin(self):
        """Press the button; the browser counts how often work has ended."""
        self.page.evaluate(
            """() => {
              window.ended = 0;
              let busy = false;
              new MutationObserver(() => {
                const now = !!document.querySelector("#whence-cancel");
                if (busy && !now) window.ended += 1;
                busy = now;
              }).observe(document.body, { childList: true, subtree: true });
            }"""
        )
        self.page.click("#whence-explain")

    def done(self):
        self.page.wait_for_function("window.ended > 0")
        self.page.wait_for_selector("#whence-explain", state="visible")

    def choose(self, what, *options):
        for option in options:
            box = self.page.locator(f"#{what} input")
            box.click()
            box.fill(option)
            self.page.locator(f"#{what} [role=option]", has_text=option).first.click()
        self.page.keyboard.press("Escape")

    def tab(self, name):
        self.page.get_by_role("tab", name=name).click()

    def text(self, what):
        return self.page.locator(f"#{what}").inner_text()


@pytest.fixture
def visit(browser, server):
    visits = []

    def go(address=None, **options):
        visits.append(Visit(browser, address or server.address, **options))
        return visits[-1]

    yield go
    for one in visits:
        assert one.unasked == []
        one.page.context.close()


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
    seen.tab("Layers and heads")
    seen.page.wait_for_selector("#whence-layered >> text=Entering layer 0")
    assert seen.page.locator("#whence-heads rect").count() > 4
    slider = seen.page.locator("#whence-layer input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    slider.dispatch_event("pointerup")
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
    seen.tab("What would change it?")
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
    seen.tab("Keep and share")
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
    seen.tab("Keep and share")
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
        seen.tab("Keep and share")
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
    seen.tab("What would change it?")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_violation_of_accessibility(visit, server, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    seen = visit(f"{server.address}/?__theme={scheme}", color_scheme=scheme)
    seen.explain()
    for name in ("Layers and heads", "What would change it?", "Keep and share", "Can I trust it?"):
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


@contextmanager
def serving(**models):
    server = Server(Shelf.of(models))
    try:
        yield server
    finally:
        server.stop()


def writer():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=64, initializer_range=0.3, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return whence.Explainer(LlamaForCausalLM(config).eval(), WORDS)


def finder():
    """A detector that finds the same class wherever it looks."""
    torch.manual_seed(0)
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        backbone_config=backbone, num_queries=3, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, encoder_attention_heads=2, decoder_attention_heads=2, d_model=16, num_labels=3,
        id2label={0: "cat", 1: "dog", 2: "cow"},
    )  # fmt: skip
    model = DetrForObjectDetection(config).eval()
    with torch.no_grad():
        model.class_labels_classifier.bias[1] = 10.0
    return whence.Explainer(model, DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64}))


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
        seen.tab("Keep and share")
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
        assert seen.page.locator("#whence-shown .whence-picture").count() == 1


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


# -- programs --------------------------------------------------------------------------------------------------------


def test_programs_ask_by_one_request(server, tmp_path):
    asked = ["A superb film.", "", "gradient-x-input", "positive", "", ""]
    (found,) = server.post("/api/explain", {"data": asked})["data"]
    expected = whence.Explainer.from_pretrained(MODELS / "sentiment")("A superb film.", "gradient-x-input", "positive")
    (tmp_path / "found.json").write_text(json.dumps(found))
    e = whence.load(tmp_path / "found.json")
    torch.testing.assert_close(e.scores, expected.scores, rtol=1e-4, atol=1e-6)
    assert (e.method, e.target_names) == ("gradient-x-input", ("positive",))
    image = b64encode(DIGIT.read_bytes()).decode()
    (found,) = server.post("/api/explain", {"data": ["", "digits", "conservative-lrp", "", image, ""]})["data"]
    assert found["explanations"][0]["prediction_names"]
    (found,) = server.post("/api/explain", {"data": ["A film.", "", "nothing", "", "", ""]})["data"]
    assert found == {"error": "There is no method 'nothing'."}


def test_ten_people_at_once(server, tmp_path):
    from gradio_client import Client

    client = Client(server.address, verbose=False)
    texts = [f"{word} film, take {i}." for i in range(10) for word in ("A superb", "A dreadful")]
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda text: client.predict(text=text, api_name="/explain"), texts))
    for i, (text, one) in enumerate(zip(texts, found, strict=True)):
        (tmp_path / f"{i}.json").write_text(json.dumps(one))
        e = whence.load(tmp_path / f"{i}.json")
        assert e.origins[0]["text"].texts == (text,)
        assert e.prediction_names == ("positive" if "superb" in text else "negative",)
    health = json.loads(server.get("/health"))
    assert (health["serving"], health["waiting"]) == (0, 0)
    assert health["kept_bytes"] <= server.desk.kept.most


def test_the_password_is_asked_for():
    server = Server(Shelf.load([str(MODELS / "sentiment")]), auth=("ann", "s3cret"))
    try:
        assert json.loads(server.get("/health"))["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post("/api/explain", {"data": ["A film.", "", "conservative-lrp", "", "", ""]})
        assert refused.value.code == 401
        login = urllib.request.Request(server.address + "/login", b"username=ann&password=wrong")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(login)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(urllib.request.Request(server.address + "/login", b"username=ann&password=s3cret"))
        body = json.dumps({"data": ["A film.", "", "conservative-lrp", "", "", ""]}).encode()
        asked = urllib.request.Request(server.address + "/api/explain", body, {"Content-Type": "application/json"})
        assert "explanations" in json.loads(opener.open(asked).read())["data"][0]
    finally:
        server.stop()


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ"])
def test_no_file_of_the_machine_is_served(server, path):
    for way in (f"/gradio_api/file={path}", f"/file={path}", f"/gradio_api/file=../..{path}", f"/static/../../{path}"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.get(way)
        assert refused.value.code in (403, 404)
    mine = Path(whence.__file__).as_posix()
    with pytest.raises(urllib.error.HTTPError):
        server.get(f"/gradio_api/file={mine}")


def test_the_browser_is_told_to_stay_here(server):
    with urllib.request.urlopen(server.address) as response:
        policy = response.headers["Content-Security-Policy"]
        page = response.read().decode()
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "fonts.googleapis" not in page
