"""The web page in a browser: links that restore all of it, work that is ended, keys alone, hostile names."""

from __future__ import annotations

import json
import threading
import time

import pytest
from PIL import Image

import whence
from tests.support.modalities import clip
from tests.support.visits import DIGIT, Server, finder, serving, visiting, writer
from whence.app.limits import Limits
from whence.app.model_registry import ModelRegistry
from whence.app.query import Query
from whence.models import MODELS

HOSTILE = "<img src=x onerror=boom()>"


@pytest.fixture(scope="module")
def server():
    started = Server(ModelRegistry.shipped(), limits=Limits(upload=300_000))
    yield started
    started.stop()


@pytest.fixture
def visit(browser, server):
    with visiting(browser, server.address) as go:
        yield go


# -- links -----------------------------------------------------------------------------------------------------------


def linked(seen):
    """The link, when it says which one was chosen."""
    seen.page.wait_for_function("location.hash.length > 5")
    return seen.page.evaluate("location.href")


def pressed(seen, number):
    seen.page.wait_for_selector(f'#whence-choice button[aria-pressed="true"][data-ask="{number}"]')


def test_a_link_shows_the_token_that_was_chosen(visit):
    with serving(writer=writer()) as server:
        seen = visit(server.address)
        seen.page.fill("#whence-text textarea", "the good film")
        seen.explain()
        seen.page.locator("#whence-choice button").nth(2).click()
        pressed(seen, 2)
        seen.page.wait_for_function("atob(location.hash.slice(5)).includes('chosen')")
        shown = seen.text("whence-shown")
        other = visit(linked(seen))
        pressed(other, 2)  # nothing was pressed for it
        assert other.text("whence-shown") == shown
        assert other.page.input_value("#whence-text textarea") == "the good film"


@pytest.mark.parametrize("kind", ["finder", "clip"])
def test_a_link_shows_the_object_or_word_once_the_picture_is_given_again(visit, kind):
    with serving(**{kind: finder() if kind == "finder" else clip()}) as server:
        seen = visit(server.address)
        give(seen)
        if kind == "clip":
            seen.page.fill("#whence-text textarea", "a good film")
        seen.explain()
        seen.page.locator("#whence-choice button").nth(2).click()
        pressed(seen, 2)
        seen.page.wait_for_function("atob(location.hash.slice(5)).includes('chosen')")
        shown = seen.text("whence-shown")
        other = visit(linked(seen))
        other.page.wait_for_selector("#whence-status >> text=No link holds an uploaded picture")
        give(other)
        other.explain()
        pressed(other, 2)
        assert other.text("whence-shown") == shown


def give(seen, path=DIGIT):
    seen.page.set_input_files("#whence-image input[type=file]", path)
    seen.page.wait_for_selector("#whence-image img")


def test_a_link_with_an_example_is_answered_at_once(visit, server):
    seen = visit(f"{server.address}/#{Query('digits', picture=DIGIT.name).to_link()}")
    seen.page.wait_for_selector("#whence-answer >> text=The model says")
    assert seen.page.locator("#whence-shown .whence-item").count() > 10


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (Query("nobody", "A film."), "There is no model 'nobody'"),
        (Query("sentiment", "A film.", methods=("magic",)), "a method that is not here: magic"),
    ],
)
def test_a_link_that_cannot_be_answered_says_why(visit, server, query, said):
    seen = visit(f"{server.address}/#{query.to_link()}")
    seen.page.wait_for_selector(f"#whence-status >> text={said}")
    seen.explain()  # and the page goes on
    assert "The model says" in seen.text("whence-answer")


# -- work that is ended ----------------------------------------------------------------------------------------------


