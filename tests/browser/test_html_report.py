"""The page in a real browser: opened from a file, pointed at, tapped, walked by keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.cards import HOSTILE, card, every_card, image_panel, text_card, text_panel, view
from tests.support.visits import PHONE
from whence.render.html.page import fragment, page
from whence.render.html.shade import NIGHT, PAPER, number

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


class Visit:
    """A page opened from a file, and all that it did unasked."""

    def __init__(self, browser, path: Path, html: str, **options) -> None:
        path.write_text(html, encoding="utf-8")
        self.unasked: list[str] = []
        self.page = browser.new_context(**options).new_page()
        self.page.on("console", lambda m: self.unasked.append(f"console: {m.text}"))
        self.page.on("pageerror", lambda e: self.unasked.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.unasked.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", self._requested)
        self.page.goto(path.as_uri())

    def _requested(self, request) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.unasked.append(f"request: {request.url}")

    def tip(self) -> str | None:
        tip = self.page.locator("#whence-tip")
        return tip.inner_text() if tip.is_visible() else None

    def said(self) -> str:
        return self.page.locator("#whence-voice").text_content()

    def css(self, selector: str, name: str) -> str:
        return self.page.locator(selector).first.evaluate(f"e => getComputedStyle(e).getPropertyValue('{name}')")

    def overflow(self) -> int:
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture
def visit(browser, tmp_path) -> Iterator:
    visits: list[Visit] = []

    def go(html: str, **options) -> Visit:
        visits.append(Visit(browser, tmp_path / f"page-{len(visits)}.html", html, **options))
        return visits[-1]

    yield go
    for one in visits:
        assert one.unasked == []
        one.page.context.close()


def scores(panel) -> list[tuple[str, str]]:
    return [(p.text, number(p.score)) for p in panel.pieces if p.score is not None]


def test_pointing_at_a_word_shows_its_score(visit):
    seen = visit(page([text_card(methods=1)]))
    word, score = scores(text_card(methods=1).views[0].panels[0])[1]
    assert seen.tip() is None
    seen.page.locator(".whence-w", has_text=word).hover()
    assert seen.tip().split() == [word, score]
    seen.page.locator("h1").hover()
    assert seen.tip() is None


def test_words_are_walked_by_arrow_keys_from_one_tab_stop(visit):
    shown = text_card(methods=2)
    expected = scores(shown.views[0].panels[0])
    seen = visit(page([shown]))
    assert seen.page.locator(".whence-text [tabindex]").count() == 2  # one for each text
    seen.page.keyboard.press("Tab")
    assert seen.said() == ", ".join(expected[0])
    assert seen.tip().split() == list(expected[0])
    for key, at in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", -1),
        ("ArrowRight", -1),
        ("Home", 0),
    ]:
        seen.page.keyboard.press(key)
        assert seen.said() == ", ".join(expected[at]), key
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.tagName") == "SUMMARY"  # out of the text at once
    seen.page.keyboard.press("Shift+Tab")
    assert seen.said() == ", ".join(expected[1])  # and back to where one was
    seen.page.keyboard.press("Escape")
    assert seen.tip() is None


def test_arrow_keys_follow_the_direction_of_the_text(visit):
    panel = text_panel("שלום עולם טוב")
    expected = scores(panel)
    seen = visit(page([card(view(panel))]))
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.press("ArrowLeft")
    assert seen.said() == ", ".join(expected[1])


def test_patches_are_pointed_at_and_walked_in_both_directions(visit):
    panel = image_panel(height=300, width=400)
    seen = visit(page([card(view(panel))]))
    seen.page.locator(".whence-item").nth(5).hover()
    assert seen.tip().split() == ["row", "2,", "column", "2", number(panel.patches[1, 1])]
    seen.page.locator("[data-fade]").focus()
    seen.page.keyboard.press("Tab")
    for key, row, column in [("ArrowDown", 2, 1), ("ArrowRight", 2, 2), ("ArrowUp", 1, 2), ("ArrowUp", 1, 2)]:
        seen.page.keyboard.press(key)
        assert seen.said() == f"row {row}, column {column}, {number(panel.patches[row - 1, column - 1])}"


def test_the_overlay_fades_by_keyboard(visit):
    seen = visit(page([card(view(image_panel()))]))
    assert seen.css(".whence-heat", "opacity") == "0.85"
    seen.page.locator("[data-fade]").focus()
    seen.page.keyboard.press("ArrowLeft")
    assert seen.css(".whence-heat", "opacity") == "0.84"
    seen.page.keyboard.press("Home")
    assert seen.css(".whence-heat", "opacity") == "0"


def test_picture_and_overlay_are_decoded_and_drawn_for_every_view(visit):
    html = page([card(view(image_panel(300, 450, seed=1)), view(image_panel(300, 450, seed=2)))])
    seen = visit(html)
    boxes = [d.bounding_box() for d in seen.page.locator(".whence-picture").all()]
    assert len(boxes) == 2
    for box in boxes:
        assert box["width"] / box["height"] == pytest.approx(1.5, rel=0.01)
    second = seen.page.locator(".whence-picture").nth(1)
    before = second.screenshot()
    seen.page.locator(".whence-photo").evaluate("e => e.removeAttribute('href')")
    assert second.screenshot() != before  # it shows the picture that the first one holds
    broken = (
        "async s => { try { const i = new Image(); i.src = s; await i.decode(); return false } catch { return true } }"
    )
    for address in re.findall(r'href="(data:[^"]+)"', html):
        assert not seen.page.evaluate(broken, address)


def test_a_tap_on_a_phone_shows_the_score_and_a_tap_beside_hides_it(visit):
    seen = visit(page([text_card(methods=1)]), **PHONE)
    word, score = scores(text_card(methods=1).views[0].panels[0])[3]
    seen.page.locator(".whence-w").nth(3).tap()
    assert seen.tip().split() == [word, score]
    box = seen.page.locator("#whence-tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    seen.page.locator("h1").tap()
    assert seen.tip() is None


@pytest.mark.parametrize("show", [page, fragment])
def test_nothing_is_wider_than_a_phone(visit, show):
    wide = card(view(text_panel("x" * 3000), method="m" * 200, target="t" * 200), title="w" * 300)
    long = card(view(text_panel("A gripping film, " * 300)))
    html = show([*every_card(), wide, long])
    html = (
        html
        if show is page
        else f'<!DOCTYPE html><meta name="viewport" content="width=device-width"><meta charset="utf-8">{html}'
    )
    seen = visit(html, **PHONE)
    for summary in seen.page.locator("summary").all():
        summary.click()
    assert seen.overflow() <= 0


def test_hostile_text_is_shown_and_does_nothing(visit):
    bad = card(view(text_panel(HOSTILE), image_panel(), method=HOSTILE, target=HOSTILE), title=HOSTILE)
    seen = visit(page([bad] * 6, HOSTILE, [HOSTILE]))
    for word in seen.page.locator(".whence-text").first.locator(".whence-w").all():
        word.hover()
        assert seen.tip()
    shown = seen.page.locator(".whence-text").first.text_content()
    assert shown == HOSTILE.replace("\x00", "U+0000").replace("\u202e", "U+202E").replace("\u202c", "U+202C")
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator("img").count() == 0


def test_the_policy_stops_what_escaping_would_have_missed(visit):
    html = page([text_card()]).replace(
        "<main>", "<main><img src=x: onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    )
    seen = visit(html)
    assert seen.page.title() == "Where it came from"
    assert any("Content Security Policy" in said for said in seen.unasked)
    seen.unasked.clear()


def test_selected_text_is_the_users_text(visit):
    text = "A gripping café film,\nthough far too long."
    seen = visit(page([card(view(text_panel(text)))]))
    selected = seen.page.evaluate(
        "(getSelection().selectAllChildren(document.querySelector('.whence-text p')), getSelection().toString())"
    )
    assert selected == text


@pytest.mark.parametrize(("scheme", "paper"), [("light", PAPER), ("dark", NIGHT)])
def test_the_page_follows_the_system_into_the_dark(visit, scheme, paper):
    seen = visit(page(every_card()), color_scheme=scheme)
    assert seen.css(".whence-card", "background-color") == f"rgb{paper}"
    dark = sum(map(int, re.findall(r"\d+", seen.css("body", "background-color")))) < 3 * 64
    assert dark == (scheme == "dark")


def test_a_fragment_follows_the_notebook_and_not_the_system(visit):
    html = f'<!DOCTYPE html><meta charset="utf-8">{fragment([text_card()])}'
    assert visit(html, color_scheme="dark").css(".whence-notebook", "background-color") == f"rgb{PAPER}"
    night = html.replace('<div class="whence ', '<div data-jp-theme-light="false"><div class="whence ', 1)
    assert visit(night, color_scheme="light").css(".whence-notebook", "background-color") == f"rgb{NIGHT}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_as_the_browser_paints_them(visit, scheme):
    seen = visit(page(every_card()), color_scheme=scheme)
    pairs = seen.page.evaluate(
        """() => [...document.querySelectorAll('.whence-w')].map(w => {
            const own = getComputedStyle(w), card = getComputedStyle(w.closest('.whence-card'));
            const clear = own.backgroundColor === 'rgba(0, 0, 0, 0)';
            return [own.color, clear ? card.backgroundColor : own.backgroundColor];
        })"""
    )
    assert len(pairs) > 50
    assert min(contrast(*(channels(c) for c in pair)) for pair in pairs) >= 4.5


def channels(said: str) -> np.ndarray:
    return np.array([int(c) for c in re.findall(r"\d+", said)[:3]]) / 255


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    linear = [
        np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722) for c in (a, b)
    ]
    return (max(linear) + 0.05) / (min(linear) + 0.05)


def test_print_keeps_the_colours_and_the_whole_text(visit):
    seen = visit(page([card(view(text_panel("A gripping film, " * 300)))]), color_scheme="dark")
    seen.page.emulate_media(media="print")
    assert seen.css(".whence-w", "print-color-adjust") == "exact"
    assert seen.css(".whence-card", "background-color") == f"rgb{PAPER}"
    assert seen.css(".whence-scroll", "max-height") == "none"
    assert not seen.page.locator(".whence-tools").is_visible()


def test_ten_thousand_tokens_by_three_methods_can_be_explored(visit):
    panels = [text_panel("A gripping film, " * 2500, seed=i) for i in range(3)]
    seen = visit(page([card(*(view(p) for p in panels))]))
    seen.page.locator(".whence-w").nth(20).hover()
    assert seen.tip().split() == list(scores(panels[0])[20])
    ranked = sorted(panels[1].pieces, key=lambda p: -abs(p.score or 0))
    tools = seen.page.locator(".whence-tools").nth(1)
    tools.locator("[data-jump='1']").focus()
    for rank in (0, 1):
        seen.page.keyboard.press("Enter")
        assert seen.tip().split() == [ranked[rank].text, number(ranked[rank].score)]
        assert f"{rank + 1} of 10,000" in tools.inner_text()
    found = seen.page.locator(".whence-found")
    assert found.count() == 1
    inside, box = found.bounding_box(), seen.page.locator(".whence-scroll").nth(1).bounding_box()
    assert box["y"] <= inside["y"] <= box["y"] + box["height"]
    tools.locator("[data-jump='-1']").click()
    assert seen.tip().split() == [ranked[0].text, number(ranked[0].score)]


def test_a_long_text_is_unfolded_and_its_map_leads_to_a_place(visit):
    seen = visit(page([card(view(text_panel("A gripping film, " * 300)))]), reduced_motion="reduce")
    box = seen.page.locator(".whence-scroll")
    size = seen.page.locator(".whence-map").bounding_box()
    seen.page.mouse.click(size["x"] + size["width"] / 2, size["y"] + size["height"] / 2)
    assert box.evaluate("e => (e.scrollTop + e.clientHeight / 2) / e.scrollHeight") == pytest.approx(0.5, abs=0.02)
    assert box.evaluate("e => e.scrollHeight > e.clientHeight")
    seen.page.locator("[data-unfold]").click()
    assert box.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    assert seen.page.locator("[data-unfold]").get_attribute("aria-expanded") == "true"
