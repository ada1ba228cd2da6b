"""Figures show the user's text and picture, the right colours, and leave matplotlib as they found it."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support import cards
from tests.support.goldens import ROOT
from whence.errors import InputError, WhenceError
from whence.render.line_layout import Fragment, fragments, leftward, lines, visual_order
from whence.render.palette import AGAINST, FOR, OPAQUE, blend
from whence.render.phrases import visible
from whence.render.view_model import Card, Panel
from whence.results.input_origin import AudioOrigin, ImageOrigin, Span, TextOrigin
from whence.results.word_segmentation import Piece

matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib")

from matplotlib.collections import PathCollection  # noqa: E402  # after the check that it is there

from whence.render.figure.figure import draw, figure  # noqa: E402
from whence.render.figure.fonts import Fonts  # noqa: E402
from whence.render.figure.plots import tint  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def scored(*pairs: tuple[str, float | None], unread: tuple[Span, ...] = ()) -> Panel:
    """A text of given pieces and scores."""
    pieces, at = [], 0
    for text, score in pairs:
        pieces.append(Piece(text, score, at, at + len(text), 0, ()))
        at += len(text)
    origin = TextOrigin(("".join(t for t, _ in pairs),), (), (), unread)
    return Panel("text", np.array([s or 0.0 for _, s in pairs]), np.zeros(len(pairs), bool), origin, tuple(pieces))


def texts(svg: bytes) -> list[tuple[str, str]]:
    """Every text of an SVG, and its style."""
    return [(e.text or "", e.get("style", "")) for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def colours(panel: Panel, **changes: object) -> dict[tuple[int, ...], int]:
    """The colours behind the words of a figure."""
    fig = figure([Card("t", (replace(cards.view(panel), **changes),))])
    faces = [f for c in fig.artists if isinstance(c, PathCollection) for f in c.get_facecolor()]
    found = [tuple(round(255 * v) for v in f[:3]) for f in faces]
    return {c: found.count(c) for c in found}


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_every_card_is_drawn_without_a_warning(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = draw(cards.every_card(), kind)
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])


def test_the_same_cards_give_the_same_bytes() -> None:
    some = [cards.every_card()[k] for k in (0, 5, 7)]
    first = [draw(some, kind) for kind in ("png", "svg", "pdf")]
    time.sleep(1.1)  # a date in the file would be another now
    assert [draw(some, kind) for kind in ("png", "svg", "pdf")] == first


def test_a_hostile_text_stays_text_in_svg() -> None:
    svg = draw([cards.card(cards.view(cards.text_panel(cards.HOSTILE)), title=cards.HOSTILE)], "svg")
    words = "".join(t for t, style in texts(svg) if "text-anchor: middle" in style)
    assert {e.tag for e in ElementTree.fromstring(svg).iter()}.isdisjoint({f"{SVG}script", f"{SVG}img"})
    shown = visible(cards.HOSTILE).replace("␀", "⟨U+0000⟩")
    assert shown.replace(" ", "") in words
    assert not any(c in svg.decode() for c in "\u202e\u202c\x00")


def test_the_words_of_an_svg_joined_are_the_text() -> None:
    text = "A gripping café film — 映画 👨‍👩‍👧, שלום:\n$x_1$ costs 5%."  # one word of Hebrew keeps its place
    svg = draw([cards.card(cards.view(cards.text_panel(text)))], "svg")
    words = "".join(t for t, style in texts(svg) if "text-anchor: middle" in style)
    assert words.removesuffix("0") == "".join(text.split()), "but for the middle of the scale of colours"


def test_what_no_font_has_is_a_number_in_png_and_itself_in_svg() -> None:
    odd = "\U000e1234"
    assert Fonts(keep=False).show(f"a{odd}b") == "aU+E1234b"
    assert Fonts(keep=True).show(f"a{odd}b") == f"a{odd}b"
    assert Fonts(keep=False).show("e\x00".replace("\x00", visible("\x00"))) in ("e⟨U+0000⟩", "e␀")


def test_red_is_for_blue_against_and_zero_is_white() -> None:
    panel = scored(("good", 2.0), (" ", None), ("none", 0.0), (" ", None), ("bad", -2.0), (" ", None), ("half", 1.0))
    found = colours(panel, limit=2.0)
    assert found == {blend(2.0, 2.0): 1, blend(-2.0, 2.0): 1, blend(1.0, 2.0): 1}


def test_the_strongest_gets_the_full_colour() -> None:
    out = tint(np.array([3.0, -3.0, 0.0, 6.0]), 3.0)
    assert np.allclose(out[:, 3], [OPAQUE, OPAQUE, 0, OPAQUE])
    assert np.allclose(out[0, :3] * 255, FOR)
    assert np.allclose(out[1, :3] * 255, AGAINST)
    assert not tint(np.zeros(3), 0.0)[:, 3].any()


def test_what_was_not_read_is_grey_and_has_no_colour() -> None:
    panel = scored(("read", 1.0), (" rest of it", None), unread=(Span(5, 15, 0),))
    assert [f.unread for f in fragments(panel) if not f.space] == [False, True, True, True]
    svg = draw([cards.card(cards.view(panel))], "svg")
    styles = dict(texts(svg))
    assert "#6b6b6b" in styles["rest"]
    assert "#6b6b6b" not in styles["read"]


@pytest.mark.parametrize("size", [(60, 90), (300, 20), (10, 400)])
def test_a_picture_keeps_its_shape(size: tuple[int, int]) -> None:
    fig = figure([cards.card(*(cards.view(cards.image_panel(*size, seed=k)) for k in range(5)))], width=6.0)
    boxes = [ax.get_window_extent() for ax in fig.axes[:6]]  # the last is the scale of colours
    for box in boxes:
        assert box.height / box.width == pytest.approx(size[0] / size[1], rel=0.01)
        assert box.height <= 3 * fig.dpi
        assert box.x0 >= 0
        assert box.x1 <= fig.bbox.x1
    assert len({round(b.y0) for b in boxes}) == 2, "four in a row"


def test_the_picture_is_under_its_colours() -> None:
    panel = cards.image_panel(40, 40, (2, 2))
    heat = np.zeros((40, 40))
    heat[:20] = 1.0
    assert isinstance(panel.origin, ImageOrigin)
    black = replace(panel.origin, image=np.zeros((40, 40, 3), np.uint8))
    view = replace(cards.view(replace(panel, origin=black, heat=heat)), limit=1.0)
    fig = figure([Card("t", (view,))])
    under, over = fig.axes[1].images
    assert np.asarray(over.get_array())[0, 0, 3] == pytest.approx(OPAQUE)
    assert np.asarray(over.get_array())[-1, -1, 3] == 0
    grey = np.asarray(under.get_array())
    assert (grey[..., 0] == grey[..., 1]).all()
    assert len(fig.axes[0].images) == 1, "the picture as it is stands first"


def test_what_was_not_heard_has_no_colour() -> None:
    panel = cards.sound_panel()
    assert isinstance(panel.origin, AudioOrigin)
    short = replace(panel, origin=replace(panel.origin, heard=0.5))
    ax = figure([cards.card(cards.view(short))]).axes[0]
    assert ax.images[0].get_extent()[:2] == [0.0, 0.5]
    assert ax.get_xlim() == (0.0, 1.0)


def test_matplotlib_is_left_as_it_was() -> None:
    matplotlib.rcParams["axes.facecolor"] = "red"
    matplotlib.rcParams["text.usetex"] = True
    try:
        before = dict(matplotlib.rcParams)
        draw(cards.every_card()[:1], "svg")
        with pytest.raises(InputError):
            draw([], "pdf")
        assert dict(matplotlib.rcParams) == before
    finally:
        matplotlib.rcdefaults()


def test_pyplot_is_not_imported() -> None:
    code = "import sys; from tests.support import cards; from whence.render.figure.figure import draw"
    code += "; draw(cards.every_card()[:1], 'png')"
    code += "; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_user_s_style_does_not_change_the_figure() -> None:
    some = cards.every_card()[8:9]
    plain = draw(some, "svg")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "lines.linewidth": 9, "savefig.bbox": "tight"}):
        assert draw(some, "svg") == plain


def test_a_long_text_is_cut_and_says_so() -> None:
    text = " ".join(f"word{k}" for k in range(10_000))
    started = time.monotonic()
    svg = draw([cards.card(cards.view(cards.text_panel(text)), title="long")], "svg")
    assert time.monotonic() - started < 15
    words = [t for t, style in texts(svg) if "text-anchor: middle" in style and t.startswith("word")]
    assert 1000 < len(words) < 2500
    assert any(f"{10_000 - len(words):,} more words" in t for t, _ in texts(svg))


def test_a_word_without_an_end_is_cut() -> None:
    assert figure([cards.card(cards.view(scored(("x" * 100_000, 1.0))))]).get_figheight() < 40


def test_many_cards_and_many_views_are_cut_and_say_so() -> None:
    said = [t for t, _ in texts(draw([cards.text_card("short", 1)] * 60, "svg"))]
    assert any("20 more inputs" in t for t in said)
    many = cards.card(*[cards.view(cards.tensor_panel(), ledger=False)] * 100)
    assert any("more explanations of this input" in t for t, _ in texts(draw([many], "svg")))


def test_only_positive_scores_have_half_a_scale() -> None:
    view = cards.view(scored(("good", 1.0)))
    assert not any("against" in t for t, _ in texts(draw([Card("t", (view,))], "svg")))
    signed = cards.view(scored(("good", 1.0), (" ", None), ("bad", -1.0)))
    assert any("against" in t for t, _ in texts(draw([Card("t", (signed,))], "svg")))


@pytest.mark.parametrize(("kind", "width", "said"), [("gif", 8.0, "png, svg, pdf"), ("png", 0.5, "at least 3")])
def test_what_cannot_be_drawn_is_said(kind: str, width: float, said: str) -> None:
    with pytest.raises(InputError, match=said):
        draw(cards.every_card()[:1], kind, width)


def test_without_matplotlib_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(WhenceError, match=r"pip install 'whence\[figures\]'"):
        draw(cards.every_card()[:1], "png")


def test_lines_are_never_wider_and_lose_nothing() -> None:
    parts = list(fragments(cards.text_panel("One (two) three-four, 映画が好き。 " + "long" * 20)))
    for width in (8, 13, 40):
        broken = [line for line, _ in lines(parts, width, len)]
        assert max(sum(len(f.text) for f in line) for line in broken) <= width
        assert "".join(f.text for line in broken for f in line if not f.space) == "".join(
            f.text for f in parts if not f.space
        )


def test_words_from_right_to_left_stand_so() -> None:
    line = [Fragment(t) for t in ("שלום", " ", "עולם", " ", "mixed", " ", "text")]
    assert leftward(line)
    assert [f.text for f in visual_order(line, True)] == ["mixed", " ", "text", " ", "עולם", " ", "שלום"]
    latin = [Fragment(t) for t in ("a", " ", "שלום", " ", "עולם", " ", "b")]
    assert [f.text for f in visual_order(latin, False)] == ["a", " ", "עולם", " ", "שלום", " ", "b"]


@pytest.mark.parametrize("c", [chr(k) for k in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0xD800, 0xFFFF)])
def test_no_character_acts(c: str) -> None:
    assert c not in visible(f"a{c}b")
    assert visible(f"a{c}b").encode()
