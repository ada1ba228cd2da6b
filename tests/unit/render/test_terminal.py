"""What reaches a terminal is the user's text, safe to print, no wider than the terminal, in colours it has."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.support import cards
from whence.render.palette import blend
from whence.render.phrases import visible
from whence.render.terminal import columns, show, text
from whence.render.view_model import Card, Panel
from whence.results.input_origin import Span, TextOrigin
from whence.results.word_segmentation import Piece

CODE = re.compile(r"\x1b\[[0-9;]*m")
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(shown: str) -> str:
    """Without colours."""
    return CODE.sub("", shown)


def one(*pairs: tuple[str, float], limit: float = 1.0) -> Card:
    """A card of words with given scores."""
    pieces = [p for t, s in pairs for p in (Piece(t, s, 0, 0, 0, ()), Piece(" ", None, 0, 0, 0, ()))]
    panel = Panel("text", np.array([s for _, s in pairs]), np.zeros(len(pairs), bool), pieces=tuple(pieces))
    return Card("t", (replace(cards.view(panel), limit=limit),))


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colour", [True, 256, False])
@pytest.mark.parametrize("width", [40, 100])
def test_no_line_is_wider_than_the_terminal(colour: bool | int, width: int) -> None:
    wide = cards.text_card("彼は映画が大好きです。" * 9 + " 👨‍👩‍👧 e\u0301 " + "long" * 40)
    for line in text([*cards.every_card(), wide], colour, width).split("\n"):
        assert columns(plain(line)) <= width, line


@pytest.mark.parametrize(
    ("said", "width"), [("café", 4), ("cafe\u0301", 4), ("日本", 4), ("👍", 2), ("שלום", 4), ("a\u200db", 2)]
)
def test_columns_are_counted_as_a_terminal_does(said: str, width: int) -> None:
    assert columns(said) == width


@pytest.mark.parametrize("colour", [True, 256, False])
def test_nothing_in_a_hostile_text_acts(colour: bool | int) -> None:
    evil = cards.HOSTILE + "\x1b[31m\x1b]0;title\x07 \x9b2J \u2066x\u2069 \x7f \r gone"
    panel = replace(cards.text_panel(evil), tokens=(evil,) * 99)
    view = replace(cards.view(panel), method=evil, options=evil, target=evil, prediction=evil, notes=(evil,))
    series = cards.series_panel()
    series = replace(series, origin=replace(series.origin, channels=(evil, evil)))  # type: ignore[type-var]  # has one
    shown = plain(text([Card(evil, (view, cards.view(series)))], colour, 80))
    assert not ACTING.search(shown)
    assert "␛" in shown
    assert "⟨U+202E⟩" in shown


def test_the_words_joined_are_the_text() -> None:
    said = "A gripping café film — 映画 👨‍👩‍👧, שלום:\n\x1b[1m$x_1$ costs 5%."
    panel = cards.text_panel(said)
    card = Card("", (replace(cards.view(panel, ledger=False), notes=()),))
    shown = plain(text([card], True, 40))
    assert "".join(visible(said).split()) in "".join(shown.split())


def test_red_is_for_blue_against_and_zero_is_white() -> None:
    shown = text([one(("good", 1.0), ("none", 0.0), ("bad", -1.0))], True)
    for word, score in (("good", 1.0), ("none", 0.0), ("bad", -1.0)):
        red, green, blue = blend(score, 1.0)
        assert re.search(rf"48;2;{red};{green};{blue}m{word}\x1b", shown)


def test_256_colours_are_red_or_blue_too() -> None:
    shown = text([one(("good", 1.0), ("none", 0.0), ("bad", -1.0), ("half", 0.5))], 256)
    assert [re.search(rf"48;5;(\d+)m{w}\x1b", shown)[1] for w in ("good", "half", "none", "bad")] == [  # type: ignore[index]  # found
        "167", "217", "231", "68",
    ]  # fmt: skip
    assert "48;2" not in shown


def test_without_colours_the_strongest_words_have_their_scores() -> None:
    pairs = [("gripping", 0.64), ("dull", -0.31), *((f"w{k}", 0.01) for k in range(20))]
    shown = text([one(*pairs)], False)
    assert "\x1b" not in shown
    assert "gripping(+0.64) dull(-0.31) w0 w1" in shown
    assert re.search(r"gripping +\+0\.64 +\+{10}", shown)
    assert re.search(r"dull +-0\.31 +-{5}", shown)


def test_a_picture_is_shown_beside_its_colours() -> None:
    card = cards.card(cards.view(cards.image_panel(60, 90)))
    rows = [line for line in text([card], True, 80).split("\n") if "▀" in line]
    assert {len(plain(row)) for row in rows} == {36 + 2 + 36}
    assert len(rows) == 12, "36 columns of a picture of 90 to 60 are 24 rows of pixels, two in a line"


def test_without_colours_a_picture_is_signs_and_strengths() -> None:
    patches = np.array([[1.0, -1.0], [0.0, 0.5]])
    panel = replace(cards.image_panel(grid=(2, 2)), patches=patches)
    shown = text([Card("t", (replace(cards.view(panel), limit=1.0),))], False)
    assert "+@-@\n  +=\n" in shown


@pytest.mark.parametrize("colour", [True, False])
def test_bars_say_for_and_against(colour: bool) -> None:
    panel = replace(cards.tensor_panel(), scores=np.array([1.0, -0.5, 0.0]))
    shown = plain(text([Card("t", (replace(cards.view(panel), limit=1.0),))], colour))
    assert re.search(r"^for +█  $", shown, re.M)
    assert re.search(r"^against  ▄ $", shown, re.M)


def test_prediction_target_ledger_and_notes_are_said() -> None:
    shown = " ".join(text([cards.card(cards.view(cards.text_panel("a b"), target="negative"))], False, 200).split())
    for said in (
        "positive, 93 %",
        "for negative (7 %)",
        "70 % of the target's value reached the input",
        "Coverage: 12 of 21 operations have a rule; tanh uses its plain gradient.",
    ):
        assert said in shown


def test_what_was_not_read_is_marked() -> None:
    origin = TextOrigin(("read rest",), ("read",), (Span(0, 4),), (Span(5, 9),))
    panel = Panel("text", np.array([1.0]), np.zeros(1, bool), origin, tuple(origin.pieces([1.0])))
    assert "read(+1.00) [not read: rest]" in text([cards.card(cards.view(panel))], False)
    assert re.search(r"38;2;118;118;118;48;2;255;255;255mrest", text([cards.card(cards.view(panel))], True))


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, "48;5;"),
        ({"COLORTERM": "truecolor"}, True, "48;2;"),
        ({}, False, None),
        ({"NO_COLOR": "1"}, True, None),
        ({"FORCE_COLOR": "1"}, False, "48;5;"),
    ],
)
def test_colours_only_where_they_are_wanted(
    variables: dict[str, str], terminal: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    show([cards.text_card()])
    assert ("\x1b[" in out.getvalue()) is (expected is not None)
    assert expected is None or expected in out.getvalue()


def test_an_output_of_few_characters_gets_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    show(cards.every_card())
    sys.stdout.flush()
    assert b"caf\\xe9" in raw.getvalue()


def test_a_long_text_is_shown_whole_and_many_cards_are_not() -> None:
    said = " ".join(f"word{k}" for k in range(10_000))
    assert "word9999" in text([cards.card(cards.view(cards.text_panel(said)), title="long")], True)
    assert "…and 5 more inputs" in text([cards.text_card("short", 1)] * 45, False)
