"""The page: nothing in it acts, everything in it can be read."""

from __future__ import annotations

import re
import struct
import sys
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cards import (
    HOSTILE,
    card,
    every_card,
    image_panel,
    series_panel,
    sound_panel,
    tensor_panel,
    text_card,
    text_panel,
    view,
)
from tests.support.html import Element, read
from whence.render.html.image import heat_png, photo, shrink
from whence.render.html.markup import plain, tag, visible
from whence.render.html.page import fragment, page
from whence.render.html.shade import LEVELS, number
from whence.render.palette import AGAINST, FOR, OPAQUE, luminance
from whence.render.phrases import percent
from whence.render.view_model import Card, Panel, View
from whence.results.input_origin import Span, TextOrigin


def hostile_cards() -> list[Card]:
    """Hostile text in every place that takes a text."""
    texts = text_panel(HOSTILE)
    picture = image_panel()
    sound = sound_panel()
    series = series_panel()
    panels = [
        replace(texts, stream=HOSTILE, tokens=tuple(HOSTILE + t for t in texts.tokens)),
        replace(picture, origin=replace(picture.origin, name=HOSTILE)),
        replace(sound, origin=replace(sound.origin, name=HOSTILE)),
        replace(series, origin=replace(series.origin, channels=(HOSTILE, HOSTILE))),
        replace(tensor_panel(), tokens=(HOSTILE,) * 12, stream=HOSTILE),
    ]
    bad = replace(view(*panels), method=HOSTILE, options=HOSTILE, target=HOSTILE, prediction=HOSTILE, notes=(HOSTILE,))
    return [Card(f"title {HOSTILE}", (replace(bad, absorbed=((HOSTILE, 0.1),)), bad))] * 6


def lines(signed: bool = True) -> View:
    """A view of four words whose scores are known."""
    text = "one two three four"
    scores = np.array([0.5, 0.1, -0.25 if signed else 0.25, 1.0, 0.0, -0.5 if signed else 0.5])
    spans = (None, Span(0, 3), Span(4, 7), Span(8, 13), Span(14, 18), None)
    origin = TextOrigin((text,), ("[CLS]", "one", "two", "three", "four", "[SEP]"), spans)
    special = np.array([True, False, False, False, False, True])
    panel = Panel("text", scores, special, origin, tuple(origin.pieces(scores.tolist())), origin.tokens)
    return view(panel)


@pytest.mark.parametrize("show", [lambda c: page(c, HOSTILE, [HOSTILE]), fragment], ids=["page", "fragment"])
def test_hostile_text_is_only_text_wherever_it_stands(show):
    tree = read(show(hostile_cards()))
    assert {e.name for e in tree.all()} & {"img", "iframe", "object", "embed", "link", "base", "form"} == set()
    assert [e for e in tree.all() if any(a.startswith("on") for a in e.attributes)] == []
    assert [e for e in tree.all() if e.text() == 'alert("x")'] == []
    shown = tree.seen()
    assert HOSTILE not in shown  # its NUL and its override are named, not obeyed
    assert shown.count(visible_plainly(HOSTILE)) >= 6 * 2 * 6  # cards, views, places in each
    assert not set(show(hostile_cards())) & set("\x00\u202e\u202c")


def visible_plainly(text: str) -> str:
    return read(visible(text)).seen()


def test_every_place_of_a_card_shows_its_hostile_text():
    tree = read(page(hostile_cards(), HOSTILE, [HOSTILE]))
    said = visible_plainly(HOSTILE)
    first = tree.all(classed="whence-card")[0]
    assert tree.all("h1")[0].seen() == said
    assert tree.all("title")[0].seen() == plain(HOSTILE)
    assert tree.all("header")[0].all("p")[0].seen() == said
    assert first.all("h2")[0].seen() == f"title {said}"
    assert first.all("h3")[0].seen() == said
    assert first.all(classed="whence-why")[0].seen() == f"why {said}? (93\u00a0%)"
    assert first.all(classed="whence-answer")[0].seen() == f"The model says: {said} (93\u00a0%)"
    assert first.all(classed="whence-remark")[0].seen() == said
    assert sum(said in c.seen() for c in first.all(classed="whence-caption")) == 2 * 4  # views; streams and files
    assert [c.all("bdi")[0].seen() for c in first.all(classed="whence-channel")] == [said] * 4
    assert said in first.all(classed="whence-books")[0].seen()