class Endless:
    """A task that goes on until it is cancelled."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, visitor, query, task, *_):
        task.begin("going on")
        try:
            while True:
                self.begun.set()
                task.passes += 1
                task.check()
                time.sleep(0.01)
        finally:
            self.ended.set()


@pytest.mark.parametrize(
    ("name", "tab", "button", "where"),
    [("compare_with_random", "Trust it?", "attempt", "trial"), ("find_counterfactual", "What if?", "flip", "flipped")],
)
def test_what_is_asked_of_an_answer_is_cancelled_where_it_began(visit, server, monkeypatch, name, tab, button, where):
    seen, endless = visit(), Endless()
    seen.explain()
    monkeypatch.setattr(server.service, name, endless)
    seen.tab(tab)
    seen.page.focus(f"#whence-{button}")
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector(f"#whence-{where} >> text=passes of the model")
    assert seen.page.evaluate("document.activeElement.id") == f"whence-{button}-cancel"
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector(f"#whence-{where} >> text=Cancelled")
    assert endless.ended.wait(5)
    seen.page.wait_for_function(f"document.activeElement.id === 'whence-{button}'")


def test_the_work_of_one_who_leaves_ends(visit, server, monkeypatch):
    seen, endless = visit(), Endless()
    monkeypatch.setattr(server.service, "answer", endless)
    seen.begin()
    assert endless.begun.wait(10)
    seen.page.close()
    assert endless.ended.wait(20)


def test_ten_pages_at_once_show_their_own(visit, server):
    texts = [f"{word} film, take {i}." for i in range(5) for word in ("A superb", "A dreadful")]
    pages = [visit() for _ in texts]
    for seen, text in zip(pages, texts, strict=True):
        seen.page.fill("#whence-text textarea", text)
    for seen in pages:
        seen.begin()
    for seen, text in zip(pages, texts, strict=True):
        seen.done()
        words = seen.page.locator("#whence-shown .whence-w").all_inner_texts()
        assert "".join(words) == text.replace(" ", "")
        assert ("positive" if "superb" in text else "negative") in seen.text("whence-answer").splitlines()[0]
    health = json.loads(server.get("/health"))
    assert (health["serving"], health["waiting"]) == (0, 0)


# -- keys ------------------------------------------------------------------------------------------------------------


def reach(seen, selector, key="Tab", most=40):
    """Press a key until the focus is there."""
    for _ in range(most):
        if seen.page.evaluate("s => !!document.activeElement?.closest(s)", selector):
            return
        seen.page.keyboard.press(key)
    raise AssertionError(f"{selector} is not reached by {key}.")


def test_the_whole_way_is_gone_by_keys(visit):
    seen = visit()
    page = seen.page
    reach(seen, "#whence-text textarea")
    page.keyboard.press("Control+A")
    page.keyboard.type("A superb film, if a little slow.")
    reach(seen, "#whence-explain")
    page.keyboard.press("Enter")
    page.wait_for_selector("#whence-shown .whence-w")
    page.wait_for_function("document.activeElement.id === 'whence-explain'")  # it was away while the work went on
    page.wait_for_function("document.querySelector('#whence-voice').textContent.startsWith('The model says ')")
    reach(seen, "#whence-examples button")
    reach(seen, "#whence-shown .whence-w")
    page.keyboard.press("ArrowRight")
    assert page.locator("#whence-voice").text_content().startswith("superb, ")
    reach(seen, "[role=tab]")
    page.get_by_role("tab", name="Layers").focus()
    page.keyboard.press("Enter")
    reach(seen, "#whence-layer input[type=range]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#whence-layered >> text=Entering layer 1")
    page.get_by_role("tab", name="What if?").focus()
    page.keyboard.press("Enter")
    reach(seen, "#whence-flip")
    page.keyboard.press("Enter")
    page.wait_for_selector("#whence-flipped del")
    before = seen.text("whence-answer")
    reach(seen, "#whence-use")
    page.keyboard.press("Enter")
    page.wait_for_function("b => document.querySelector('#whence-answer').innerText !== b", arg=before)


def test_the_focus_stays_on_the_token_that_was_chosen(visit):
    with serving(writer=writer()) as server:
        seen = visit(server.address)
        seen.page.fill("#whence-text textarea", "the good film")
        seen.explain()
        seen.page.locator("#whence-choice button").nth(1).focus()
        seen.page.keyboard.press("Enter")
        pressed(seen, 1)
        seen.page.wait_for_function("document.activeElement.dataset.ask === '1'")


# -- files and names -------------------------------------------------------------------------------------------------


def test_files_that_are_no_pictures_are_refused_with_a_sentence(visit, tmp_path):
    (tmp_path / "none.png").write_bytes(b"no picture")
    (tmp_path / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>boom()</script></svg>")
    whole = DIGIT.read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "notes.txt").write_text("hello")
    Image.effect_noise((700, 700), 90).save(tmp_path / "heavy.png")
    sentences = {
        "none.png": "The file is no picture that can be read", "page.svg": "The file is no picture that can be read",
        "cut.png": "The picture is damaged",
    }  # fmt: skip
    refusals = {
        "notes.txt": "'notes.txt' is no picture",
        "heavy.png": "'heavy.png' is too large: 300,000 bytes at most",
    }
    seen = visit(expected=["Failed to load resource"])  # the browser cannot show them either
    seen.choose("whence-model", "digits")
    seen.page.wait_for_selector("#whence-image img")
    for name, said in (sentences | refusals).items():
        clear = seen.page.get_by_label("Remove Image").or_(seen.page.get_by_label("Clear"))
        if clear.count():
            clear.first.click()
        seen.page.set_input_files("#whence-image input[type=file]", tmp_path / name)
        if name in refusals:
            seen.page.wait_for_selector(f'#whence-refused:has-text("{said}")')
            continue
        seen.page.wait_for_selector("#whence-image img")
        seen.explain()
        seen.page.wait_for_selector(f"#whence-status >> text={said}")
        assert seen.page.locator("#whence-refused").count() == 0
        assert str(tmp_path) not in seen.text("whence-status")
    clear = seen.page.get_by_label("Remove Image").or_(seen.page.get_by_label("Clear"))
    if clear.count():
        clear.first.click()
    give(seen)
    assert seen.page.locator("#whence-refused").count() == 0
    seen.explain()
    assert "The model says" in seen.text("whence-answer")


def test_names_do_nothing(visit, tmp_path):
    """Of files, of models and of classes."""
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    names = [f"{HOSTILE} {i}" for i in range(10)]
    hostile = whence.Explainer(explainer.model, explainer.processor, labels=names)
    (tmp_path / f"{HOSTILE}.png").write_bytes(DIGIT.read_bytes())
    with serving(**{HOSTILE: hostile, "other": hostile}) as server:
        seen = visit(server.address)
        give(seen, tmp_path / f"{HOSTILE}.png")
        seen.explain()
        assert HOSTILE in seen.text("whence-answer")
        assert seen.page.locator("#whence-result img[src=x]").count() == 0
        seen.tab("Save")
        with seen.page.expect_download() as download:
            seen.page.click("#whence-save-html")
        download.value.save_as(tmp_path / "kept.html")
        assert HOSTILE not in (tmp_path / "kept.html").read_text()
        seen.page.locator("#whence-model input").click()
        assert HOSTILE in seen.page.locator("#whence-model [role=option]").first.inner_text()
        seen.page.keyboard.press("Escape")


def test_several_methods_explain_an_object_and_a_token(visit):
    with serving(writer=writer()) as server:
        seen = visit(server.address)
        seen.choose("whence-methods", "generic-attention", "dave")
        seen.page.fill("#whence-text textarea", "the good film")
        seen.explain()
        labels = seen.page.locator("#whence-shown .whence-view").evaluate_all("all => all.map(v => v.ariaLabel)")
        assert [label.split(":")[0] for label in labels] == ["conservative-lrp", "generic-attention"]
        assert "dave" in seen.page.locator("#whence-shown .whence-problem").inner_text()
        seen.tab("Save")
        with seen.page.expect_download() as download:
            seen.page.click("#whence-save-json")
        assert len(json.loads(download.value.path().read_text())["explanations"]) == 2