def test_the_page_refers_to_nothing_outside():
    html = page([*every_card(), *every_card()], intro=["Some words."])
    tree = read(html)
    assert re.findall(r"https?:|//\w+\.", "".join(html.split("base64,")[::2])) == []
    targets = [e.attributes[a] for e in tree.all() for a in ("src", "href", "xlink:href") if a in e.attributes]
    assert targets
    assert {t.split(":")[0] if t[0] != "#" else "#" for t in targets} == {"data", "#"}
    ids = {e.attributes["id"] for e in tree.all() if "id" in e.attributes}
    assert {t[1:] for t in targets if t[0] == "#"} <= ids
    assert re.findall(r"url\(|@import|@font-face", tree.all("style")[0].seen()) == []


def test_the_policy_allows_only_the_pages_own_style_and_script():
    tree = read(page(every_card()))
    policy = next(m.attributes["content"] for m in tree.all("meta") if "http-equiv" in m.attributes)
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        [element] = tree.all(name)
        assert f"{name}-src 'sha256-{b64encode(sha256(element.seen().encode()).digest()).decode()}';" in policy
    assert [e for e in tree.all() if "style" in e.attributes] == []  # the policy would drop it


def test_headings_are_in_order_and_the_page_has_its_landmarks():
    tree = read(page(every_card()))
    levels = [int(e.name[1]) for e in tree.all() if re.fullmatch("h[1-6]", e.name)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert tree.all("html")[0].attributes["lang"] == "en"
    assert len(tree.all("main")) == len(tree.all("nav")) == 1


def test_contents_only_where_there_are_many_cards():
    assert read(page(every_card()[:5])).all("nav") == []
    entries = read(page(every_card()[:6])).all("nav")[0].all("a")
    assert [e.attributes["href"] for e in entries] == [f"#card-{i}" for i in range(1, 7)]


characters = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(st.lists(characters, min_size=1, max_size=2))
def test_words_and_gaps_are_the_users_text(texts):
    for html in (page([card(view(text_panel(*texts)))]), fragment([card(view(text_panel(*texts)))])):
        html.encode()  # can be written
        paragraphs = read(html).all(classed="whence-text")[0].all("p")
        shown = [p.text() for p in paragraphs if not p.all(classed="whence-muted")]
        assert shown == [t.replace("\r\n", "\n") for t in texts if t]


@given(characters)
def test_no_hidden_character_reaches_the_page(text):
    assert (
        re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", visible(text) + plain(text))
        is None
    )


def test_attributes_are_escaped_and_left_out_when_false():
    made = tag("p", "<", tag("b", "&"), class_='"><script>', hidden=True, title=None, lang=False)
    assert made == '<p class="&quot;&gt;&lt;script&gt;" hidden>&lt;<b>&amp;</b></p>'


def contrast(a, b) -> float:
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


def colour(text: str) -> tuple[int, int, int]:
    digits = text if len(text) == 6 else "".join(2 * c for c in text)
    return tuple(int(digits[i : i + 2], 16) for i in (0, 2, 4))


def modes(style: str, declared: str) -> list[tuple[int, int, int]]:
    """The colours of a declaration: in light, and in dark where it differs."""
    found = re.search(declared + r":\s*light-dark\(#(\w+),\s*#(\w+)\)", style)
    if found:
        return [colour(found[1]), colour(found[2])]
    return [colour(re.search(declared + r":\s*#(\w+)", style)[1])] * 2


def test_every_shade_can_be_read_in_light_and_dark():
    style = read(page([])).all("style")[0].seen()
    rules = dict(re.findall(r"\.whence \.whence-([af]\d+)\{(.*?)\}", style))
    assert len(rules) == 2 * LEVELS
    for rule in rules.values():
        backgrounds, inks = modes(rule, "background-color"), modes(rule, ";color")
        assert min(contrast(b, i) for b, i in zip(backgrounds, inks, strict=True)) >= 4.5
    strongest = [modes(rules[f"{letter}{LEVELS}"], "background-color") for letter in "af"]
    assert strongest[0] != strongest[1]


@pytest.mark.parametrize("ink", ["--whence-ink", "--whence-muted"])
@pytest.mark.parametrize("paper", ["--whence-paper", "--whence-desk", "--whence-soft"])
def test_text_can_be_read_on_every_paper(ink, paper):
    style = read(page([])).all("style")[0].seen()
    pairs = zip(modes(style, ink), modes(style, paper), strict=True)
    assert min(contrast(a, b) for a, b in pairs) >= 4.5


def test_ten_thousand_tokens_by_three_methods_are_a_few_megabytes():
    long = card(*(view(text_panel("A gripping film, " * 2500, seed=i)) for i in range(3)))
    html = page([long])
    assert len(read(html).all(classed="whence-w")) == 30000
    assert len(html.encode()) < 3_500_000


def test_a_long_text_has_a_box_a_map_and_a_way_to_its_strongest_words():
    tree = read(page([card(view(text_panel("A gripping film, " * 300)))]))
    assert len(tree.all(classed="whence-scroll")) == len(tree.all(classed="whence-map")) == 1
    assert [b.attributes["data-jump"] for b in tree.all("button") if "data-jump" in b.attributes] == ["1", "-1"]
    assert read(page([text_card()])).all(classed="whence-scroll") == []


def test_a_fragment_has_no_script_and_nothing_that_could_clash():
    tree = read(fragment(every_card()))
    [root] = [e for e in tree.inside if isinstance(e, Element)]
    assert root.name == "div"
    assert {"script", "button", "input", "h1", "h2", "h3"} & {e.name for e in tree.all()} == set()
    assert [e for e in tree.all() if {"id", "tabindex"} & set(e.attributes)] == []
    classes = {c for e in tree.all() for c in (e.attributes.get("class") or "").split()}
    assert {c for c in classes if not c.startswith("whence-")} == {"whence"}
    style = re.sub(r"/\*.*?\*/", "", root.all("style")[0].seen(), flags=re.S)
    selectors = [s for s in re.findall(r"([^{}]+)\{", style) if not s.strip().startswith("@")]
    assert [s for s in selectors for one in re.split(r",(?![^(]*\))", s) if "whence" not in one] == []


def test_a_fragment_says_scores_by_titles():
    tree = read(fragment([card(lines(), view(image_panel()))]))
    assert [w.attributes["title"] for w in tree.all(classed="whence-w")][:3] == [
        "one: +0.1",
        "two: \u22120.25",
        "three: +1",
    ]
    assert re.fullmatch("row 1, column 1: [+\u2212]0[.][0-9]+", tree.all("title")[0].seen())


def test_words_say_their_score_and_their_tokens():
    text = "unforgettable film"
    origin = TextOrigin((text,), ("un", "##forgettable", "film"), (Span(0, 2), Span(2, 13), Span(14, 18)))
    scores = np.array([0.123456, 0.5, -1.0])
    panel = Panel("text", scores, np.zeros(3, bool), origin, tuple(origin.pieces(scores.tolist())), origin.tokens)
    first, second = read(page([card(view(panel))])).all(classed="whence-w")
    assert first.attributes["data-s"] == "+0.6235"
    assert first.attributes["data-more"] == "tokens: un · ##forgettable"
    assert first.attributes["tabindex"] == "0"  # one tab stop for all words
    assert second.attributes == {"class": f"whence-w whence-a{LEVELS}", "data-s": "-1"}


def test_numbers_are_said_with_four_digits_and_a_true_minus():
    assert [number(v) for v in (0.64, -0.123456, 0.0, -0.0, 12345.6)] == [
        "+0.64",
        "\u22120.1235",
        "0",
        "0",
        "+1.235e+04",
    ]
    assert [percent(v) for v in (0.07, 0.934, 0.004, 0.9991, 1e-9, 0.99999, 0.0, 1.0)] == [
        "7\u00a0%", "93\u00a0%", "0.4\u00a0%", "99.9\u00a0%", "<0.1\u00a0%", ">99.9\u00a0%", "0\u00a0%", "100\u00a0%",
    ]  # fmt: skip


def test_blue_is_explained_only_where_something_is_negative():
    signed, unsigned = (read(page([card(v)])).all(classed="whence-legend")[0].seen() for v in (lines(), lines(False)))
    assert "blue against it" in signed
    assert "blue" not in unsigned
    assert "against" not in unsigned


def test_special_tokens_are_summed_apart():
    caption = read(page([card(replace(lines(), notes=()))])).all(classed="whence-caption")[0].seen()
    assert caption == "special tokens: 0"  # 0.5 of [CLS] and -0.5 of [SEP]
    unsigned = read(page([card(lines(False))])).all(classed="whence-caption")[0].seen()
    assert unsigned == "special tokens: +1"


def test_the_table_names_the_strongest_first():
    table = read(page([card(lines())])).all(classed="whence-table")[0]
    rows = [[cell.seen() for cell in row.inside] for row in table.all("tr")]
    assert rows == [["three", "+1"], ["two", "\u22120.25"], ["one", "+0.1"], ["four", "0"]]


def test_the_ledger_is_said_in_a_sentence_and_drawn_from_the_target_to_the_input():
    tree = read(page([card(lines())]))
    assert (
        "70\u00a0% of the target's value reached the input; the largest share was taken by bias classifier (5\u00a0%)."
        in tree.seen()
    )
    rows = [[cell.seen() for cell in row.inside] for row in tree.all(classed="whence-ledger")[0].all("tr")]
    assert [(name, share) for name, _, share in rows] == [
        ("target", "100\u00a0%"), ("out of the last block", "95\u00a0%"), ("into block 2", "90\u00a0%"),
        ("into block 1", "80\u00a0%"), ("into block 0", "70\u00a0%"),
    ]  # fmt: skip
    created = replace(lines(), absorbed=(("gelu", -0.3),))
    assert "the largest share was added by gelu (30\u00a0%)" in read(page([card(created)])).seen()
    assert read(page([card(view(tensor_panel(), ledger=False))])).all(classed="whence-ledger") == []


def test_notes_of_all_views_are_said_once():
    a, b = replace(lines(), notes=("shared", "own")), replace(lines(), notes=("shared",))
    assert [n.seen() for n in read(page([card(a, b)])).all(classed="whence-remark")] == ["own", "shared"]


def test_what_was_not_read_is_grey_and_says_so():
    text = "read this, not that at all"
    origin = TextOrigin((text,), ("read", "this"), (Span(0, 4), Span(5, 9)), (Span(10, len(text)),))
    scores = np.array([0.5, -0.5])
    panel = Panel("text", scores, np.zeros(2, bool), origin, tuple(origin.pieces([0.5, -0.5])), origin.tokens)
    for html in (page([card(view(panel))]), fragment([card(view(panel))])):
        tree = read(html)
        [grey] = tree.all(classed="whence-unread")
        assert grey.text() == " not that at all"
        assert "Grey text was not read by the model." in tree.seen()


def test_a_pair_is_two_paragraphs_each_with_its_own_direction():
    paragraphs = read(page([card(view(text_panel("Is it good?", "שלום")))])).all(classed="whence-text")[0].all("p")
    assert [p.seen() for p in paragraphs] == ["Is it good?", "שלום"]
    assert [p.attributes["dir"] for p in paragraphs] == ["ltr", "rtl"]


def png(address: str) -> tuple[dict[bytes, bytes], np.ndarray]:
    """Chunks and pixels of a PNG without filters."""
    data = b64decode(address.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        at += 12 + length
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return chunks, lines[:, 1:].reshape(height, width, -1) if kind == 2 else lines[:, 1:]


def test_the_overlay_has_the_colours_of_the_palette():
    chunks, indices = png(heat_png(np.array([[2.0, 1.0], [0.0, -2.0]]), 2.0))
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    opacity = np.frombuffer(chunks[b"tRNS"], np.uint8)[indices]
    assert palette[indices[0, 0]].tolist() == palette[indices[0, 1]].tolist() == list(FOR)
    assert palette[indices[1, 1]].tolist() == list(AGAINST)
    assert opacity.tolist() == [[round(255 * OPAQUE), pytest.approx(255 * OPAQUE / 2, abs=1)], [0, round(255 * OPAQUE)]]
    assert not np.frombuffer(png(heat_png(np.zeros((2, 2)), 0.0))[0][b"tRNS"], np.uint8)[127].any()


def test_pictures_without_pillow_are_png(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.float32)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert np.array_equal(png(photo(pixels))[1], pixels)


def test_large_pictures_are_shrunk_by_means():
    big = np.random.default_rng(0).uniform(size=(3000, 1700, 3))
    small = shrink(big, 1024)
    assert small.shape == (1024, 580, 3)
    assert small.mean() == pytest.approx(big.mean(), abs=1e-3)
    assert shrink(np.array([[0, 2, 4, 6]]), 2).tolist() == [[1, 5]]
    assert np.array_equal(shrink(big[:10], 2000), big[:10].astype(np.float32))


def test_a_page_holds_a_picture_once_however_many_explain_it():
    tree = read(page([card(view(image_panel()), view(image_panel()), view(image_panel()))]))
    assert len(tree.all(classed="whence-photo")) == 1
    assert len(tree.all("use")) == 2
    assert len(tree.all(classed="whence-heat")) == 3


def test_patches_lie_where_they_are_in_the_picture_and_those_beside_it_are_left_out():
    panel = image_panel(height=60, width=90)
    letterboxed = replace(panel.origin, scale=(64 / 90, 64 / 90), shift=(64 / 6, 0.0))
    tree = read(page([card(view(replace(panel, origin=letterboxed)))]))
    drawing = tree.all(classed="whence-picture")[0]
    assert drawing.attributes["viewbox"] == "0 0 90 60"
    boxes = [[int(r.attributes[k]) for k in ("x", "y", "width", "height")] for r in drawing.all("rect")]
    assert len(boxes) == 16
    assert sum(w * h for _, _, w, h in boxes) == 90 * 60
    above = replace(panel.origin, shift=(16.0, 0.0))  # the first row of patches is above the picture
    drawing = read(page([card(view(replace(panel, origin=above)))])).all(classed="whence-picture")[0]
    assert drawing.all("rect")[0].attributes["data-label"] == "row 2, column 1"


def test_a_picture_without_a_heat_map_gets_one_from_its_patches():
    overlay = read(page([card(view(replace(image_panel(), heat=None)))])).all(classed="whence-heat")[0]
    assert png(overlay.attributes["href"])[1].shape == (4, 4)


def test_sound_says_when():
    items = read(page([card(view(sound_panel()))])).all(classed="whence-item")
    assert len(items) == 49
    assert items[0].attributes["data-label"] == "0.00\u20130.02 s"
    assert items[-1].attributes["data-label"] == "0.98\u20131.00 s"


def test_what_was_not_heard_is_said():
    panel = sound_panel()
    tree = read(page([card(view(replace(panel, origin=replace(panel.origin, heard=0.5))))]))
    assert "After 0.50 s: not heard by the model." in tree.seen()
    last = tree.all(classed="whence-item")[-1].attributes
    assert float(last["x"]) + float(last["width"]) == pytest.approx(500, abs=0.1)


def test_a_spectrogram_is_a_grid_below_the_wave():
    panel = replace(sound_panel(), grid=(4, 10), patches=np.arange(40.0).reshape(4, 10))
    items = read(page([card(view(panel))])).all(classed="whence-item")
    assert items[11].attributes["data-label"] == "0.10\u20130.20 s, row 2"
    assert items[11].attributes["data-s"] == "+11"


def test_a_series_has_a_line_per_channel_and_a_band_per_step():
    panel = series_panel()
    tree = read(page([card(view(panel))]))
    assert len(tree.all(classed="whence-line")) == 2
    items = tree.all(classed="whence-item")
    assert len(items) == 96
    assert items[48].attributes["data-label"] == "oil, step 0"  # channel by channel, so that arrows walk in time
    assert float(items[48].attributes["data-s"]) == pytest.approx(panel.patches[0, 1], rel=1e-3)


def test_missing_values_break_the_line():
    panel = series_panel()
    values = panel.origin.values.copy()
    values[10] = np.nan
    lines = read(page([card(view(replace(panel, origin=replace(panel.origin, values=values))))])).all(
        classed="whence-line"
    )
    assert [line.attributes["d"].count("M") for line in lines] == [2, 2]
    assert "nan" not in lines[0].attributes["d"]


def test_patches_without_a_picture_are_drawn_alone():
    panel = Panel("image", np.arange(6.0), np.zeros(6, bool), grid=(2, 3), patches=np.arange(6.0).reshape(2, 3))
    items = read(page([card(view(panel))])).all(classed="whence-item")
    assert [i.attributes["data-label"] for i in items][-1] == "row 2, column 3"


def test_many_positions_are_drawn_together_without_losing_any():
    scores = np.random.default_rng(0).normal(size=1001)
    items = read(page([card(view(Panel("input", scores, np.zeros(1001, bool))))])).all(classed="whence-item")
    assert len(items) == 334
    assert sum(float(i.attributes["data-s"]) for i in items) == pytest.approx(scores.sum(), abs=0.01)
    assert items[-1].attributes["data-label"] == "position 999 to position 1000"


@pytest.mark.parametrize("show", [page, fragment])
def test_nothing_at_all_can_be_shown(show):
    zero = Panel("text", np.zeros(0), np.zeros(0, bool), TextOrigin(("",), (), ()))
    empty = View("m", "", "t", "", None, None, 0.0, (zero,), 0.0, False)
    tree = read(show([Card("", ()), Card("", (empty,))]))
    assert len(tree.all(classed="whence-card")) == 2
    assert tree.all(classed="whence-answer") == []
    assert "why t?" in tree.seen()
